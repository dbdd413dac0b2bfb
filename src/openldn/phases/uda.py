"""UDA (Xie et al., NeurIPS 2020), with mixup on the labelled rows as OpenLDN uses it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.losses import mixup
from openldn.nets.classifier import Classifier


@dataclass(frozen=True)
class UDA:
    """The strong view learns the weak view's sharpened prediction, where that is confident."""

    temperature: float = 0.4
    threshold: float = 0.8  # of the sharpened probability, as in the reference
    alpha: float = 0.75

    name = "uda"
    unlabelled_views = ("weak", "strong")

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        return 3.0 * (l + 2 * u)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Cross-entropy on mixed labelled rows, and of strong views against weak ones."""
        (x,), (weak, strong), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        y = F.one_hot(batch.y, network.head.out_features).to(x.dtype)
        mixed, targets = mixup(x, y, self.alpha)
        logits = network(torch.cat([mixed, weak, strong])).logits
        labelled, weak, strong = logits.split([l, len(weak), len(strong)])
        q = (weak.detach() / self.temperature).softmax(dim=1)
        sure = (q.amax(dim=1) >= self.threshold).to(q.dtype)
        consistency = F.cross_entropy(strong, q, reduction="none") * sure
        return {"labelled": F.cross_entropy(labelled, targets), "unlabelled": consistency.mean()}

"""UDA (Xie et al., NeurIPS 2020), and what OpenLDN's authors make of it as a second stage.

They mix labelled rows with each other, and ask how confident the sharpened prediction is, not the plain one.
"""

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
    threshold: float = 0.8
    as_second_stage: bool = True
    alpha: float = 0.75  # of mixup

    name = "uda"
    unlabelled_views = ("weak", "strong")

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        return 3.0 * (l + 2 * u)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Cross-entropy on labelled rows, and of strong views against weak ones."""
        (x,), (weak, strong), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        y = F.one_hot(batch.y, network.head.out_features).to(x.dtype)
        if self.as_second_stage:
            x, y = mixup(self.alpha, x, y)
        logits = network(torch.cat([x, weak, strong])).logits
        labelled, weak, strong = logits.split([l, len(weak), len(strong)])
        q = (weak.detach() / self.temperature).softmax(dim=1)
        p = q if self.as_second_stage else weak.detach().softmax(dim=1)
        sure = (p.amax(dim=1) >= self.threshold).to(q.dtype)
        consistency = F.cross_entropy(strong, q, reduction="none") * sure
        return {"labelled": F.cross_entropy(labelled, y), "unlabelled": consistency.mean()}

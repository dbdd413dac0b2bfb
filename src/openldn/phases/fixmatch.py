"""FixMatch (Sohn et al., NeurIPS 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.losses import pseudo_label_loss
from openldn.nets.classifier import Classifier


@dataclass(frozen=True)
class FixMatch:
    """The strong view learns the weak view's class, where that is very confident."""

    threshold: float = 0.95

    name = "fixmatch"
    unlabelled_views = ("weak", "strong")

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        return 3.0 * (l + 2 * u)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Cross-entropy on labelled rows, and of strong views against the weak views' classes."""
        (x,), (weak, strong) = batch.x, batch.u
        logits = network(torch.cat([x, weak, strong])).logits
        labelled, weak, strong = logits.split([len(x), len(weak), len(strong)])
        pseudo, _ = pseudo_label_loss(weak.detach(), strong, self.threshold)
        return {"labelled": F.cross_entropy(labelled, batch.y), "unlabelled": pseudo}

"""MixMatch (Berthelot et al., NeurIPS 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.losses import mixup, sharpen
from openldn.nets.classifier import Classifier


@dataclass(frozen=True)
class MixMatch:
    """Guess labels from two views, sharpen them, and mix everything with everything."""

    weight: float  # of the unlabelled images' loss, in the end
    temperature: float = 0.5
    alpha: float = 0.75

    name = "mixmatch"
    unlabelled_views = ("weak", "weak")

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        return 3.0 * (l + 2 * u) + 2 * u

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Cross-entropy on mixed labelled rows, squared error on mixed unlabelled ones."""
        (x,), (u1, u2), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        with torch.no_grad():
            guess = torch.stack([network(u).logits.softmax(dim=1) for u in (u1, u2)]).mean(dim=0)
            q = sharpen(guess, self.temperature)  # (u, C)
            y = F.one_hot(batch.y, q.shape[1]).to(q.dtype)
        # One forward pass for all rows: BatchNorm sees labelled and unlabelled ones together.
        mixed, targets = mixup(self.alpha, torch.cat([x, u1, u2]), torch.cat([y, q, q]))
        logits = network(mixed).logits
        # The mean runs over rows and classes. The weight grows over the whole run, as in the reference.
        error = (logits[l:].softmax(dim=1) - targets[l:]).square().mean()
        return {
            "labelled": F.cross_entropy(logits[:l], targets[:l]),
            "unlabelled": self.weight * progress * error,
        }

"""Mean Teacher (Tarvainen and Valpola, NeurIPS 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.nets.classifier import Classifier
from openldn.phases.schedule import ramp


@dataclass(frozen=True)
class MeanTeacher:
    """The network agrees with its own moving average on another view of the image."""

    weight: float = 50.0
    ramp_until: float = 0.4

    name = "mean-teacher"
    unlabelled_views = ("weak", "weak")

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        return 3.0 * (l + u) + u

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Cross-entropy on labelled rows, squared distance of student and teacher on all others."""
        (x,), (u1, u2) = batch.x, batch.u
        logits = network(torch.cat([x, u1])).logits
        labelled, student = logits.split([len(x), len(u1)])
        with torch.no_grad():
            teacher = average(u2).logits.softmax(dim=1)
        distance = (student.softmax(dim=1) - teacher).square().mean()
        return {
            "labelled": F.cross_entropy(labelled, batch.y),
            "unlabelled": self.weight * ramp(progress, self.ramp_until) * distance,
        }

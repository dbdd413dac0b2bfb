"""SimGCD (Wen, Zhao and Qi, ICCV 2023): GCD's contrast, and a classifier that teaches itself.

After SimCLR. Prototypes for all classes; a view learns what the other one says at a lower temperature, while
the mean prediction is kept spread out over all classes.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.losses import entropy_loss
from openldn.nets.classifier import Classifier
from openldn.nets.heads import projector
from openldn.phases.gcd import contrasts
from openldn.phases.schedule import ramp
from openldn.phases.training import Method


class SimGCD(Method):
    """Two views of every image."""

    name = "simgcd"
    labelled_views = unlabelled_views = ("crop", "crop")
    share = 0.35  # of the loss that is about labels
    spread = 2.0  # weight of the entropy of the mean prediction
    first, last = 0.07, 0.04  # the teacher's temperature, and where it ends
    until = 0.15  # of the length, its ramp

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        d = network.head.in_features
        self.projector = projector(d, d, 128)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        y, l = batch.y, len(batch.y)  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        a, b = self.projector(z).chunk(2)
        temperature = self.first + (self.last - self.first) * ramp(progress, self.until)
        # Logits are cosines over 0.1, the student's temperature.
        q = (0.1 * logits.detach() / temperature).softmax(dim=1).roll(len(one), dims=0)
        labelled = logits.unflatten(0, (2, -1))[:, :l].flatten(0, 1)
        terms = contrasts(a, b, y, self.share)
        return {
            "labelled": terms["labelled"] + self.share * F.cross_entropy(labelled, torch.cat([y, y])),
            "unlabelled": terms["unlabelled"] + (1 - self.share) * F.cross_entropy(logits, q),
            "entropy": (1 - self.share) * self.spread * entropy_loss(logits.softmax(dim=1)),
        }

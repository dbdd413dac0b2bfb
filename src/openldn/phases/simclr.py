"""SimCLR (Chen et al., ICML 2020): features in which two views of an image are each other's nearest.

Settings are those of SCAN's recipe for CIFAR: a projection to 128 dimensions, temperature 0.1. It needs no
label, and learns from labelled and unlabelled images alike.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.losses import contrast
from openldn.nets.classifier import Classifier
from openldn.nets.heads import projector
from openldn.phases.training import Method


class SimCLR(Method):
    """Two views of every image, and a projection that is thrown away in the end."""

    name = "simclr"
    labelled_views = unlabelled_views = ("crop", "crop")

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        d = network.head.in_features
        self.projector = projector(d, d, 128)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        a, b = self.projector(network(torch.cat(batch.views)).z).chunk(2)
        return {"unlabelled": contrast(a, b, temperature=0.1)}

"""GCD (Vaze et al., CVPR 2022): contrastive features, then k-means that keeps labelled images together.

After SimCLR, which stands for the large pretrained network of the paper. All images learn to find their
other view, labelled ones also the others of their class; the predictor does the rest.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.losses import contrast, supervised_contrast
from openldn.nets.classifier import Classifier
from openldn.nets.heads import projector
from openldn.phases.training import Method


class GCD(Method):
    """Two views of every image."""

    name = "gcd"
    labelled_views = unlabelled_views = ("crop", "crop")
    share = 0.35  # of the loss that is about labels

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        d = network.head.in_features
        self.projector = projector(d, d, 128)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        a, b = self.projector(network(torch.cat(batch.views)).z).chunk(2)
        return contrasts(a, b, batch.y, self.share)


def contrasts(a: Tensor, b: Tensor, y: Tensor, share: float) -> dict[str, Tensor]:
    """Both terms, of projections of two views (n, k); labelled rows (`y`) stand first."""
    l = len(y)  # noqa: E741
    labelled = supervised_contrast(torch.cat([a[:l], b[:l]]), torch.cat([y, y]), temperature=0.07)
    return {
        "labelled": share * labelled,
        "unlabelled": (1 - share) * contrast(a, b, temperature=1.0),
    }

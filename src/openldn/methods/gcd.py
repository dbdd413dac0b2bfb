"""GCD (Vaze et al., CVPR 2022): contrastive features, then semi-supervised k-means.

After SimCLR, which stands for the large pretrained network of the paper. Two views of an image are positives
for all images, and images of one class for labelled ones.
"""

from functools import partial

import torch
from torch import Tensor

from openldn.data.batches import Batch
from openldn.maths.k_means import semi_supervised
from openldn.maths.losses import contrast, supervised_contrast
from openldn.methods import simclr
from openldn.nets.classifier import Classifier
from openldn.nets.predictors import KMeans
from openldn.training import settings
from openldn.training.stage import Losses, Stage, System


class Settings(settings.Settings):
    """Of GCD."""

    supervised_weight: float = 0.35
    """Weight of the supervised loss; the unsupervised one has the rest."""
    supervised_temperature: float = 0.07
    """Of the supervised contrastive loss."""
    temperature: float = 1.0
    """Of the unsupervised contrastive loss."""


class GCD(simclr.Contrastive):
    """Two views of every image."""

    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        a, b = self.projector(network(torch.cat(batch.views)).z).chunk(2)
        return contrasts(a, b, batch.y, self.settings)


def contrasts(a: Tensor, b: Tensor, y: Tensor, settings: Settings) -> dict[str, Tensor]:
    """Both terms, of projections of two views (n, k); labelled rows (`y`) come first."""
    l, share = len(y), settings.supervised_weight  # noqa: E741
    labelled = supervised_contrast(
        torch.cat([a[:l], b[:l]]), torch.cat([y, y]), settings.supervised_temperature
    )
    return {
        "labelled": share * labelled,
        "unlabelled": (1 - share) * contrast(a, b, settings.temperature),
    }


SYSTEM = System(
    no_recipe="its paper starts from a ViT-B/16 that DINO has trained",
    name="gcd",
    about="SimCLR, then GCD: contrastive learning and semi-supervised k-means",
    paper="Vaze et al., Generalized Category Discovery, CVPR 2022",
    stages=(
        simclr.PRETRAINING,
        Stage(
            name="gcd",
            objective=GCD,
            settings=Settings,
            share=0.5,
            predictor=partial(KMeans, unit=True, centres=semi_supervised),
            continues=True,
        ),
    ),
)

"""SimCLR (Chen et al., ICML 2020): contrastive learning: two views of an image are positives.

Settings follow SCAN's recipe for CIFAR: a projection to 128 dimensions, temperature 0.1. It needs no label,
and learns from labelled and unlabelled images alike.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.maths.losses import contrast
from openldn.nets.classifier import Classifier
from openldn.nets.heads import projector
from openldn.nets.predictors import KMeans
from openldn.training import settings
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of SimCLR."""

    # SCAN's recipe for CIFAR.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 500.0,
        "batch": 512,
        "lr": 0.4,
        "schedule": "cosine",
        "optimiser": "sgd",
        "l2": 1e-4,
    }

    temperature: float = 0.1
    """Of the contrastive loss."""


class Contrastive(Objective):
    """Base of contrastive objectives: two views of every image, and a projector thrown away in the end."""

    labelled_views = unlabelled_views = ("crop_jitter", "crop_jitter")

    def __init__(self, problem: Problem, network: Classifier, settings: Any):
        super().__init__(problem, network, settings)
        d = network.head.in_features
        self.projector = projector(d, d, 128)


class SimCLR(Contrastive):
    """Two views of an image are positives, all other images are negatives."""

    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        a, b = self.projector(network(torch.cat(batch.views)).z).chunk(2)
        return {"unlabelled": contrast(a, b, self.settings.temperature)}


PAPER = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
PRETRAINING = Stage(
    name="simclr",
    objective=SimCLR,
    settings=Settings,
    share=0.5,
    outputs="known",
    evaluations=0,
    pretraining=True,
)
SYSTEM = System(
    name="simclr-k-means",
    about="SimCLR, then k-means on its features",
    paper=PAPER,
    stages=(Stage(name="simclr", objective=SimCLR, settings=Settings, predictor=partial(KMeans, unit=True)),),
)

"""Fine-tuning: a pretrained network goes on learning, first from labels, then from clusters.

1. *Metric learning.* The network learns to tell the known classes apart, by the cosine of features with a
   prototype of each class. Its features then set apart other classes of the same kind too: what tells known
   birds or cars apart tells novel ones apart. They are clustered by `whitened_clustering.py`.
2. *Self-labelling.* Images that are surely of one cluster join the labelled ones, and the network learns the
   known and novel classes together. Its features are clustered again.

Early layers stay as they are: they are of use for all images, and most of the time would be theirs.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.methods.whitened_clustering import WhitenedClustering
from openldn.nets.classifier import Classifier, Predict, infer
from openldn.nets.heads import Cosine
from openldn.training.schedules import Composition
from openldn.training.settings import OptimiserName, PretrainedSettings
from openldn.training.stage import Losses, Objective, Stage, System

AT_ONCE = 20_000  # images whose features are in memory together


class Settings(PretrainedSettings):
    """Of both stages."""

    paper: ClassVar[Mapping[str, Any]] = {}
    refreshes: ClassVar[int] = 0

    batch: int = 32
    """Images per step."""
    lr: float = 3e-3
    """Peak learning rate of the prototypes."""
    temperature: float = 0.06
    """Of the softmax over cosines with prototypes."""
    smoothing: float = 0.1
    """Label smoothing."""
    optimiser: OptimiserName = "adam"


class MetricLearningSettings(Settings):
    """Of metric learning."""

    epochs: float | None = 1.0
    """Images to see, in units of the number of unlabelled images."""
    least_images: int | None = 4_000
    """See at least this many images, however few there are."""
    max_epochs: float = 20.0
    """See each labelled image at most this often: beyond that, what the network knew may be forgotten."""


class SelfLabellingSettings(Settings):
    """Of self-labelling."""

    epochs: float | None = 2.0
    """Images to see, in units of the number of unlabelled images."""
    least_images: int | None = 8_000
    """See at least this many images, however few there are."""
    sure: float = 0.5
    """Images whose cluster has at least this probability are labelled by it."""


class MetricLearning(Objective):
    """Cross-entropy of labelled images, by cosine similarities to prototypes."""

    settings: Settings

    def composition(self) -> Composition:
        batch = self.settings.batch
        return Composition(labelled=batch, unlabelled=0, counted=batch)

    def max_steps(self) -> int | None:
        if isinstance(self.settings, MetricLearningSettings):
            return math.ceil(self.settings.max_epochs * len(self.problem.labelled) / self.settings.batch)
        return None

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        """Prototypes start as the mean features of their classes."""
        problem, head = self.problem, network.head
        assert isinstance(head, Cosine)
        sums = torch.zeros(head.weight.shape)
        for rows in problem.labelled.split(AT_ONCE):
            images = Part(problem.images, rows)
            # The stage before has left the same backbone, and remembers its features.
            z = (infer(network, images) if previous is None else previous(images)).z
            sums.index_add_(0, problem.labels[rows], F.normalize(z, dim=1))
        seen = sums.any(dim=1)
        with torch.no_grad():  # a class without images keeps a random one
            head.weight[seen] = F.normalize(sums[seen], dim=1).to(head.weight)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        cosine = network(batch.x[0]).logits * Cosine.temperature
        smoothing = self.settings.smoothing
        loss = F.cross_entropy(cosine / self.settings.temperature, batch.y, label_smoothing=smoothing)
        return {"labelled": loss}


class SelfLabelling(MetricLearning):
    """The same, with the images that are surely of one cluster."""

    settings: SelfLabellingSettings

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        if previous is not None:
            given = self.problem
            for rows in given.unlabelled.split(AT_ONCE):
                found = previous(Part(given.images, rows))
                sure = found.confidence >= self.settings.sure
                self.problem = self.problem.promote(rows[sure], found.ids[sure])
        super().begin(network, previous)

    def get_extra_state(self) -> dict[str, Any]:
        return {"labels": self.problem.labels}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        rows = torch.nonzero(state["labels"] >= 0).flatten()
        self.problem = self.problem.promote(rows, state["labels"][rows])


METRIC_LEARNING = Stage(
    name="metric-learning",
    objective=MetricLearning,
    settings=MetricLearningSettings,
    share=1 / 3,
    outputs="known",
    head=Cosine,
    predictor=lambda settings: WhitenedClustering(),
    pretrained=True,
    counts=True,
)
SELF_LABELLING = Stage(
    name="self-labelling",
    objective=SelfLabelling,
    settings=SelfLabellingSettings,
    share=2 / 3,
    head=Cosine,
    predictor=lambda settings: WhitenedClustering(),
    continues=True,
    pretrained=True,
)
SYSTEM = System(
    no_recipe="it is ours: its defaults are its recipe",
    name="fine-tuned",
    about="metric learning from a pretrained start, whitened clustering, then self-labelling",
    paper="ours (docs/own-images.md)",
    stages=(METRIC_LEARNING, SELF_LABELLING),
)

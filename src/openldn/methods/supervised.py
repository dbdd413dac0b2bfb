"""Plain supervised training on the labelled images: the simplest baseline."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier
from openldn.nets.predictors import RejectAndCluster
from openldn.training.schedules import Composition, labelled_alone
from openldn.training.settings import RejectingSettings, Settings
from openldn.training.stage import Losses, Objective, Stage, System


class Supervised(Objective):
    """Cross-entropy on labelled images; also how DTC, RankStats and UNO start."""

    def composition(self) -> Composition:
        return labelled_alone(self.problem, self.settings.batch)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        return {"ce": F.cross_entropy(network(batch.x[0]).logits, batch.y)}


def last_stage_alone(problem: Problem, network: Classifier, settings: Any) -> Supervised:
    """Supervised training of the last stage alone: what SimCLR has learned before it stays."""
    network.freeze_early(problem.images.shape[1], problem.size)
    return Supervised(problem, network, settings)


class PretrainingSettings(Settings):
    """Of supervised training before another stage."""

    # UNO's: 200 passes over the labelled images, which are 50 over the others with the paper's labels.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 50.0,
        "batch": 128,
        "lr": 0.1,
        "schedule": "warm-up-cosine",
        "optimiser": "sgd",
        "l2": 1e-4,
    }


PRETRAINING = Stage(
    name="supervised",
    objective=Supervised,
    settings=PretrainingSettings,
    share=0.3,
    outputs="known",
    evaluations=0,
    pretraining=True,
)
SYSTEM = System(
    name="supervised",
    about="known classes alone, k-means on the images it is unsure of",
    no_recipe="it has no paper",
    stages=(
        Stage(
            name="supervised",
            objective=Supervised,
            settings=RejectingSettings,
            outputs="known",
            predictor=RejectAndCluster,
        ),
    ),
)

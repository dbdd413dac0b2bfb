"""Plain supervised training on the labelled images: what one would do without any of this."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from openldn import config
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Says
from openldn.optimisers import optimiser
from openldn.phases.schedule import composition, learning_rate, steps_for


class Supervised:
    """The phase: cross-entropy on labelled images; lasts as many steps as stage 1 would."""

    name: str = "supervised"
    labelled_views: tuple[str, ...] = ("weak",)
    unlabelled_views: tuple[str, ...] = ()

    def __init__(self, problem: Problem, network: Classifier, settings: config.Discover):
        self.problem, self.network, self.settings = problem, network, settings
        self.optimiser = optimiser(settings.optimiser, network)
        self.n_labelled, self.n_unlabelled = settings.batch, 0
        _, n_unlabelled = composition(problem, settings)
        self.epoch, self.steps = steps_for(settings.length, len(problem.unlabelled), n_unlabelled)

    @property
    def model(self) -> nn.Module:
        return self.network

    def begin(self, previous: Says | None) -> None:
        """Starts from scratch."""

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        return {"ce": F.cross_entropy(self.network(batch.x[0]).logits, batch.y)}

    def after_step(self, batch: Batch, progress: float) -> None:
        """Nothing."""

    def after_epoch(self, progress: float) -> None:
        """Nothing."""

    def figures(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])

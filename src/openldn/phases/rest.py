"""Known classes against the rest: a first stage that needs minutes (see `openldn.rest`).

What comes out is a network that tells known images from novel ones, and whose features were made to tell
novel images from the known ones they look like; its predictor groups the novel ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from openldn import config
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Says
from openldn.optimisers import optimiser
from openldn.phases.schedule import growing, learning_rate, oversampled, side, steps_for
from openldn.rest import rest_losses


@dataclass(frozen=True)
class Plan:
    """How many images a step has, how many steps there are, and how many image passes these cost."""

    n_labelled: int
    n_unlabelled: int
    epoch: int
    steps: int
    cost: float

    @staticmethod
    def of(problem: Problem, settings: config.Rest) -> "Plan":
        """As long as it is given, but no longer than it may be."""
        n_labelled, n_unlabelled = oversampled(problem, settings.batch, settings.often)
        grown, n = growing(problem.images.shape[3]) if settings.growing else 1.0, len(problem.unlabelled)
        each = 3.0 * settings.batch * grown
        epoch, steps = steps_for(settings.length, n, n_unlabelled, cost=each)
        most = max(settings.most_epochs * n, settings.most_images) / n_unlabelled
        steps = max(1, min(steps, round(most)))
        return Plan(n_labelled, n_unlabelled, epoch, steps, cost=steps * each)


class Rest:
    """The phase: labelled images seen more often than others, weak views alone, small images first."""

    name: str = "rest"
    labelled_views: tuple[str, ...] = ("weak",)
    unlabelled_views: tuple[str, ...] = ("weak",)

    def __init__(self, problem: Problem, network: Classifier, settings: config.Rest):
        self.problem, self.network, self.settings = problem, network, settings
        self.optimiser = optimiser(settings.optimiser, network)
        plan = Plan.of(problem, settings)
        self.n_labelled, self.n_unlabelled = plan.n_labelled, plan.n_unlabelled
        self.epoch, self.steps = plan.epoch, plan.steps

    @property
    def model(self) -> nn.Module:
        return self.network

    def begin(self, previous: Says | None) -> None:
        """Starts from scratch."""

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        self.grow(progress)
        logits = self.network(torch.cat([*batch.x, *batch.u])).logits
        labelled, unlabelled = logits.split([len(batch.y), len(batch.rows)])
        return rest_losses(labelled, batch.y, unlabelled)

    def after_step(self, batch: Batch, progress: float) -> None:
        """Nothing."""

    def after_epoch(self, progress: float) -> None:
        """Whoever looks now sees images as the next step does, and in the end as they are."""
        self.grow(progress)

    def grow(self, progress: float) -> None:
        """The network sees images as large as it is time for."""
        if self.settings.growing:
            self.network.pixels = side(progress, self.problem.images.shape[3])

    def figures(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])

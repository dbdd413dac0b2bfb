"""No training: for predictors that need none, like k-means on pixels."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Says
from openldn.optimisers import Adam, Optimiser


class Untrained:
    """A phase without a step."""

    name: str = "untrained"
    labelled_views: tuple[str, ...] = ()
    unlabelled_views: tuple[str, ...] = ()
    n_labelled = n_unlabelled = 0
    steps, epoch = 0, 1

    def __init__(self, problem: Problem, network: Classifier):
        self.problem, self.model = problem, network
        self.optimiser: Optimiser = Adam([])

    def begin(self, previous: Says | None) -> None:
        """Nothing."""

    def learning_rate(self, progress: float) -> float:
        return 0.0

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        raise AssertionError("there is no step")

    def after_step(self, batch: Batch, progress: float) -> None:
        """Nothing."""

    def after_epoch(self, progress: float) -> None:
        """Nothing."""

    def figures(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

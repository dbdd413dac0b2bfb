"""Stage 2 of OpenLDN: the open world made closed (Sec. 3.3, Alg. 1).

The most confident images of each discovered class join the labelled set, a network made anew learns all
classes with an ordinary semi-supervised method, and its moving average chooses pseudo-labels as it learns.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from openldn import config
from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Says, infer
from openldn.nets.ema import MovingAverage
from openldn.optimisers import optimiser
from openldn.phases.schedule import growing, learning_rate, side, steps_for
from openldn.pseudo import most_confident, warn_of_empty


class Method(Protocol):
    """A closed-world method: the views it wants and its losses on a batch."""

    @property
    def name(self) -> str: ...
    @property
    def unlabelled_views(self) -> tuple[str, ...]: ...

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        """Image passes of a step of l labelled and u unlabelled images."""
        ...

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Named losses of the network; `average` is its moving average."""
        ...


class ClosedWorld:
    """The phase: a semi-supervised method on labels and pseudo-labels."""

    labelled_views: tuple[str, ...] = ("weak",)

    def __init__(self, problem: Problem, network: Classifier, settings: config.ClosedWorld, method: Method):
        self.original = self.problem = problem
        self.network, self.settings, self.method = network, settings, method
        self.name, self.unlabelled_views = method.name, method.unlabelled_views
        self.optimiser = optimiser(settings.optimiser, network)
        self.n_labelled = self.n_unlabelled = settings.batch
        # As many pseudo-labels per novel class as there are labels per known one.
        self.per_class = max(1, len(problem.labelled) // problem.n_known)
        # When pseudo-labels are made anew, all images are looked at, those that have one twice; this may take
        # a fifth of a budget.
        asked, size = 2 if network.mirrored else 1, problem.images.shape[3]
        look = asked * (len(problem.images) + self.per_class * problem.n_novel)
        refreshes, grown = settings.refreshes, growing(size) if settings.growing else 1.0
        if settings.length.budget is not None:
            refreshes = min(refreshes, int(0.2 * settings.length.budget / look))
        made = [k / (refreshes + 1) for k in range(1, refreshes + 1)]
        overhead = look * sum(not settings.growing or side(at, size) == size for at in made)
        if network.head.out_features > problem.n_known:  # the first ones are by the stage before
            overhead += asked * len(problem.unlabelled)
        _, self.steps = steps_for(
            settings.length,
            len(problem.unlabelled),
            settings.batch,
            cost=method.cost(settings.batch, settings.batch) * grown,
            overhead=overhead,
        )
        # An epoch ends where pseudo-labels are made anew.
        self.epoch = math.ceil(self.steps / (refreshes + 1))
        self.average = MovingAverage(network, min(settings.ema_steps, settings.ema_share * self.steps))
        self._chosen = torch.zeros(2, 0, dtype=torch.int64)  # rows and labels
        self._refreshed = 0  # how often they were made anew

    @property
    def model(self) -> nn.Module:
        """The averaged network: what is evaluated, and what chooses pseudo-labels."""
        return self.average.network

    def begin(self, previous: Says | None) -> None:
        """Takes the first pseudo-labels from stage 1."""
        if previous is not None:
            self.choose(previous)

    def choose(self, says: Says) -> None:
        """S̃_L and S̃_U anew, from what is said of all originally unlabelled images."""
        unlabelled = self.original.unlabelled
        p = says(Part(self.original.images, unlabelled))
        rows, labels = most_confident(p, self.original.n_known, self.per_class)
        warn_of_empty(labels, self.original.n_known, self.original.class_names())
        self._promote(torch.stack([unlabelled[rows], labels]))

    def grow(self, progress: float) -> bool:
        """Networks see images as large as it is time for; whether these are whole."""
        size = self.problem.images.shape[3]
        pixels = side(progress, size) if self.settings.growing else size
        self.network.pixels = self.average.network.pixels = pixels
        return pixels == size

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        self.grow(progress)
        return self.method.losses(self.network, self.average.network, batch, progress)

    @torch.no_grad()
    def after_step(self, batch: Batch, progress: float) -> None:
        """The average follows; then weights shrink a little, as in the reference."""
        self.average.update(self.network, round(progress * self.steps))
        shrink = 1 - self.settings.decay * self.learning_rate(progress)
        torch._foreach_mul_([p for p in self.network.parameters() if p.requires_grad], shrink)

    def after_epoch(self, progress: float) -> None:
        """New pseudo-labels, unless it is the end, or too early: see `ready`."""
        whole = self.grow(progress)
        if self.settings.refreshes and progress < 1 and whole and self.ready():
            self.choose(lambda images: infer(self.model, images).logits.softmax(dim=1))
            self._refreshed += 1

    def ready(self) -> bool:
        """Whether the averaged network knows at least half of the labels it was given, in each class.

        One that has not learned a class yet would call its images by other names, and a class left without
        a pseudo-label does not come back.
        """
        rows = self.problem.labelled
        y = self.problem.labels[rows]
        right = infer(self.model, Part(self.problem.images, rows)).logits.argmax(dim=1) == y
        return all(float(right[y == k].float().mean()) >= 0.5 for k in y.unique().tolist())

    def figures(self) -> dict[str, float]:
        """How many images carry a pseudo-label, and how often these were made anew."""
        return {"pseudo_labels": float(self._chosen.shape[1]), "refreshed": float(self._refreshed)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "average": self.average.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "pseudo_labels": self._chosen,
            "refreshed": self._refreshed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.average.network.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self._promote(state["pseudo_labels"])
        self._refreshed = state["refreshed"]

    def _promote(self, chosen: Tensor) -> None:
        self._chosen = chosen
        self.problem = self.original.promote(chosen[0], chosen[1])

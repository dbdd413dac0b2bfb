"""The frame around a system: a network, what the system learns beside it, an optimiser, a length.

What is the system's own is a `Method`: the views it wants, its losses, and what it does when it looks at all
images from time to time.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from openldn import config
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.backbones import way_back
from openldn.nets.classifier import Classifier, Says
from openldn.nets.ema import MovingAverage
from openldn.optimisers import optimiser
from openldn.phases.schedule import learning_rate, proportional, steps_for


class Method(nn.Module):
    """A system's own part. Its parameters are trained, and its buffers kept, with those of the network."""

    name: str
    labelled_views: tuple[str, ...] = ("weak",)
    unlabelled_views: tuple[str, ...] = ()
    composition: Literal["labelled", "equal", "proportional"] = "proportional"
    """Batches of labelled images alone, half of them, or as many as there are among all images."""
    averaged: bool = False
    """Whether the moving average of the network is what counts."""
    looks: int = 0
    """How often the system looks at all images, evenly over its length."""
    looks_first: bool = True
    """Whether one of them is before the first step."""

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        """Image passes of a step of l labelled and u unlabelled images: every view forward and backward."""
        return 3.0 * (l * len(self.labelled_views) + u * len(self.unlabelled_views))

    def look_cost(self, problem: Problem, network: Classifier) -> float:
        """Image passes of a look: every unlabelled image forward, and its mirror image."""
        return float(len(problem.unlabelled) * (2 if network.mirrored else 1))

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        """Named losses; `average` is the network's moving average, or itself where nobody asks for one."""
        raise NotImplementedError

    def look(self, network: Classifier, problem: Problem, progress: float) -> None:
        """What the system does with all images, as often as it `looks`."""

    def figures(self) -> dict[str, float]:
        """What to log beside the losses."""
        return {}


class Training:
    """The phase: a method at work on a network."""

    def __init__(self, problem: Problem, network: Classifier, settings: config.Training, method: Method):
        self.problem, self.network, self.settings = problem, network, settings
        self.method = method.to(next(network.parameters()).device)
        self.name = method.name
        self.labelled_views, self.unlabelled_views = method.labelled_views, method.unlabelled_views
        self.optimiser = optimiser(settings.optimiser, nn.ModuleList([network, method]))
        # All systems make steps of one size; of how many images of which kind is theirs to say.
        l, u = proportional(problem, settings.batch)  # noqa: E741
        self.n_labelled, self.n_unlabelled = {
            "labelled": (l + u, 0),
            "equal": (settings.batch // 2, settings.batch - settings.batch // 2),
            "proportional": (l, u),
        }[method.composition]
        look, looks = method.look_cost(problem, network), method.looks
        if settings.length.budget is not None and looks:  # a fifth of it, at most
            looks = max(1, min(looks, int(0.2 * settings.length.budget / look)))
        self.epoch, self.steps = steps_for(
            settings.length,
            len(problem.unlabelled),
            u,
            cost=method.cost(self.n_labelled, self.n_unlabelled) * network.passes_each / 3,
            overhead=look * looks,
        )
        if looks:
            self.epoch = math.ceil(self.steps / (looks if method.looks_first else looks + 1))
        self.average = MovingAverage(network, settings.ema_share * self.steps) if method.averaged else None

    @property
    def model(self) -> Classifier:
        """The network that predictions come from."""
        return self.network if self.average is None else self.average.network

    def begin(self, previous: Says | None) -> None:
        """A first look."""
        if self.method.looks and self.method.looks_first:
            self.method.look(self.model, self.problem, 0.0)

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        return self.method.losses(self.network, self.model, batch, progress)

    def after_step(self, batch: Batch, progress: float) -> None:
        """The average follows."""
        if self.average is not None:
            self.average.update(self.network, round(progress * self.steps))

    def after_epoch(self, progress: float) -> None:
        """Another look, unless it is the end."""
        if self.method.looks and progress < 1:
            self.method.look(self.model, self.problem, progress)

    def figures(self) -> dict[str, float]:
        return self.method.figures()

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "method": self.method.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": {} if self.average is None else self.average.network.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.method.load_state_dict(state["method"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])


def freeze_early(network: Classifier, problem: Problem) -> None:
    """What comes before the last stage of a backbone of ours is no longer trained; others are left alone."""
    backbone = network.backbone
    layers, last = getattr(backbone, "layers", None), getattr(backbone, "last", None)
    if isinstance(layers, nn.Sequential) and isinstance(last, int):
        kept = {*layers[-last:].parameters()}
        for p in backbone.parameters():
            p.requires_grad_(p.requires_grad and p in kept)
        network.back = way_back(backbone, *problem.images.shape[1:3])

"""DS3L (Guo et al., ICML 2020): unlabelled images count as much as helps the labelled ones.

Known classes alone. Two weak views of unlabelled images; ℓ_j is the difference of the two predictions, and
w_Ω(p_j) its weight, from a small network that sees the first prediction p_j alone.

    inner:  θ' = θ − α ∇ [CE(labelled) + λ(t) Σ_j w_j ℓ_j / Σ_j w_j]        outer:  CE(labelled) at θ'

Images that get a low weight are taken to be novel.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Outputs
from openldn.nets.heads import Head
from openldn.nets.predictors import RejectAndCluster
from openldn.training.bilevel_step import OuterProblem, look_ahead
from openldn.training.schedules import Composition, half_and_half, sigmoid_ramp
from openldn.training.settings import RejectingSettings
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(RejectingSettings):
    """Of DS3L."""

    # 200,000 steps of 50 labelled and 50 other images.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.0,
        "least_images": 50 * 200_000,
        "batch": 100,
        "lr": 3e-4,
        "schedule": "constant",
        "omega_lr": 6e-5,
        "omega_every": 1,
    }

    consistency: float = 10.0
    """λ: weight of the unlabelled images' loss at the end."""
    alpha: float = 1e-3
    """Step size of the look-ahead."""
    omega_lr: float = 1e-3
    """Learning rate of the weight network; it falls linearly."""
    omega_every: int = 4
    """Update the weight network every so many steps."""


class Weighted(Head):
    """Known classes, and last the logit of an image's weight.

    The weight is a small network's, of the class probabilities sorted by size: how confident the prediction
    is counts, not which class it is. At the start all images have the same weight, so that differences are
    learned, not drawn.
    """

    def __init__(self, d: int, n_outputs: int, n_known: int, hidden: int = 100):
        super().__init__(d, n_outputs)
        self.classes = nn.Linear(d, n_outputs - 1)
        self.weigh = nn.Sequential(nn.Linear(n_outputs - 1, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.weigh[-1].weight)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        logits = self.classes(z)
        return torch.cat([logits, self.weight_logit(logits.softmax(dim=1))], dim=1)

    def weight_logit(self, p: Tensor) -> Tensor:
        """(n, K) -> (n, 1)"""
        w: Tensor = self.weigh(p.sort(dim=1, descending=True).values)
        return w


class DS3L(Objective):
    """The look-ahead is a plain gradient step, as the authors'."""

    unlabelled_views = ("weak", "weak")
    settings: Settings

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        assert isinstance(network.head, Weighted)
        self.outer = OuterProblem(network.head.weigh)
        self.n_steps = 0
        self.seen = torch.zeros(2)  # mean and spread of recent weights

    def composition(self) -> Composition:
        return half_and_half(self.problem, self.settings.batch)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        y, l, u = batch.y, len(batch.y), len(batch.rows)  # noqa: E741
        weight = self.settings.consistency * sigmoid_ramp(progress, 1.0)
        rows, head = torch.cat([*batch.x, *batch.u]), network.head
        assert isinstance(head, Weighted)
        logits = head.classes(network(rows).z)
        ce = F.cross_entropy(logits[:l], y)
        p, difference = predictions(logits[l:], u)

        def inner(p: Tensor, difference: Tensor) -> Tensor:
            return weight * weighted_mean(head.weight_logit(p), difference)

        if self.n_steps % self.settings.omega_every == 0:
            theta = {
                name: p
                for name, p in network.named_parameters()
                if p.requires_grad and not name.startswith("head.weigh")
            }
            self.outer.improve(
                network,
                theta=theta,
                ahead=look_ahead(ce + inner(p, difference), theta, self.settings.alpha, len(rows)),
                x=rows,
                judged=rows[: max(l, 2)],  # of one row there are no batch statistics
                y=y,
                known=lambda logits: logits[:, :-1],
                outputs=lambda z, logits: predictions(logits[l:, :-1], u),
                inner=inner,
                alpha=1.0,  # Adam ignores the scale, unless gradients are as small as its ε
                lr=self.settings.omega_lr * (1 - progress),
            )
        self.n_steps += 1
        with torch.no_grad():
            w = head.weight_logit(p)
        self.seen = torch.stack([w.sigmoid().mean(), w.sigmoid().std()])
        return {"labelled": ce, "unlabelled": weight * weighted_mean(w, difference)}

    def diagnostics(self) -> dict[str, float]:
        return {"weight_mean": float(self.seen[0]), "weight_spread": float(self.seen[1])}

    def get_extra_state(self) -> dict[str, Any]:
        return {"optimiser": self.outer.optimiser.state_dict(), "n_steps": self.n_steps}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.outer.optimiser.load_state_dict(state["optimiser"])
        self.n_steps = state["n_steps"]


def predictions(logits: Tensor, u: int) -> tuple[Tensor, Tensor]:
    """p_j of the first u rows, and ℓ_j, the difference of the others from them.  (2u, K) -> (u, K), (u,)

    The first prediction is a constant target.
    """
    p, q = logits.softmax(dim=1).split(u)
    return p, (q - p.detach()).square().mean(dim=1)


def weighted_mean(w: Tensor, difference: Tensor) -> Tensor:
    """The mean of differences (u,) with weights whose logits are w (u,) or (u, 1)."""
    w = w.flatten().sigmoid()
    return (w * difference).sum() / w.sum().clamp_min(1e-8)


def weight_score(outputs: Outputs, state: Mapping[str, Tensor]) -> Tensor:
    """How likely an image is known: the logit of its weight.  (n,)"""
    return outputs.logits[:, -1]


SYSTEM = System(
    name="ds3l",
    about="DS3L on the known classes, k-means on the images it gives little weight",
    paper="Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020",
    stages=(
        Stage(
            name="ds3l",
            objective=DS3L,
            settings=Settings,
            outputs="known+1",
            head=Weighted,
            predictor=partial(RejectAndCluster, score=weight_score, extra_outputs=1),
        ),
    ),
)

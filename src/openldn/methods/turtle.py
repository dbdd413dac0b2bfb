"""TURTLE (Gadetsky et al., ICML 2024) with labels: the labelling that a linear classifier learns best.

    τ = softmax(θ z)       a labelling of the images; labelled ones keep their label
    w                      a linear classifier, trained for a few steps on τ
    L(θ) = CE(w z, τ) − γ H(mean τ) + CE(τ, labels)

A labelling is good if a linear classifier that was fitted to it agrees with it on other images. As in the
paper, w goes on from step to step, and the gradient for θ is taken at w as it is (first order). The paper has
no labels and starts at random; here the start is semi-supervised k-means. Features have unit length and are
reduced to principal components.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.problem import Problem
from openldn.maths.k_means import semi_supervised
from openldn.maths.principal import principal_axes
from openldn.methods.pim import UnitFeatures
from openldn.nets.predictors import Infer
from openldn.training.optimisers import Adam
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage, System


class Settings(Hyperparameters):
    """Of TURTLE."""

    entropy_weight: float = 3.0
    """γ, the weight of the entropy of class shares; the paper's 10 is for data without labels."""
    lr: float = 1e-3
    """Learning rate of both."""
    steps: int = 400
    """Steps of the labelling."""
    inner_steps: int = 5
    """Steps of the classifier before each."""
    batch: int = 1500
    """Images per step."""
    axes: int = 256
    """Principal components that are kept."""


class Turtle(UnitFeatures):
    """The labelling θ, as a classifier."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.settings = settings or Settings()

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        x, labels = infer(problem.images).z, problem.labels
        mean, axes = principal_axes(F.normalize(x, dim=1), self.settings.axes)
        self.state = {"mean": mean, "axes": axes}
        z = self.reduced(x)
        scale = z.std()
        z = z / scale
        centres = semi_supervised(z, labels, problem.n_known, problem.n_classes, seed, starts=3)
        start = torch.where(labels >= 0, labels, torch.cdist(z, centres).argmin(dim=1))
        draw = torch.Generator().manual_seed(seed)
        theta, b = self.started(z, start, problem.n_classes, draw)
        theta, b = self.improved(theta, b, z, labels, draw)
        self.state |= {"weight": theta / scale, "bias": b}

    def some(self, n: int, draw: torch.Generator) -> Tensor:
        """The rows of a batch."""
        return torch.randperm(n, generator=draw)[: self.settings.batch]

    def started(
        self, z: Tensor, start: Tensor, n_classes: int, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """θ that gives the labelling `start` (n,)."""
        theta = torch.zeros(n_classes, z.shape[1]).requires_grad_()
        b = torch.zeros(n_classes).requires_grad_()
        adam = Adam([theta, b])
        for _ in range(100):
            rows = self.some(len(z), draw)
            adam.zero_grad()
            F.cross_entropy(F.linear(z[rows], theta, b), start[rows]).backward()
            adam.step(0.01)
        return theta.detach(), b.detach()

    def improved(
        self, theta: Tensor, b: Tensor, z: Tensor, labels: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """θ after gradient descent on L."""
        settings = self.settings
        theta, b, w, c = (t.clone().requires_grad_() for t in (theta, b, theta, b))
        outer, inner = Adam([theta, b]), Adam([w, c])
        for _ in range(settings.steps):
            rows = self.some(len(z), draw)
            with torch.no_grad():
                tau = clamped(F.linear(z[rows], theta, b).softmax(dim=1), labels[rows])
            for _ in range(settings.inner_steps):
                inner.zero_grad()
                F.cross_entropy(F.linear(z[rows], w, c), tau).backward()
                inner.step(settings.lr)
            rows = self.some(len(z), draw)
            outer.zero_grad()
            logits, y = F.linear(z[rows], theta, b), labels[rows]
            with torch.no_grad():
                agreed = F.linear(z[rows], w, c).log_softmax(dim=1)
            turtle_loss(logits, agreed, y, settings.entropy_weight).backward()
            outer.step(settings.lr)
        return theta.detach(), b.detach()


def clamped(tau: Tensor, labels: Tensor) -> Tensor:
    """A labelling (n, C) with the labels that there are (n,)."""
    given = labels >= 0
    hard = F.one_hot(labels.clamp_min(0), tau.shape[1]).to(tau.dtype)
    return torch.where(given[:, None], hard, tau)


def turtle_loss(logits: Tensor, agreed: Tensor, labels: Tensor, entropy_weight: float) -> Tensor:
    """L of the labelling's logits (n, C), given log-probabilities of the classifier (n, C)."""
    tau = clamped(logits.softmax(dim=1), labels)
    share = tau.mean(dim=0).clamp_min(1e-9)
    loss = -(tau * agreed).sum(dim=1).mean() + entropy_weight * (share * share.log()).sum()
    given = labels >= 0
    return loss + F.cross_entropy(logits[given], labels[given]) if given.any() else loss


SYSTEM = System(
    no_recipe="its paper has features of other networks",
    name="turtle",
    about="frozen features and the labelling that a linear classifier learns best",
    paper="Gadetsky et al., Let Go of Your Labels with Unsupervised Transfer, ICML 2024",
    stages=(
        Stage(
            name="turtle",
            objective=None,
            settings=Settings,
            predictor=Turtle,
            backbone="none",
            frozen=True,
            evaluations=0,
        ),
    ),
)

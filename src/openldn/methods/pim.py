"""PIM (Chiaroni et al., ICCV 2023): parametric information maximisation on frozen features.

A linear classifier on fixed features maximises the mutual information of images and classes,

    L = CE(labelled) + H(class | image, unlabelled) − λ H(class),

so predictions are confident, and classes are of similar size as far as λ asks for it. The paper chooses λ by
how well labels are predicted; here these are labels held out, and λ is one of a few values. The start is
semi-supervised k-means. Features have unit length and are reduced to principal components.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.problem import UNLABELLED, Problem
from openldn.maths.k_means import semi_supervised
from openldn.maths.principal import principal_axes
from openldn.nets.classifier import Outputs
from openldn.nets.predictors import Infer, Predictor
from openldn.training.optimisers import Adam
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage, System

LAMBDAS = (0.5, 1.0, 2.0, 4.0)


class Settings(Hyperparameters):
    """Of PIM."""

    marginal_weight: float | None = None
    """λ, the weight of the entropy of class shares; by default the best of 0.5, 1, 2 and 4 on labels held
    out."""
    temperature: float = 0.1
    """Of the softmax."""
    lr: float = 0.01
    """Learning rate."""
    steps: int = 300
    """Steps of gradient descent, each on all images."""
    axes: int = 256
    """Principal components that are kept."""


class UnitFeatures(Predictor):
    """A linear classifier of features of unit length, reduced to principal components."""

    def reduced(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, a)"""
        return (F.normalize(x, dim=1) - self.state["mean"]) @ self.state["axes"]

    def logits(self, z: Tensor) -> Tensor:
        """Of reduced features (n, a).  (n, C)"""
        return F.linear(z, self.state["weight"], self.state["bias"])

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        d, a = state["axes"].shape
        n = n_known + n_novel
        return state["mean"].shape == (d,) and state["weight"].shape == (n, a) and state["bias"].shape == (n,)

    def probabilities(self, outputs: Outputs) -> Tensor:
        return self.logits(self.reduced(outputs.z)).softmax(dim=1)


class PIM(UnitFeatures):
    """Fits λ, then the classifier."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.settings = settings or Settings()

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        x, labels, n_known = infer(problem.images).z, problem.labels, problem.n_known
        mean, axes = principal_axes(F.normalize(x, dim=1), self.settings.axes)
        self.state = {"mean": mean, "axes": axes}
        z = self.reduced(x)
        weight = self.settings.marginal_weight
        if weight is None:
            kept, held_out = hold_out(labels, n_known, seed)
            right = []
            for candidate in LAMBDAS:
                self.state |= self.fitted(z, kept, n_known, problem.n_classes, candidate, seed)
                right.append(int((self.logits(z[held_out]).argmax(dim=1) == labels[held_out]).sum()))
            weight = LAMBDAS[int(np.argmax(right))]
        self.state |= self.fitted(z, labels, n_known, problem.n_classes, weight, seed)

    def fitted(
        self, z: Tensor, labels: Tensor, n_known: int, n_classes: int, marginal_weight: float, seed: int
    ) -> dict[str, Tensor]:
        """Weight and bias after gradient descent on L."""
        scale = 1 / self.settings.temperature
        centres = semi_supervised(z, labels, n_known, n_classes, seed, starts=3)
        w = (scale * F.normalize(centres, dim=1)).requires_grad_()
        b = torch.zeros(n_classes).requires_grad_()
        z = F.normalize(z, dim=1)
        adam, given = Adam([w, b], [scale, 1.0]), labels >= 0
        for _ in range(self.settings.steps):
            adam.zero_grad()
            log_p = F.linear(z, w, b).log_softmax(dim=1)
            loss = pim_loss(log_p, labels, given, marginal_weight)
            loss.backward()
            adam.step(self.settings.lr)
        return {"weight": w.detach(), "bias": b.detach()}

    def logits(self, z: Tensor) -> Tensor:
        return super().logits(F.normalize(z, dim=1))


def pim_loss(log_p: Tensor, labels: Tensor, given: Tensor, marginal_weight: float) -> Tensor:
    """L of log-probabilities (n, C)."""
    p = log_p.exp()
    share = p.mean(dim=0)
    conditional = -(p * log_p)[~given].sum(dim=1).mean()
    marginal = -(share * share.clamp_min(1e-9).log()).sum()
    return F.nll_loss(log_p[given], labels[given]) + conditional - marginal_weight * marginal


def hold_out(labels: Tensor, n_known: int, seed: int, share: float = 0.2) -> tuple[Tensor, Tensor]:
    """Labels without a share of them, and the rows of those; each class keeps at least one.

    (n,) -> (n,), (m,)
    """
    rng = np.random.default_rng([seed, 0x914])
    rows = list[int]()
    for k in range(n_known):
        of_class = rng.permutation(torch.nonzero(labels == k).flatten().numpy())
        rows += of_class[: min(round(share * len(of_class)), len(of_class) - 1)].tolist()
    kept, held_out = labels.clone(), torch.tensor(rows, dtype=torch.int64)
    kept[held_out] = UNLABELLED
    return kept, held_out


SYSTEM = System(
    no_recipe="its paper has features of other networks",
    name="pim",
    about="frozen features and a linear classifier that maximises mutual information",
    paper="Chiaroni et al., Parametric Information Maximization for Generalized Category Discovery, ICCV "
    "2023",
    stages=(
        Stage(
            name="pim",
            objective=None,
            settings=Settings,
            predictor=PIM,
            backbone="none",
            frozen=True,
            evaluations=0,
        ),
    ),
)

"""Whitened clustering of frozen features: docs/frozen-features.md.

1. Space: features of unit length, whitened by the within-class covariance of the labelled images. What
   differs within known classes is turned down, and so within novel ones.
2. Start: Ward's clustering in that space, with labels kept. It has no random start.
3. Mixture: soft k-means on the unit sphere (a mixture of von Mises-Fisher distributions), with labels kept.
   Class shares are drawn towards the class prior.

    x (n, d)   features           z (n, a)   the same in the new space
    q (n, C)   responsibilities: probabilities of classes
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.problem import Problem
from openldn.maths.principal import principal_axes
from openldn.maths.priors import leaning
from openldn.maths.ward import ward
from openldn.nets.classifier import Outputs
from openldn.nets.predictors import Infer, Predictor
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage, System


class Settings(Hyperparameters):
    """Of whitened clustering."""

    axes: int = 512
    """Principal axes of the features that are kept."""
    ridge: float = 100.0
    """Shrinkage of the within-class covariance: as if so many images more had an isotropic one."""
    sharpness: float = 25.0
    """Of the mixture: log-odds per unit of cosine similarity."""
    balance: float | None = None
    """How far class shares are drawn towards the prior: 0 not at all, 1 wholly; by default as far as the
    numbers of labelled images are even."""
    rounds: int = 30
    """Rounds of the mixture."""
    start_images: int = 6000
    """Ward's clustering sees a sample of at most so many unlabelled images."""


class WhitenedClustering(Predictor):
    """The fitted mixture; its state is the space, the centres and the biases of the classes."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.settings = settings or Settings()

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        x, labels = infer(problem.images).z, problem.labels
        self.state = space(x, labels, self.settings)
        self.state["sharpness"] = torch.tensor(self.settings.sharpness)
        z = in_space(x, self.state)
        start = sample(labels, self.settings.start_images, seed)
        first = labels.clone()
        first[start] = ward(z[start], labels[start], problem.n_known, problem.n_classes)
        balance = self.settings.balance
        if balance is None:
            balance = evenness(labels, problem.n_classes)
        centres, bias = mixture(z, labels, first, problem.class_prior(), balance, self.settings)
        self.state |= {"centres": centres, "bias": bias}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        n = n_known + n_novel
        d, a = state["map"].shape
        return (
            state["mean"].shape == state["centre"].shape == (d,)
            and state["centres"].shape == (n, a)
            and state["bias"].shape == (n,)
            and state["sharpness"].numel() == state["root"].numel() == 1
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        z = in_space(outputs.z, self.state)
        logits = self.state["sharpness"] * z @ self.state["centres"].T + self.state["bias"]
        return logits.softmax(dim=1)


# --------------------------------------------------------------------------------------------- space


def space(x: Tensor, labels: Tensor, settings: Settings) -> dict[str, Tensor]:
    """What `in_space` needs, learned from features x (n, d) and labels (n,)."""
    root = (x >= 0).all()  # as averages of a ReLU are: their square root is less skewed
    u = _unit(x, root)
    mean = u.mean(dim=0)
    z = F.normalize(u - mean, dim=1)
    centre, axes = principal_axes(z, settings.axes)
    given = labels >= 0
    whitening = within_class_whitening((z[given] - centre) @ axes, labels[given], settings.ridge)
    return {"root": root, "mean": mean, "centre": centre, "map": axes @ whitening}


def in_space(x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Features (n, d) -> unit rows in the new space (n, a)."""
    z = F.normalize(_unit(x, state["root"]) - state["mean"], dim=1)
    return F.normalize((z - state["centre"]) @ state["map"], dim=1)


def _unit(x: Tensor, root: Tensor) -> Tensor:
    return F.normalize(x.clamp_min(0).sqrt() if bool(root) else x, dim=1)


def within_class_whitening(z: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The linear map after which the shrunk within-class covariance is the identity.

    (n, a), (n,) -> (a, a)
    """
    classes, y = y.unique(return_inverse=True)
    counts = torch.bincount(y).to(z.dtype)
    means = z.new_zeros(len(classes), z.shape[1]).index_add_(0, y, z) / counts[:, None]
    rest, degrees = z - means[y], max(len(z) - len(classes), 0)  # of freedom
    scatter = rest.T @ rest
    variance = float(scatter.trace()) / max(degrees, 1) / z.shape[1]
    if variance <= 0:  # with one labelled image per class nothing can be measured
        return torch.eye(z.shape[1])
    covariance = (scatter + ridge * variance * torch.eye(z.shape[1])) / (degrees + ridge)
    values, vectors = torch.linalg.eigh(covariance.double())
    whitening: Tensor = vectors / values.clamp_min(1e-12).sqrt()
    return whitening.to(z.dtype)


# ------------------------------------------------------------------------------------------- mixture


def mixture(
    z: Tensor, labels: Tensor, first: Tensor, prior: Tensor, balance: float, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Centres (C, a) and biases (C,) of unit rows z (n, a), from first classes (n,), -1 for none."""
    given, given_q = labels >= 0, one_hot(labels, len(prior))
    q, bias = one_hot(first, len(prior)), torch.zeros_like(prior)
    for _ in range(settings.rounds):
        sums = q.T @ z
        # An image is judged by centres without itself: else, if classes are small, it stays where it is.
        along = z @ sums.T
        length = (sums.square().sum(dim=1) - 2 * q * along + q.square()).clamp_min(1e-6).sqrt()
        logits = settings.sharpness * (along - q) / length
        bias = leaning(logits[~given], prior, balance, bias)
        q = torch.where(given[:, None], given_q, (logits + bias).softmax(dim=1))
    return F.normalize(q.T @ z, dim=1), bias


def evenness(labels: Tensor, n_classes: int) -> float:
    """How far equal class sizes can be trusted, from 0 to 1, judged by the numbers of labelled images.

    If the sizes of classes have a relative variance v, the expectation of a size weighs as much as 1 / v
    images, against the m that are seen: 1 / (1 + m v). v is what the labelled numbers vary beyond chance
    (Poisson). It is 1 where labels were drawn evenly, and near 0 where they follow a long tail.
    """
    counts = torch.bincount(labels[labels >= 0]).double()
    counts = counts[counts > 0]
    if len(counts) < 2:
        return 1.0
    mean = float(counts.mean())
    v = max(0.0, float(counts.var()) / mean**2 - 1 / mean)
    return 1 / (1 + int((labels < 0).sum()) / n_classes * v)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Rows of zeros where there is no label.  (n,) -> (n, C)"""
    return (labels[:, None] == torch.arange(n_classes)).float()


def sample(labels: Tensor, most: int, seed: int) -> Tensor:
    """All labelled rows, and at most so many others."""
    free = torch.nonzero(labels < 0).flatten()
    if len(free) > most:
        chosen = np.random.default_rng([seed, 0xAD]).permutation(len(free))[:most]
        free = free[torch.from_numpy(chosen)]
    return torch.cat([torch.nonzero(labels >= 0).flatten(), free])


CLUSTERING = Stage(
    name="whitened-clustering",
    objective=None,
    settings=Settings,
    predictor=WhitenedClustering,
    backbone="none",
    frozen=True,
    evaluations=0,
)
SYSTEM = System(
    name="whitened-clustering",
    about="frozen features, whitened by labelled images, Ward's clustering, then a mixture",
    paper="ours (docs/frozen-features.md)",
    stages=(CLUSTERING,),
)

"""A mixture of classes on the unit sphere, in a space that is whitened by labelled images.

Letters: features x (n, d), the same in the new space z (n, a), responsibilities q (n, C), which are
probabilities of classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.maths.principal import eigh, principal_axes
from openldn.maths.priors import leaning

# --------------------------------------------------------------------------------------------- space


def space(x: Tensor, labels: Tensor, axes: int, ridge: float) -> dict[str, Tensor]:
    """What `in_space` needs, learned from features x (n, d) and labels (n,).

    At most `axes` principal axes are kept. `ridge` shrinks the covariance: see `within_class_whitening`.
    """
    root = (x >= 0).all()  # as averages of a ReLU are: their square root is less skewed
    u = _unit(x, root)
    mean = u.mean(dim=0)
    z = F.normalize(u - mean, dim=1)
    centre, directions = principal_axes(z, axes)
    given = labels >= 0
    whitening = within_class_whitening((z[given] - centre) @ directions, labels[given], ridge)
    return {"root": root, "mean": mean, "centre": centre, "map": directions @ whitening}


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
    values, vectors = eigh(covariance)
    whitening: Tensor = vectors / values.clamp_min(1e-12).sqrt()
    return whitening.to(z.dtype)


# ------------------------------------------------------------------------------------------- mixture


class Mixture(NamedTuple):
    """Centres (C, a) and biases (C,) of classes, and how well unlabelled images fit their best class."""

    centres: Tensor
    bias: Tensor
    quality: float  # mean log-likelihood, up to a constant; no bias, centres without the image


def mixture(
    z: Tensor,
    labels: Tensor,
    first: Tensor,
    prior: Tensor,
    balance: float,
    sharpness: float = 25.0,
    rounds: int = 30,
) -> Mixture:
    """The mixture of unit rows z (n, a), from first classes (n,), -1 for none."""
    given, given_q = labels >= 0, one_hot(labels, len(prior))
    q, bias = one_hot(first, len(prior)), torch.zeros_like(prior)
    for _ in range(rounds):
        sums = q.T @ z
        # An image is judged by centres without itself: else, if classes are small, it stays where it is.
        along = z @ sums.T
        length = (sums.square().sum(dim=1) - 2 * q * along + q.square()).clamp_min(1e-6).sqrt()
        logits = sharpness * (along - q) / length
        bias = leaning(logits[~given], prior, balance, bias)
        q = torch.where(given[:, None], given_q, (logits + bias).softmax(dim=1))
    return Mixture(F.normalize(q.T @ z, dim=1), bias, float(logits[~given].amax(dim=1).mean()))


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

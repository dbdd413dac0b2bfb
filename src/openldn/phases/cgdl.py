"""CGDL (Sun et al., CVPR 2020), slim: a ladder VAE whose latents are Gaussian around a mean for each class.

Labelled images alone. The authors' network is one of 275 million weights for 32-pixel images; here three
levels of vectors stand on the features of the backbone that all systems share, and two linear layers give the
image back, at no more than 32 pixels. The losses are the paper's:

    reconstruction + Σ_l KL(q_l ‖ p_l) + KL(q_top ‖ N(μ_y, 1)) + 100 cross-entropy

An image is known if it is dense enough under the Gaussian of some class (`predictors`); how dense is enough
is set by the share of novel images one expects, for this system as for the others.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier
from openldn.nets.heads import Ladder
from openldn.phases.training import Method

LARGEST = 32  # pixels that are given back
Gaussian = tuple[Tensor, Tensor]  # mean and log-variance, (n, k) each


class CGDL(Method):
    """What the ladder needs beside the way up, which is the network's head."""

    name = "cgdl"
    composition = "labelled"
    weight = 100.0  # of the cross-entropy

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        head = network.head
        assert isinstance(head, Ladder)
        k, (_, channels, _, size) = head.width, problem.images.shape
        self.size = min(size, LARGEST)
        self.of_class = nn.Linear(problem.n_known, k, bias=False)  # μ_y
        self.up = nn.ModuleList(
            nn.Linear(k, 2 * k) for _ in range(2)
        )  # q of the two lower levels, from below
        self.down = nn.ModuleList(nn.Linear(k, 2 * k) for _ in range(2))  # p of them, from above
        self.back = nn.Sequential(
            nn.Linear(k, 4 * k), nn.ReLU(), nn.Linear(4 * k, channels * self.size**2), nn.Sigmoid()
        )

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        (x,), y, head = batch.x, batch.y, network.head
        assert isinstance(head, Ladder)
        *lower, top = head.climb(network.trunk(x))
        q = head.mean(top), head.log_variance(top).clamp(-8, 8)
        mu_y = self.of_class(F.one_hot(y, self.of_class.in_features).to(x.dtype))
        kl = divergence(q, (mu_y, torch.zeros_like(mu_y)))
        z = sample(q)
        ce = F.cross_entropy(head(z), y)
        for level, up, down in zip(reversed(lower), self.up, self.down, strict=True):
            p = gaussian(down(z))
            q = product(gaussian(up(level)), p)
            kl, z = kl + divergence(q, p), sample(q)
        x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        rebuilt = (self.back(z) - x.flatten(1)).square().sum(dim=1)
        # All over the weight of the cross-entropy, so that a step is as long as other systems'.
        return {"labelled": ce, "ladder": kl.mean() / self.weight, "rebuilt": rebuilt.mean() / self.weight}


def gaussian(both: Tensor) -> Gaussian:
    """Mean and log-variance out of one tensor (n, 2k)."""
    mean, log_variance = both.chunk(2, dim=1)
    return mean, log_variance.clamp(-8, 8)


def product(a: Gaussian, b: Gaussian) -> Gaussian:
    """Two opinions of one thing: each weighs as much as it is precise."""
    precise = (-a[1]).exp(), (-b[1]).exp()
    total = precise[0] + precise[1]
    return (precise[0] * a[0] + precise[1] * b[0]) / total, -total.log()


def divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) of diagonal Gaussians.  (n,)"""
    ratio = (q[1] - p[1]).exp()
    shift = (q[0] - p[0]).square() * (-p[1]).exp()
    return 0.5 * (ratio + shift - 1 - (q[1] - p[1])).sum(dim=1)


def sample(q: Gaussian) -> Tensor:
    """One draw for each row, through which gradients pass."""
    return q[0] + (0.5 * q[1]).exp() * torch.randn_like(q[0])

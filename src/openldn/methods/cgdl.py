"""CGDL (Sun et al., CVPR 2020), slim: a ladder VAE whose latents are Gaussian around a mean for each class.

Labelled images alone. The authors' network has 275 million weights for 32-pixel images; here three levels of
vectors stand on the backbone that all systems share, and two linear layers reconstruct the image, at no more
than 32 pixels. The losses are the paper's:

    reconstruction + Σ_l KL(q_l ‖ p_l) + KL(q_top ‖ N(μ_y, 1)) + 100 cross-entropy

An image is known if its density under the Gaussian of some known class is high enough. The threshold follows
from the expected share of novel images, as for all systems that reject.
"""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier, Outputs
from openldn.nets.heads import Head
from openldn.nets.predictors import RejectAndCluster
from openldn.training.schedules import Composition, labelled_alone
from openldn.training.settings import RejectingSettings
from openldn.training.stage import Losses, Objective, Stage, System

LARGEST = 32  # pixels of reconstructions
Gaussian = tuple[Tensor, Tensor]  # mean and log-variance, (n, k) each


class Settings(RejectingSettings):
    """Of CGDL."""

    ce_weight: float = 100.0
    """Weight of the cross-entropy beside reconstruction and divergences."""


class Ladder(Head):
    """Three levels up to the mean of a latent, and known classes from there. Features are that mean."""

    def __init__(self, d: int, n_outputs: int, n_known: int, width: int = 64):
        super().__init__(d, n_outputs)
        self.width = width
        self.levels = nn.ModuleList(
            nn.Sequential(nn.Linear(below, width), nn.BatchNorm1d(width), nn.ReLU())
            for below in (d, width, width)
        )
        self.mean, self.log_variance = nn.Linear(width, width), nn.Linear(width, width)
        self.classes = nn.Linear(width, n_outputs)

    def climb(self, z: Tensor) -> list[Tensor]:
        """The output of each level."""
        found = []
        for level in self.levels:
            z = level(z)
            found.append(z)
        return found

    def features(self, z: Tensor) -> Tensor:
        """The latent's mean, of the backbone's features."""
        mean: Tensor = self.mean(self.climb(z)[-1])
        return mean

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.classes(z)
        return logits


class CGDL(Objective):
    """The way down the ladder; the way up is the network's head."""

    settings: Settings

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        head = network.head
        assert isinstance(head, Ladder)
        k, (_, channels, _, size) = head.width, problem.images.shape
        self.size = min(size, LARGEST)
        self.of_class = nn.Linear(problem.n_known, k, bias=False)  # μ_y
        # q of the two lower levels, from below; p of them, from above.
        self.up = nn.ModuleList(nn.Linear(k, 2 * k) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(k, 2 * k) for _ in range(2))
        self.reconstruct = nn.Sequential(
            nn.Linear(k, 4 * k), nn.ReLU(), nn.Linear(4 * k, channels * self.size**2), nn.Sigmoid()
        )

    def composition(self) -> Composition:
        return labelled_alone(self.problem, self.settings.batch)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
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
        error = (self.reconstruct(z) - x.flatten(1)).square().sum(dim=1)
        # All divided by the weight of the cross-entropy, so that steps are as long as other systems'.
        weight = self.settings.ce_weight
        return {"labelled": ce, "divergence": kl.mean() / weight, "reconstruction": error.mean() / weight}


def gaussian(both: Tensor) -> Gaussian:
    """Mean and log-variance from one tensor (n, 2k)."""
    mean, log_variance = both.chunk(2, dim=1)
    return mean, log_variance.clamp(-8, 8)


def product(a: Gaussian, b: Gaussian) -> Gaussian:
    """The product of two Gaussians, each weighted by its precision."""
    precision = (-a[1]).exp(), (-b[1]).exp()
    total = precision[0] + precision[1]
    return (precision[0] * a[0] + precision[1] * b[0]) / total, -total.log()


def divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) of diagonal Gaussians.  (n,)"""
    ratio = (q[1] - p[1]).exp()
    shift = (q[0] - p[0]).square() * (-p[1]).exp()
    return 0.5 * (ratio + shift - 1 - (q[1] - p[1])).sum(dim=1)


def sample(q: Gaussian) -> Tensor:
    """A reparametrised draw for each row."""
    return q[0] + (0.5 * q[1]).exp() * torch.randn_like(q[0])


def class_gaussians(outputs: Outputs, y: Tensor, n_known: int, shrink: float = 0.1) -> dict[str, Tensor]:
    """Mean (K, d) and precision (K, d, d) of each class's correctly classified features."""
    z, logits = outputs.z, outputs.logits
    right = logits[:, :n_known].argmax(dim=1) == y
    means, precision = [], []
    for k in range(n_known):
        of_class = z[(y == k) & right]
        of_class = (of_class if len(of_class) > 1 else z[y == k]).double()
        within = of_class - of_class.mean(dim=0)
        scatter = within.T @ within / max(1, len(within))
        scatter += (shrink * scatter.diagonal().mean() + 1e-6) * torch.eye(z.shape[1])
        means.append(of_class.mean(dim=0).float())
        precision.append(torch.linalg.inv(scatter).float())
    return {"means": torch.stack(means), "precision": torch.stack(precision)}


def log_density(outputs: Outputs, state: Mapping[str, Tensor]) -> Tensor:
    """The largest log-density among the known classes, up to a constant.  (n,)"""
    density = []
    for mean, precision in zip(state["means"], state["precision"], strict=True):
        apart = outputs.z - mean
        squared = ((apart @ precision) * apart).sum(dim=1)
        density.append(0.5 * (torch.linalg.slogdet(precision)[1] - squared))
    return torch.stack(density).amax(dim=0)


SYSTEM = System(
    no_recipe="its ladder is slim here and stands on a shared backbone",
    name="cgdl",
    about="CGDL on the known classes (slim, on the shared backbone), k-means on the images of low density",
    paper="Sun et al., Conditional Gaussian Distribution Learning for Open Set Recognition, CVPR 2020",
    stages=(
        Stage(
            needs_images=True,
            name="cgdl",
            objective=CGDL,
            settings=Settings,
            outputs="known",
            head=Ladder,
            predictor=partial(
                RejectAndCluster,
                score=log_density,
                fit_score=class_gaussians,
                score_state=("means", "precision"),
            ),
        ),
    ),
)

"""DTC (Han, Vedaldi and Zisserman, ICCV 2019): deep transfer clustering.

After supervised training. Features of unlabelled images are reduced by PCA to as many dimensions as there are
classes and clustered by k-means; both become the head. From then on

    q_ik ∝ 1 / (1 + ‖e_i − μ_k‖²),   t_ik ∝ q_ik² / Σ_i q_ik,   L = KL(t ‖ q) + w(t) ‖q − q'‖²

where q and q' are of two weak views. In the warm-up targets t stay those of k-means; then they are renewed.
Labels are not used any more, and clusters come in no order.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.maths.k_means import k_means
from openldn.methods import supervised
from openldn.nets.classifier import Classifier, Predict, infer
from openldn.nets.heads import Head
from openldn.nets.predictors import Aligned
from openldn.training import settings
from openldn.training.schedules import sigmoid_ramp
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of DTC."""

    # 10 epochs of warm-up and 100 more. The authors' rate is 0.1 in the warm-up.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 110.0,
        "batch": 128,
        "lr": 0.05,
        "schedule": "constant",
        "optimiser": "sgd",
        "l2": 1e-4,
        "warm_up": 10 / 110,
        "ramp_length": 5 / 110,
        "refreshes": 22,
    }
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {
            "epochs": 130.0,
            "l2": 1e-5,
            "warm_up": 30 / 130,
            "ramp_length": 5 / 130,
            "refreshes": 13,
        }
    }

    warm_up: float = 0.1
    """Share of the stage during which targets stay as k-means made them."""
    consistency: float = 10.0
    """Weight of the consistency of two views at the end, the authors' choice for CIFAR-10."""
    ramp_length: float = 0.05
    """Share of the stage over which that weight grows, after the warm-up."""
    refreshes: int = 20
    """How often targets are renewed, evenly over the stage."""


class StudentClusters(Head):
    """Student's t around centres in a space of as many dimensions; its softmax is ∝ 1 / (1 + ‖e − μ‖²)."""

    def __init__(self, d: int, n_outputs: int, n_known: int = 0):
        super().__init__(d, n_outputs)
        self.embed = nn.Linear(d, n_outputs)
        self.centres = nn.Parameter(torch.randn(n_outputs, n_outputs))

    def forward(self, z: Tensor) -> Tensor:
        squared = (self.embed(z)[:, None] - self.centres).square().sum(dim=2)
        return -torch.log1p(squared)


class DTC(Objective):
    """With consistency of two views."""

    labelled_views = ()
    unlabelled_views = ("weak", "weak")
    refresh_at_start = True
    settings: Settings
    targets: Tensor

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        # t of every image; those of labelled ones are not used.
        self.register_buffer("targets", torch.zeros(len(problem.images), network.head.out_features))

    @torch.no_grad()
    def begin(self, network: Classifier, previous: Predict | None) -> None:
        """Clusters, and targets by them."""
        assert isinstance(network.head, StudentClusters)
        z = infer(network, Part(self.problem.images, self.problem.unlabelled)).z
        start(network.head, z)
        self.renew(network.head(z.to(self.targets)))

    def refresh(self, average: Classifier, progress: float) -> None:
        """New targets after the warm-up."""
        if progress and progress >= self.settings.warm_up:
            self.renew(infer(average, Part(self.problem.images, self.problem.unlabelled)).logits)

    def renew(self, logits: Tensor) -> None:
        """Targets from logits of all unlabelled images."""
        self.targets[self.problem.unlabelled] = sharper(logits.softmax(dim=1)).to(self.targets)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        log_q, log_other = network(torch.cat(batch.u)).logits.log_softmax(dim=1).chunk(2)
        t = self.targets[batch.rows.to(self.targets.device)]
        # Consistency starts after the warm-up.
        warm, ramp = self.settings.warm_up, self.settings.ramp_length
        weight = self.settings.consistency * sigmoid_ramp(progress - warm, ramp) if progress >= warm else 0.0
        return {
            # The mean is over images and classes, as the authors' is.
            "unlabelled": F.kl_div(log_q, t, reduction="sum") / t.numel(),
            "consistency": weight * F.mse_loss(log_q.exp(), log_other.exp()),
        }


def start(head: StudentClusters, z: Tensor, starts: int = 20) -> None:
    """Makes PCA and k-means of features z (n, d) the head."""
    k = head.out_features
    mean = z.mean(dim=0)
    _, _, directions = torch.linalg.svd((z - mean).double(), full_matrices=False)
    directions = directions[:k].float()  # (up to k, d)
    e = (z - mean) @ directions.T
    # Student's t is flat where clusters are wide: distances are scaled by the clusters' spread.
    seed = int(torch.randint(2**31, ()))
    centres, clusters = k_means(e, min(k, len(e)), seed, starts)
    scale = max(float((e - centres[clusters]).square().mean().sqrt()), 1e-6)
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
        head.embed.weight[: len(directions)] = directions / scale
        head.embed.bias.copy_(-head.embed.weight @ mean.to(head.embed.weight))
        head.centres[: len(centres), : len(directions)] = centres.to(head.centres) / scale


def sharper(q: Tensor) -> Tensor:
    """t: sharper than q, and less of it for large clusters.  (n, K) -> (n, K)"""
    t = q.square() / q.sum(dim=0).clamp_min(1e-8)
    return t / t.sum(dim=1, keepdim=True)


SYSTEM = System(
    name="dtc",
    about="supervised training, then DTC",
    paper="Han, Vedaldi and Zisserman, Learning to Discover Novel Visual Categories via DTC, ICCV 2019",
    stages=(
        supervised.PRETRAINING,
        Stage(
            name="dtc",
            objective=DTC,
            settings=Settings,
            share=0.7,
            head=StudentClusters,
            predictor=Aligned,
            continues=True,
        ),
    ),
)

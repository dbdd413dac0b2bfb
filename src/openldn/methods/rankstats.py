"""RankStats, also AutoNovel (Han et al., ICLR 2020): images with the same strongest features are one class.

After SimCLR and supervised training. One head predicts the known classes, the other (the network's own) all
classes, in no order: p1 and p2. Two weak views, x and x'.

    s_ij = 1 if x_i and x_j have the same top-k features
    L = CE(p1, labelled) + BCE(p2(x_i) · p2(x'_j), s_ij) + w(t) (‖p1 − p1'‖² + ‖p2 − p2'‖²)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.methods import simclr, supervised
from openldn.nets.classifier import Classifier
from openldn.nets.predictors import Aligned
from openldn.training import settings
from openldn.training.schedules import sigmoid_ramp
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of RankStats."""

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 200.0,
        "batch": 128,
        "lr": 0.1,
        "schedule": "steps",
        "optimiser": "sgd",
        "l2": 1e-4,
    }
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"consistency": 50.0, "ramp_until": 0.75}
    }

    top_k: int = 5
    """Number of strongest features that are compared."""
    consistency: float = 5.0
    """Weight of the consistency of two views at the end."""
    ramp_until: float = 0.25
    """Share of the stage over which that weight grows."""


class RankStats(Objective):
    """All but the last stage of the backbone stays as SimCLR made it."""

    labelled_views = unlabelled_views = ("weak", "weak")
    settings: Settings

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        network.freeze_early(problem.images.shape[1], problem.size)
        self.known = nn.Linear(network.head.in_features, problem.n_known)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        y, l = batch.y, len(batch.y)  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        known = self.known(z)
        p1, q1 = known.softmax(dim=1).chunk(2)
        p2, q2 = logits.softmax(dim=1).chunk(2)
        s = same_top_k(z[l : len(one)], self.settings.top_k)
        consistency = F.mse_loss(p1, q1) + F.mse_loss(p2, q2)
        weight = self.settings.consistency * sigmoid_ramp(progress, self.settings.ramp_until)
        return {
            "labelled": F.cross_entropy(known[:l], y),
            "unlabelled": pair_loss(p2[l:], q2[l:], s),
            "consistency": weight * consistency,
        }


def same_top_k(z: Tensor, k: int = 5) -> Tensor:
    """Whether two rows have the same set of k largest features, in any order.  (n, d) -> (n, n), 0 or 1"""
    k = min(k, z.shape[1])
    top = torch.zeros_like(z, requires_grad=False).scatter(1, z.detach().topk(k, dim=1).indices, 1.0)
    return (top @ top.T > k - 0.5).to(z.dtype)


def pair_loss(p: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """Binary cross-entropy of "one class" over all pairs, across views.  (n, C), (n, C), (n, n) -> ()"""
    together = (p @ q.T).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(together, s)


SYSTEM = System(
    name="rankstats",
    about="SimCLR, supervised training, then RankStats",
    paper="Han et al., Automatically Discovering New Visual Categories with Ranking Statistics, ICLR 2020",
    stages=(
        simclr.PRETRAINING,
        replace(supervised.PRETRAINING, objective=supervised.last_stage_alone, share=0.1, continues=True),
        Stage(
            name="rankstats",
            objective=RankStats,
            settings=Settings,
            share=0.4,
            predictor=Aligned,
            continues=True,
        ),
    ),
)

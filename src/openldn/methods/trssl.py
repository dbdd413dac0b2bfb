"""TRSSL (Rizve et al., ECCV 2022), by OpenLDN's authors: Sinkhorn pseudo-labels, softer where uncertain.

Two views of unlabelled images; each learns the Sinkhorn pseudo-label of the other. All rows go through mixup,
with their labels and their temperatures. An image's temperature is its uncertainty, how much the averaged
network's prediction varies with the view, relative to the largest.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.draws import keys_of
from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.maths.losses import mixup
from openldn.maths.priors import SinkhornQueue
from openldn.nets.classifier import Classifier, evaluating
from openldn.nets.heads import Cosine
from openldn.training import settings
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of TRSSL."""

    # 200 x 1024 steps of 256 images.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.0,
        "least_images": 200 * 1024 * 192,
        "batch": 256,
        "lr": 0.1,
        "schedule": "warm-up-cosine",
        "optimiser": "sgd",
        "l2": 1e-4,
        "uncertainty_views": 10,
        "refreshes": 200,
    }

    mixup: float = 0.75
    """Beta parameter of mixup; 0 is none."""
    uncertainty_views: int = 5
    """Views by which an image's uncertainty is measured."""
    refreshes: int = 4
    """How often uncertainties are measured, evenly over the stage."""
    ema_share: float = 0.05
    """Horizon of the moving average, as a share of the stage."""


class TRSSL(Objective):
    """From scratch, with prototypes."""

    labelled_views = ("crop_jitter",)
    unlabelled_views = ("crop_jitter", "crop_jitter")
    averaged = True
    settings: Settings
    temperatures: Tensor

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        self.register_buffer("temperatures", torch.full((len(problem.images),), Cosine.temperature))
        self.sinkhorn = SinkhornQueue(problem.n_classes)
        self.refresh_passes = float(settings.uncertainty_views)

    @torch.no_grad()
    def refresh(self, average: Classifier, progress: float) -> None:
        """New temperatures."""
        problem, n_views = self.problem, self.settings.uncertainty_views
        rows, device = problem.unlabelled, next(average.parameters()).device
        spread, seed = [], int(torch.randint(2**31, ()))
        at_once = max(1, 2**21 // (n_views * math.prod(problem.images.shape[1:])))
        with evaluating(average):
            for part in rows.split(at_once):
                keys = keys_of(seed, part.numpy())
                made = views(
                    problem.images[part], ("crop_jitter",) * n_views, problem.flip, keys, problem.crop
                )
                p = torch.stack([average(view.to(device)).logits.softmax(dim=1) for view in made])
                chosen = p.mean(dim=0).argmax(dim=1)
                spread.append(p[:, torch.arange(len(part)), chosen].std(dim=0))
        uncertainty = torch.cat(spread)
        scaled = (uncertainty / uncertainty.max().clamp_min(1e-8)).clamp(Cosine.temperature, 1.0)
        self.temperatures[rows.to(device)] = scaled

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        (x,), (u1, u2), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        with torch.no_grad():
            o1, o2 = (Cosine.temperature * network(torch.cat([u1, u2])).logits).chunk(2)
            t1, t2 = (hardened(self.sinkhorn(o), self.problem.n_known) for o in (o2, o1))
        y = F.one_hot(batch.y, o1.shape[1]).to(x.dtype)
        own = self.temperatures[batch.rows.to(self.temperatures.device)]
        given = self.temperatures.new_full((l,), Cosine.temperature)
        rows, targets = torch.cat([x, u1, u2]), torch.cat([y, t1, t2])
        temperatures = torch.cat([given, own, own])
        rows, targets, temperatures = mixup(self.settings.mixup, rows, targets, temperatures, own=False)
        logits = Cosine.temperature * network(rows).logits / temperatures[:, None]
        each = F.cross_entropy(logits, targets, reduction="none")
        return {"labelled": each[:l].sum() / len(each), "unlabelled": each[l:].sum() / len(each)}

    def diagnostics(self) -> dict[str, float]:
        return {"temperature": float(self.temperatures.mean())}


def hardened(targets: Tensor, n_known: int) -> Tensor:
    """Rows with a novel class of probability at least one half become one-hot.  (n, C) -> (n, C)"""
    likely, chosen = targets[:, n_known:].max(dim=1)
    one_hot = F.one_hot(n_known + chosen, targets.shape[1]).to(targets.dtype)
    return torch.where((likely >= 0.5)[:, None], one_hot, targets)


SYSTEM = System(
    name="trssl",
    about="TRSSL, from scratch",
    paper="Rizve, Kardan and Shah, Towards Realistic Semi-Supervised Learning, ECCV 2022",
    stages=(Stage(name="trssl", objective=TRSSL, settings=Settings, head=Cosine),),
)

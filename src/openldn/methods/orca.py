"""ORCA (Cao, Brbić and Leskovec, ICLR 2022): known classes are held back until novel ones have caught up.

After SimCLR. Two weak views of every image; p and p' are their predictions.

    L_S = cross-entropy with the true logit raised by s ū       a negative margin: less is asked of known
    L_P = −mean log p_i · p'_m(i)                                classes while the network is uncertain (ū)
    R   = −H(mean p)                                             of unlabelled images
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.maths.losses import cosine, entropy_loss
from openldn.methods import simclr
from openldn.nets.classifier import Classifier, infer
from openldn.nets.heads import Cosine
from openldn.training import settings
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of ORCA."""

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 200.0,
        "batch": 512,
        "lr": 0.1,
        "schedule": "steps",
        "optimiser": "sgd",
        "l2": 5e-4,
        "refreshes": 200,
    }
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet-100": {"epochs": 90.0, "l2": 1e-4, "refreshes": 90}
    }

    margin: float = 1.0
    """Largest negative margin, as a cosine: it is multiplied by the uncertainty."""
    pair_weight: float = 1.0
    """Weight of the pairwise loss."""
    entropy_weight: float = 1.0
    """Weight of the entropy term."""
    refreshes: int = 20
    """How often the uncertainty is measured on all unlabelled images, evenly over the stage."""


class ORCA(Objective):
    """All but the last stage of the backbone stays as SimCLR made it."""

    labelled_views = unlabelled_views = ("weak", "weak")
    refresh_at_start = True
    settings: Settings
    uncertainty: Tensor

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        network.freeze_early(problem.images.shape[1], problem.size)
        self.register_buffer("uncertainty", torch.tensor(0.5))

    def refresh(self, average: Classifier, progress: float) -> None:
        """ū: one minus the mean confidence on unlabelled images."""
        p = infer(average, Part(self.problem.images, self.problem.unlabelled)).logits.softmax(dim=1)
        self.uncertainty.copy_((1 - p.amax(dim=1).mean()).clamp_max(0.5))

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        y, l = batch.y, len(batch.y)  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        z, logits = z[: len(one)], logits.view(2, len(one), -1)
        p, q = logits.softmax(dim=2)
        agreement = (p * q[partners(z, y)]).sum(dim=1)
        return {
            "labelled": margin_loss(logits[0, :l], y, self.settings.margin * self.uncertainty),
            "unlabelled": self.settings.pair_weight * -agreement.clamp_min(1e-8).log().mean(),
            "entropy": self.settings.entropy_weight * entropy_loss(p),
        }

    def diagnostics(self) -> dict[str, float]:
        return {"uncertainty": float(self.uncertainty)}


def margin_loss(logits: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """L_S: cross-entropy with a negative margin, in units of the cosine."""
    raised = 1 / Cosine.temperature * margin * F.one_hot(y, logits.shape[1])
    return F.cross_entropy(logits + raised, y)


def partners(z: Tensor, y: Tensor) -> Tensor:
    """m(i): for a labelled row (they come first) another one of its class, else the nearest neighbour.

    A row that is alone in its class is its own partner.  (n, d), (l,) -> (n,)
    """
    l = len(y)  # noqa: E741
    nearest = cosine(z.detach()).fill_diagonal_(-2.0).argmax(dim=1)
    same = (y[:, None] == y[None, :]).float().fill_diagonal_(1e-12)
    return torch.cat([same.multinomial(1).flatten(), nearest[l:]])


SYSTEM = System(
    name="orca",
    about="SimCLR, then ORCA",
    paper="Cao, Brbić and Leskovec, Open-World Semi-Supervised Learning, ICLR 2022",
    stages=(
        simclr.PRETRAINING,
        Stage(name="orca", objective=ORCA, settings=Settings, share=0.5, head=Cosine, continues=True),
    ),
)

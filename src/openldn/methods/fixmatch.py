"""FixMatch (Sohn et al., NeurIPS 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.maths.losses import pseudo_label_loss
from openldn.methods import closed_world
from openldn.nets.classifier import Classifier
from openldn.training.stage import Losses


class Settings(closed_world.Settings):
    """Of FixMatch."""

    threshold: float = 0.95
    """Confidence above which the weak view's class is the strong view's pseudo-label."""


class AloneSettings(Settings):
    """Of FixMatch by itself."""

    paper: ClassVar[Mapping[str, Any]] = {
        "ratio": 7,
        "least_images": 7 * 64 * 1024 * 1024,
        "lr": 0.03,
        "schedule": "cosine-7-16",
        "optimiser": "nesterov",
        "l2": 5e-4,
        "weight_decay": 0.0,
    }
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar100": {"l2": 1e-3}}


class FixMatch(closed_world.ClosedWorld):
    """The strong view learns the weak view's class, where that is very confident."""

    unlabelled_views = ("weak", "strong")
    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """Cross-entropy of labelled images, and of strong views against the weak views' classes."""
        (x,), (weak, strong) = batch.x, batch.u
        logits = network(torch.cat([x, weak, strong])).logits
        labelled, weak, strong = logits.split([len(x), len(weak), len(strong)])
        pseudo, _ = pseudo_label_loss(weak.detach(), strong, self.settings.threshold)
        return {"labelled": F.cross_entropy(labelled, batch.y), "unlabelled": pseudo}


SYSTEM = closed_world.alone(
    "fixmatch", "FixMatch", "Sohn et al., FixMatch, NeurIPS 2020", FixMatch, AloneSettings
)
SECOND_STAGE = closed_world.second_stage("fixmatch", FixMatch, Settings)

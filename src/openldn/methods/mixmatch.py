"""MixMatch (Berthelot et al., NeurIPS 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.maths.losses import mixup, sharpen
from openldn.methods import closed_world
from openldn.nets.classifier import Classifier
from openldn.training.stage import Losses


class Settings(closed_world.Settings):
    """Of MixMatch."""

    paper: ClassVar[Mapping[str, Any]] = {"unlabelled_weight": 75.0}

    unlabelled_weight: float = 10.0
    """Weight of the unlabelled images' loss at the end; it grows linearly. 75 suits a million steps."""
    temperature: float = 0.5
    """Sharpening temperature of guessed labels."""
    mixup: float = 0.75
    """Beta parameter of mixup; 0 is none."""


class AloneSettings(Settings):
    """Of MixMatch by itself."""

    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"unlabelled_weight": 150.0},
        "svhn": {"unlabelled_weight": 250.0},
    }


class MixMatch(closed_world.ClosedWorld):
    """Guesses labels from two views, sharpens them, and mixes everything with everything."""

    unlabelled_views = ("weak", "weak")
    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """Cross-entropy of mixed labelled rows, squared error of mixed unlabelled ones."""
        (x,), (u1, u2), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        with torch.no_grad():
            guess = torch.stack([network(u).logits.softmax(dim=1) for u in (u1, u2)]).mean(dim=0)
            q = sharpen(guess, self.settings.temperature)  # (u, C)
            y = F.one_hot(batch.y, q.shape[1]).to(q.dtype)
        # One forward pass for all rows: BatchNorm sees labelled and unlabelled ones together.
        mixed, targets = mixup(self.settings.mixup, torch.cat([x, u1, u2]), torch.cat([y, q, q]))
        logits = network(mixed).logits
        # The mean is over rows and classes. The weight grows over the whole stage, as in the reference.
        error = (logits[l:].softmax(dim=1) - targets[l:]).square().mean()
        return {
            "labelled": F.cross_entropy(logits[:l], targets[:l]),
            "unlabelled": self.settings.unlabelled_weight * progress * error,
        }


SYSTEM = closed_world.alone(
    "mixmatch", "MixMatch", "Berthelot et al., MixMatch, NeurIPS 2019", MixMatch, AloneSettings
)
SECOND_STAGE = closed_world.second_stage("mixmatch", MixMatch, Settings)

"""FixMatch (Sohn et al., NeurIPS 2020)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.maths.losses import pseudo_label_loss
from openldn.methods import closed_world
from openldn.nets.classifier import Classifier
from openldn.training.schedules import Composition, full_of_each
from openldn.training.settings import RejectingSettings
from openldn.training.stage import Losses, Objective


@dataclass(frozen=True, kw_only=True)
class Settings(closed_world.Settings):
    """Of FixMatch."""

    threshold: float = 0.95
    """Confidence above which the weak view's class is the strong view's pseudo-label."""


@dataclass(frozen=True, kw_only=True)
class AloneSettings(Settings, RejectingSettings):
    """As a system."""


@dataclass(frozen=True, kw_only=True)
class SecondStageSettings(Settings, closed_world.PseudoLabelSettings):
    """As a second stage."""


class FixMatch(Objective):
    """The strong view learns the weak view's class, where that is very confident."""

    averaged = True
    unlabelled_views = ("weak", "strong")
    settings: Settings

    def composition(self) -> Composition:
        return full_of_each(self.problem, self.settings.batch)

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
SECOND_STAGE = closed_world.second_stage("fixmatch", FixMatch, SecondStageSettings)

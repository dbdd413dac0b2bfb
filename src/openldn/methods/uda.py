"""UDA (Xie et al., NeurIPS 2020), and OpenLDN's version of it as a second stage.

OpenLDN's authors mix up labelled images, and compare the threshold with the sharpened prediction.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.maths.losses import mixup
from openldn.methods import closed_world
from openldn.nets.classifier import Classifier
from openldn.training.stage import Losses


class Settings(closed_world.Settings):
    """Of UDA."""

    temperature: float = 0.4
    """Sharpening temperature of the weak view's prediction."""
    threshold: float = 0.8
    """Confidence above which the weak view's prediction is a target."""
    threshold_on: Literal["prediction", "sharpened"] = "prediction"
    """Which confidence is compared with the threshold."""
    mixup: float = 0.0
    """Beta parameter of mixup among labelled images; 0 is none."""


class AloneSettings(Settings):
    """Of UDA by itself, as in its authors' script for CIFAR-10."""

    paper: ClassVar[Mapping[str, Any]] = {
        "batch": 32,
        "ratio": 10,
        "least_images": 10 * 32 * 400_000,
        "lr": 0.03,
        "schedule": "warm-up-cosine",
        "optimiser": "nesterov",
        "l2": 5e-4,
        "weight_decay": 0.0,
    }


class SecondStageSettings(Settings):
    """As a second stage."""

    threshold_on: Literal["prediction", "sharpened"] = "sharpened"
    mixup: float = 0.75


class UDA(closed_world.ClosedWorld):
    """The strong view learns the weak view's sharpened prediction, where that is confident."""

    unlabelled_views = ("weak", "strong")
    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """Cross-entropy of labelled images, and of strong views against weak ones."""
        (x,), (weak, strong), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        y = F.one_hot(batch.y, network.head.out_features).to(x.dtype)
        x, y = mixup(self.settings.mixup, x, y)
        logits = network(torch.cat([x, weak, strong])).logits
        labelled, weak, strong = logits.split([l, len(weak), len(strong)])
        q = (weak.detach() / self.settings.temperature).softmax(dim=1)
        p = q if self.settings.threshold_on == "sharpened" else weak.detach().softmax(dim=1)
        confident = (p.amax(dim=1) >= self.settings.threshold).to(q.dtype)
        consistency = F.cross_entropy(strong, q, reduction="none") * confident
        return {"labelled": F.cross_entropy(labelled, y), "unlabelled": consistency.mean()}


SYSTEM = closed_world.alone(
    "uda",
    "UDA",
    "Xie et al., Unsupervised Data Augmentation for Consistency Training, NeurIPS 2020",
    UDA,
    AloneSettings,
)
SECOND_STAGE = closed_world.second_stage("uda", UDA, SecondStageSettings)

"""Mean Teacher (Tarvainen and Valpola, NeurIPS 2017)."""

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.methods import closed_world
from openldn.nets.classifier import Classifier
from openldn.training.schedules import linear_ramp
from openldn.training.stage import Losses


class Settings(closed_world.Settings):
    """Of Mean Teacher."""

    consistency: float = 50.0
    """Weight of the consistency with the teacher at the end."""
    ramp_until: float = 0.4
    """Share of the stage over which that weight grows linearly."""


class MeanTeacher(closed_world.ClosedWorld):
    """The network agrees with its own moving average on another view of the image."""

    unlabelled_views = ("weak", "weak")
    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """Cross-entropy of labelled images, squared distance of student and teacher on all others."""
        (x,), (u1, u2) = batch.x, batch.u
        logits = network(torch.cat([x, u1])).logits
        labelled, student = logits.split([len(x), len(u1)])
        with torch.no_grad():
            teacher = average(u2).logits.softmax(dim=1)
        distance = (student.softmax(dim=1) - teacher).square().mean()
        weight = self.settings.consistency * linear_ramp(progress, self.settings.ramp_until)
        return {"labelled": F.cross_entropy(labelled, batch.y), "unlabelled": weight * distance}


SYSTEM = closed_world.alone(
    "mean-teacher",
    "Mean Teacher",
    "Tarvainen and Valpola, Mean Teachers Are Better Role Models, NeurIPS 2017",
    MeanTeacher,
    Settings,
    no_recipe="its authors' recipe is for a network of 13 layers with ramps of its own",
)
SECOND_STAGE = closed_world.second_stage("mean-teacher", MeanTeacher, Settings)

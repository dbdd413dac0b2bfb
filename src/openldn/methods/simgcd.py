"""SimGCD (Wen, Zhao and Qi, ICCV 2023): GCD's contrastive learning, and a classifier by self-distillation.

After SimCLR. Prototypes for all classes; a view learns what the other one predicts at a lower temperature,
while the entropy of the mean prediction is kept high.
"""

import torch
import torch.nn.functional as F

from openldn.data.batches import Batch
from openldn.maths.losses import entropy_loss
from openldn.methods import gcd, simclr
from openldn.methods.gcd import contrasts
from openldn.nets.classifier import Classifier
from openldn.nets.heads import Cosine
from openldn.training.schedules import linear_ramp
from openldn.training.stage import Losses, Stage, System


class Settings(gcd.Settings):
    """Of SimGCD."""

    entropy_weight: float = 2.0
    """Weight of the entropy of the mean prediction."""
    teacher_temperature_start: float = 0.07
    """Of the predictions that a view learns from, at the start."""
    teacher_temperature: float = 0.04
    """The same after the ramp."""
    ramp_until: float = 0.15
    """Share of the stage over which that temperature falls."""


class SimGCD(simclr.Contrastive):
    """Two views of every image."""

    settings: Settings

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        y, l, settings = batch.y, len(batch.y), self.settings  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        a, b = self.projector(z).chunk(2)
        first, last = settings.teacher_temperature_start, settings.teacher_temperature
        temperature = first + (last - first) * linear_ramp(progress, settings.ramp_until)
        q = (Cosine.temperature * logits.detach() / temperature).softmax(dim=1).roll(len(one), dims=0)
        labelled = logits.unflatten(0, (2, -1))[:, :l].flatten(0, 1)
        terms, share = contrasts(a, b, y, settings), settings.supervised_weight
        return {
            "labelled": terms["labelled"] + share * F.cross_entropy(labelled, torch.cat([y, y])),
            "unlabelled": terms["unlabelled"] + (1 - share) * F.cross_entropy(logits, q),
            "entropy": (1 - share) * settings.entropy_weight * entropy_loss(logits.softmax(dim=1)),
        }


SYSTEM = System(
    no_recipe="its paper starts from a ViT-B/16 that DINO has trained",
    name="simgcd",
    about="SimCLR, then SimGCD",
    paper="Wen, Zhao and Qi, Parametric Classification for Generalized Category Discovery, ICCV 2023",
    stages=(
        simclr.PRETRAINING,
        Stage(name="simgcd", objective=SimGCD, settings=Settings, share=0.5, head=Cosine, continues=True),
    ),
)

"""Positive-unlabelled learning, then self-training: docs/pu-self-training.md.

The network of the first stage keeps its backbone and gets an output for every class. The new head first fits
the predictions of the first stage alone. Then everything is trained: a view of an unlabelled image follows
what the averaged network predicts for another view, after distribution alignment and sharpening. By then
labelled images are memorised; cutout and mixup leave something to learn from them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.maths.losses import mixup
from openldn.maths.priors import DistributionAlignment, prior_correction, uniform_correction
from openldn.methods.pu_clustering import PU
from openldn.nets.classifier import Classifier, Outputs, Predict, infer
from openldn.nets.heads import Linear
from openldn.nets.predictors import Infer, Predictor
from openldn.training import settings
from openldn.training.optimisers import Adam
from openldn.training.schedules import Composition, oversampled
from openldn.training.settings import Schedule
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of self-training."""

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 50.0,
        "least_images": 0,
        "batch": 200,
        "lr": 1e-4,
        "schedule": "constant",
    }

    epochs: float | None = 6.0
    """Passes over the unlabelled images."""
    least_images: int | None = 45_000
    """See at least this many unlabelled images, however few there are."""
    batch: int = 125
    """Images per step."""
    lr: float = 5e-4
    """Peak learning rate."""
    schedule: Schedule = "linear"
    oversampling: float = 2.0
    """Oversampling factor for labelled images (at most half a batch)."""
    temperature: float = 0.4
    """Sharpening temperature of targets."""
    mixup: float = 0.2
    """Beta parameter of mixup; 0 is none."""
    ema_share: float = 0.05
    """Horizon of the moving average, as a share of the stage."""


class SelfTraining(Objective):
    """Labels and self-made targets.

    Labelled images are oversampled, since their labels are right. So the network overestimates known classes,
    and predictions have to be corrected for the prior, as its own targets are. Labelled and unlabelled images
    have views of one kind, or the kind would give away which images are labelled.
    """

    labelled_views = ("weak_cutout",)
    unlabelled_views = ("weak", "weak_cutout")
    averaged = True
    settings: Settings

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        self.align = DistributionAlignment(problem.class_prior().to(next(network.parameters())))

    def composition(self) -> Composition:
        return oversampled(self.problem, self.settings.batch, self.settings.oversampling)

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        """The head fits the predictions of the first stage."""
        if previous is None:
            return
        problem = self.problem
        labelled, unlabelled = (Part(problem.images, rows) for rows in (problem.labelled, problem.unlabelled))
        z = torch.cat([infer(network, images).z for images in (labelled, unlabelled)])
        y = F.one_hot(problem.labels[problem.labelled], problem.n_classes)
        log_p = previous(unlabelled).p.clamp_min(1e-8).log()
        q = (log_p + prior_correction(log_p, problem.class_prior(), rounds=50)).softmax(dim=1)
        assert isinstance(network.head, Linear)
        fit_head(network.head, z, torch.cat([y, q]))

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        weak, other = batch.u
        with torch.no_grad():
            log_p = self.align(average(weak).logits)
            q = (log_p / self.settings.temperature).softmax(dim=1)
        y = F.one_hot(batch.y, q.shape[1]).to(q.dtype)
        x, q = mixup(self.settings.mixup, torch.cat([*batch.x, other]), torch.cat([y, q]))
        losses = F.cross_entropy(network(x).logits, q, reduction="none") / len(x)
        labelled, unlabelled = losses.split([len(y), len(other)])  # by the larger share of a mixture
        return {"labelled": labelled.sum(), "unlabelled": unlabelled.sum()}

    def get_extra_state(self) -> dict[str, Any]:
        return {"recent": self.align.recent}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.align.recent = state["recent"].to(self.align.prior)


def fit_head(head: Linear, z: Tensor, q: Tensor, steps: int = 200, lr: float = 0.05) -> None:
    """Logistic regression of class probabilities q (n, C) on features z (n, d), from zero.

    Features are standardised meanwhile, so that one learning rate suits them all.
    """
    mean, std = z.mean(dim=0), z.std(dim=0).clamp_min(1e-6)
    z = (z - mean) / std
    w, b = z.new_zeros(q.shape[1], z.shape[1]).requires_grad_(), z.new_zeros(q.shape[1]).requires_grad_()
    adam = Adam([w, b])
    for step in range(steps):
        adam.zero_grad()
        F.cross_entropy(F.linear(z, w, b), q).backward()
        adam.step(lr * (1 - step / steps))
    with torch.no_grad():
        head.weight.copy_(w / std)
        head.bias.copy_(b - (w / std) @ mean)


class UniformPrior(Predictor):
    """The network's probabilities, corrected to the class prior of the unlabelled images and then to a
    uniform one: a new image may be of any class alike.
    """

    def fit(self, infer: Infer, problem: Problem, seed: int, max_images: int = 10_000) -> None:
        """On at most `max_images` unlabelled images, spread evenly."""
        some = problem.unlabelled[:: -(-len(problem.unlabelled) // max_images)]
        log_p = infer(Part(problem.images, some)).logits.log_softmax(dim=1)
        self.state = {"correction": uniform_correction(log_p, problem.class_prior())}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel and state["correction"].shape == (n_outputs,)

    def probabilities(self, outputs: Outputs) -> Tensor:
        return (outputs.logits.log_softmax(dim=1) + self.state["correction"]).softmax(dim=1)


SYSTEM = System(
    no_recipe="it is ours: its defaults are its recipe",
    name="pu-self-training",
    about="positive-unlabelled learning, clustering, then self-training",
    paper="ours, after Elkan and Noto, KDD 2008 (docs/pu-self-training.md)",
    stages=(
        replace(PU, share=0.5),
        Stage(
            name="self-training",
            objective=SelfTraining,
            settings=Settings,
            share=0.5,
            predictor=UniformPrior,
            continues=True,
            evaluations=5,
        ),
    ),
)

"""Whitened clustering of frozen features: docs/own-images.md.

1. Space: features of unit length, whitened by the within-class covariance of the labelled images. What
   differs within known classes is turned down, and so within novel ones.
2. Start: Ward's clustering in that space, with labels kept. It has no random start.
3. Mixture: soft k-means on the unit sphere (a mixture of von Mises-Fisher distributions), with labels kept.
   Class shares are drawn towards the class prior.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.maths.ward import ward
from openldn.maths.whitened_mixture import evenness, in_space, mixture, space
from openldn.nets.classifier import Outputs
from openldn.nets.predictors import Infer, Predictor
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage, System

FEW = 4  # labelled images of a known class that a sample keeps


class Settings(Hyperparameters):
    """Of whitened clustering."""

    axes: int = 512
    """Principal axes of the features that are kept."""
    ridge: float = 100.0
    """Shrinkage of the within-class covariance: as if so many images more had an isotropic one."""
    sharpness: float = 25.0
    """Of the mixture: log-odds per unit of cosine similarity."""
    balance: float | None = None
    """How far class shares are drawn towards the prior: 0 not at all, 1 wholly; by default as far as the
    numbers of labelled images are even."""
    tolerance: float = 0.1
    """Class shares are left free if drawing them towards the prior costs more than this, in log-likelihood of
    an image under its best class."""
    rounds: int = 30
    """Rounds of the mixture."""
    start_images: int = 6000
    """Ward's clustering sees a sample of at most so many unlabelled images."""
    max_images: int = 50_000
    """The whole fit sees a sample of at most so many images, so that memory is bounded."""


class WhitenedClustering(Predictor):
    """The fitted mixture; its state is the space, the centres and the biases of the classes."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.settings = settings or Settings()

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        most = self.settings.max_images
        n_labelled = min(len(problem.labelled), most // 2)
        rows = sample(problem.labels, n_labelled, most - n_labelled, seed).sort().values
        x, labels = infer(Part(problem.images, rows)).z, problem.labels[rows]
        self.state = space(x, labels, self.settings.axes, self.settings.ridge)
        self.state["sharpness"] = torch.tensor(self.settings.sharpness)
        z = in_space(x, self.state)
        start = sample(labels, len(labels), self.settings.start_images, seed)
        first = labels.clone()
        first[start] = ward(z[start], labels[start], problem.n_known, problem.n_classes)
        prior, balance = problem.class_prior(), self.settings.balance
        mixed = partial(
            mixture, z, labels, first, prior, sharpness=self.settings.sharpness, rounds=self.settings.rounds
        )
        if balance is not None:
            best = mixed(balance)
        else:
            best, free = mixed(evenness(labels, problem.n_classes)), mixed(0.0)
            if best.quality < free.quality - self.settings.tolerance:  # classes are not of equal size
                best = free
        self.state |= {"centres": best.centres, "bias": best.bias}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        n = n_known + n_novel
        d, a = state["map"].shape
        return (
            state["mean"].shape == state["centre"].shape == (d,)
            and state["centres"].shape == (n, a)
            and state["bias"].shape == (n,)
            and state["sharpness"].numel() == state["root"].numel() == 1
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        z = in_space(outputs.z, self.state)
        logits: Tensor = self.state["sharpness"] * z @ self.state["centres"].T + self.state["bias"]
        return logits.softmax(dim=1)


def sample(labels: Tensor, most_labelled: int, most_others: int, seed: int) -> Tensor:
    """Rows: at most so many that have labels, a few of each known class first, and so many others."""
    rng, kept = np.random.default_rng([seed, 0xAD]), list[Tensor]()
    for given, most in ((labels >= 0, most_labelled), (labels < 0, most_others)):
        rows = torch.nonzero(given).flatten()
        if len(rows) > most:
            rows = rows[torch.from_numpy(rng.permutation(len(rows)))]
            first = torch.zeros(len(rows), dtype=torch.bool)
            for k in labels[rows].unique().tolist():
                first[torch.nonzero(labels[rows] == k)[:FEW]] = True
            rows = torch.cat([rows[first], rows[~first]])[:most]
        kept.append(rows)
    return torch.cat(kept)


CLUSTERING = Stage(
    name="whitened-clustering",
    objective=None,
    settings=Settings,
    predictor=WhitenedClustering,
    backbone="none",
    frozen=True,
    evaluations=0,
)
SYSTEM = System(
    no_recipe="it is ours: its defaults are its recipe",
    name="whitened-clustering",
    about="frozen features, whitened by labelled images, Ward's clustering, then a mixture",
    paper="ours (docs/own-images.md)",
    stages=(CLUSTERING,),
)

"""Positive-unlabelled learning, then clustering: docs/pu-self-training.md.

A network learns to tell the K known classes, by labelled images, from one more: all unlabelled images. To an
unlabelled image of a known class there are labelled ones just like it, so the network can only learn how
often either happens; an image unlike every labelled one is certainly unlabelled. Let labelled images have
density p_l and unlabelled ones p_u = π p_l + (1 − π) p_n, where π is the known share, and let the two losses
have weights 1 and w. Then the optimal network gives

    P(unlabelled | x) = w p_u / (p_l + w p_u)

and so, as Elkan and Noto (2008) derive for positive and unlabelled examples,

    P(known | x) = π p_l / p_u = π w (1 − P(unlabelled | x)) / P(unlabelled | x).

The images that are most likely novel are clustered on features made to tell novel images from known ones.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.draws import keys_of
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.maths.k_means import balanced_k_means
from openldn.maths.priors import uniform_correction
from openldn.nets.classifier import Classifier, Outputs
from openldn.nets.predictors import Infer, Predictor
from openldn.training import settings
from openldn.training.schedules import Composition, oversampled
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of positive-unlabelled learning."""

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 3.0,
        "least_images": 0,
        "batch": 200,
        "schedule": "constant",
    }

    epochs: float | None = 6.0
    """Passes over the unlabelled images."""
    least_images: int | None = 3_000
    """See at least this many unlabelled images, however few there are."""
    max_epochs: float = 6.0
    """Early stopping: beyond this many passes the network memorises which images are labelled."""
    max_images: int = 3_000
    """Early stopping does not come before this many unlabelled images."""
    unlabelled_weight: float = 0.5
    """w: weight of the unlabelled images' loss."""
    oversampling: float = 3.0
    """Oversampling factor for labelled images (at most half a batch)."""
    progressive_resizing: bool = True
    """Start with downsized images."""


class PULearning(Objective):
    """K known classes against the unlabelled images; weak views alone."""

    unlabelled_views = ("weak",)
    settings: Settings

    def composition(self) -> Composition:
        return oversampled(self.problem, self.settings.batch, self.settings.oversampling)

    def max_steps(self) -> int:
        """Early stopping."""
        most = max(self.settings.max_epochs * len(self.problem.unlabelled), self.settings.max_images)
        return max(1, round(most / self.composition().unlabelled))

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        logits = network(torch.cat([*batch.x, *batch.u])).logits
        labelled, unlabelled = logits.split([len(batch.y), len(batch.rows)])
        return pu_losses(labelled, batch.y, unlabelled, self.settings.unlabelled_weight)


def pu_losses(labelled: Tensor, y: Tensor, unlabelled: Tensor, w: float) -> dict[str, Tensor]:
    """Cross-entropy of labelled logits (l, K + 1), and of unlabelled ones against the last class."""
    last = torch.full((len(unlabelled),), unlabelled.shape[1] - 1, device=unlabelled.device)
    return {"ce": F.cross_entropy(labelled, y), "unlabelled": w * F.cross_entropy(unlabelled, last)}


def known_probabilities(logits: Tensor, share: Tensor, w: Tensor) -> Tensor:
    """P(known class k | x) of unlabelled images, of which `share` is known.  (n, K + 1) -> (n, K)

    A finite network can overshoot what the densities allow, so the sum is at most one.
    """
    p = logits.softmax(dim=1)
    within_known, unlabelled = logits[:, :-1].softmax(dim=1), p[:, -1:]
    return within_known * (share * w * (1 - unlabelled) / unlabelled.clamp_min(1e-6)).clamp(max=1)


class ClusterTheRest(Predictor):
    """Known classes by Elkan and Noto's rule; all other images by balanced k-means.

    Clustering uses features of the second-to-last stage, where the backbone has one: the last stage is about
    differences between known classes, and mixes others. Features are whitened by the within-image covariance
    of augmented views (linear discriminant analysis with an image for a class): what a crop or another light
    changes should not separate images. At the end predictions are corrected to the class prior of the
    unlabelled images, and then to a uniform prior, as images all together have.
    """

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.w = 0.0 if settings is None else settings.unlabelled_weight

    def fit(self, infer: Infer, problem: Problem, seed: int, sample: int = 3_000, n_views: int = 4) -> None:
        labelled, unlabelled = (
            infer(Part(problem.images, rows)) for rows in (problem.labelled, problem.unlabelled)
        )
        prior = problem.class_prior()
        share = prior[: problem.n_known].sum()
        n_novel_images = max(problem.n_novel, round(len(unlabelled.logits) * (1 - float(share))))
        w = torch.tensor(self.w)
        novel = known_probabilities(unlabelled.logits, share, w).sum(dim=1).argsort()[:n_novel_images]
        some = Part(problem.images, problem.unlabelled[novel[:: -(-len(novel) // sample)]])
        seen = [_early(infer(Augmented(some, problem.flip, problem.crop, (seed, k)))) for k in range(n_views)]
        self.state = {
            "share": share,
            "w": w,
            "mean": _early(labelled).mean(dim=0),
            "whitening": whitening(torch.stack(seen)),
        }
        self.state["centres"] = balanced_k_means(self._features(unlabelled)[novel], problem.n_novel, seed)
        self.state["correction"] = torch.zeros_like(prior)
        self.state["correction"] = uniform_correction(self.probabilities(unlabelled).log(), prior)

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return (
            n_outputs == n_known + 1
            and {"share", "w", "mean", "whitening", "centres", "correction"} <= state.keys()
            and state["centres"].shape == (n_novel, state["mean"].numel())
            and state["whitening"].shape == (state["mean"].numel(),) * 2
            and len(state["correction"]) == n_known + n_novel
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        known = known_probabilities(outputs.logits, self.state["share"], self.state["w"])
        # Squared distances of unit vectors are at most 4: a temperature makes the nearest stand out.
        distance = torch.cdist(self._features(outputs), self.state["centres"]).square()
        novel = (1 - known.sum(dim=1, keepdim=True)) * (-distance / 0.1).softmax(dim=1)
        p = torch.cat([known, novel], dim=1).clamp_min(1e-8)
        return (p.log() + self.state["correction"]).softmax(dim=1)

    def _features(self, outputs: Outputs) -> Tensor:
        return F.normalize((_early(outputs) - self.state["mean"]) @ self.state["whitening"], dim=1)


class Augmented:
    """One augmented view (crop and colour jitter) of each image."""

    def __init__(self, images: Images, flip: bool, crop: int | None, keys: tuple[int, ...]):
        self.images, self.flip, self.crop, self.keys = images, flip, crop, keys
        self.shape = images.shape if crop is None else (*images.shape[:2], crop, crop)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor) -> Tensor:
        images, keys = self.images[rows], keys_of(*self.keys, rows.numpy())
        (view,) = views(images, ("crop_jitter",), self.flip, keys, self.crop)
        return view[:, None] if view.ndim == 2 else (255 * view).round().to(torch.uint8)


def _early(outputs: Outputs) -> Tensor:
    return outputs.z if outputs.early is None else outputs.early


def whitening(z: Tensor, shrink: float = 0.03) -> Tensor:
    """A linear map after which views z (v, n, d) of n images vary equally in all directions.  (d, d)"""
    within = (z - z.mean(dim=0)).flatten(0, 1).double()
    covariance = within.T @ within / len(within)
    covariance += (shrink * covariance.diagonal().mean() + 1e-8) * torch.eye(len(covariance))
    variance, directions = torch.linalg.eigh(covariance)
    made: Tensor = directions / variance.sqrt()
    return made.float()


# Clustering looks at all images, which costs as much as many steps: once is enough.
PU = Stage(name="pu", objective=PULearning, settings=Settings, outputs="known+1", predictor=ClusterTheRest)
SYSTEM = System(
    no_recipe="it is ours: its defaults are its recipe",
    name="pu-clustering",
    about="positive-unlabelled learning, then clustering of the rest",
    paper="ours, after Elkan and Noto, KDD 2008 (docs/pu-self-training.md)",
    stages=(PU,),
)

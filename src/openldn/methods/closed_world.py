"""Stage 2 of OpenLDN: the open world made closed (Sec. 3.3, Alg. 1).

The most confident images of each discovered class join the labelled set. A new network learns all classes
with an ordinary semi-supervised method, and its moving average renews the pseudo-labels as it learns.

Any closed-world method can follow any system: `orca+uda`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.errors import OpenLDNWarning
from openldn.nets.classifier import Classifier, Predict, infer
from openldn.nets.predictors import RejectAndCluster
from openldn.training import settings
from openldn.training.schedules import Composition, full_of_each
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of closed-world methods, whichever stage they are."""

    # 1024 x 1024 steps of 64 images, as in OpenLDN's stage 2 and MixMatch.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.0,
        "least_images": 64 * 1024 * 1024,
        "batch": 64,
        "lr": 2e-3,
        "schedule": "constant",
        "progressive_resizing": False,
    }
    refreshes = 0  # not a field: with the known classes alone there is nothing to renew

    epochs: float | None = 8.0
    """Passes over the unlabelled images."""
    least_images: int | None = 45_000
    """See at least this many unlabelled images, however few there are."""
    batch: int = 64
    """Labelled images per step."""
    ratio: int = 1
    """Unlabelled images per labelled one."""
    weight_decay: float = 0.02
    """Weights shrink by this times the learning rate at each step."""
    ema_share: float = 0.05
    """Horizon of the moving average, as a share of the stage."""
    ema_steps: int = 1000
    """Horizon of the moving average in steps; the smaller of the two counts."""
    progressive_resizing: bool = True
    """Start with downsized images. Pseudo-labels are renewed once images have their full size."""


PHOTOGRAPHS = ("imagenet-100", "oxford-pets", "fgvc-aircraft", "stanford-cars", "herbarium19")
# 200 x 1024 steps of 512 images, pseudo-labels renewed every 10 x 1024 steps.
OF_PHOTOGRAPHS = {"batch": 512, "least_images": 512 * 200 * 1024, "refreshes": 19, "head_bias": False}


class PseudoLabelSettings(Settings):
    """Of second stages."""

    paper: ClassVar[Mapping[str, Any]] = {"refreshes": 102, "gate": False}
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny-imagenet": {"head_bias": False},
        **{name: OF_PHOTOGRAPHS for name in PHOTOGRAPHS},
    }

    head_bias: bool = True
    """Whether the linear head has a bias."""
    refreshes: int = 10
    """How often pseudo-labels are renewed, evenly over the stage (iterative pseudo-labelling)."""
    period: float | None = None
    """Instead: renew them every so many epochs of 1024 steps (the paper's m, which is 10)."""
    gate: bool = True
    """Keep the pseudo-labels while the network gets fewer than half of the labels of some class right."""


class ClosedWorld(Objective):
    """Base of closed-world methods: a batch of labelled and one of unlabelled images, a moving average."""

    averaged = True

    def composition(self) -> Composition:
        return full_of_each(self.problem, self.settings.batch, self.settings.ratio)


class OnPseudoLabels(ClosedWorld):
    """A closed-world method on labels and class-balanced pseudo-labels."""

    def __init__(
        self,
        problem: Problem,
        network: Classifier,
        settings: Any,
        method: Callable[[Problem, Classifier, Any], Objective],
    ):
        super().__init__(problem, network, settings)
        self.method = method(problem, network, settings)
        self.labelled_views, self.unlabelled_views = self.method.labelled_views, self.method.unlabelled_views
        self.original = problem
        # As many pseudo-labels per novel class as there are labels per known class.
        self.per_class = max(1, len(problem.labelled) // problem.n_known)
        self.chosen = torch.zeros(2, 0, dtype=torch.int64)  # rows and labels
        self.n_refreshed = self.n_skipped = 0

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        """The first pseudo-labels come from the stage before."""
        if previous is not None:
            self.choose(previous(self._unlabelled()).p)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        return self.method.losses(network, average, batch, progress)

    def refresh(self, average: Classifier, progress: float) -> None:
        """New pseudo-labels, if images have their full size and, with a gate, `ready` says so."""
        size = self.problem.size
        if average.training_size in (None, size) and (not self.settings.gate or self.ready(average)):
            self.choose(infer(average, self._unlabelled()).logits.softmax(dim=1))
            self.n_refreshed += 1
        else:
            self.n_skipped += 1

    def choose(self, p: Tensor) -> None:
        """S̃_L and S̃_U from probabilities of all originally unlabelled images."""
        unlabelled = self.original.unlabelled
        rows, labels = most_confident(p, self.original.n_known, self.per_class)
        warn_of_empty_classes(labels, self.original.n_known, self.original.class_names())
        self._promote(torch.stack([unlabelled[rows], labels]))

    def _unlabelled(self) -> Part:
        return Part(self.original.images, self.original.unlabelled)

    def ready(self, average: Classifier) -> bool:
        """Whether the averaged network gets at least half of the labels right in each class.

        A class that is not learned yet would lose its pseudo-labels to others, and would not come back.
        """
        rows = self.problem.labelled
        y = self.problem.labels[rows]
        right = infer(average, Part(self.problem.images, rows)).logits.argmax(dim=1) == y
        return all(float(right[y == k].float().mean()) >= 0.5 for k in y.unique().tolist())

    def diagnostics(self) -> dict[str, float]:
        """The number of pseudo-labels, how often they were renewed, and how often that was skipped."""
        return {
            "pseudo_labels": float(self.chosen.shape[1]),
            "refreshed": float(self.n_refreshed),
            "skipped": float(self.n_skipped),
        }

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "pseudo_labels": self.chosen,
            "refreshed": self.n_refreshed,
            "skipped": self.n_skipped,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._promote(state["pseudo_labels"])
        self.n_refreshed, self.n_skipped = state["refreshed"], state["skipped"]

    def _promote(self, chosen: Tensor) -> None:
        self.chosen = chosen.cpu()
        self.problem = self.original.promote(self.chosen[0], self.chosen[1])


def most_confident(p: Tensor, n_known: int, k: int) -> tuple[Tensor, Tensor]:
    """The k most confident images predicted in each novel class: their rows and classes.  p is (n, C)

    A class with fewer predictions gives all it has. Images predicted known are never taken.
    """
    confidence, predicted = p.max(dim=1)
    chosen = []
    for c in range(n_known, p.shape[1]):
        rows = torch.nonzero(predicted == c).flatten()
        order = confidence[rows].argsort(descending=True, stable=True)
        chosen.append(rows[order[:k]])
    rows = torch.cat(chosen)
    return rows, predicted[rows]


def warn_of_empty_classes(labels: Tensor, n_known: int, names: Sequence[str | int]) -> None:
    """Warns of novel classes without any pseudo-label."""
    empty = [name for c, name in enumerate(names) if c >= n_known and not bool((labels == c).any())]
    if not empty:
        return
    if len(empty) == len(names) - n_known:
        text = (
            "no image was predicted to be novel, so closed-world training starts with the known classes "
            "alone; more epochs, or fewer novel classes, may help"
        )
    else:
        text = (
            f"no image was predicted in {len(empty)} of {len(names) - n_known} novel classes "
            f"({', '.join(map(str, empty))}); they have no pseudo-labels for now, and there may be fewer "
            "novel classes than were asked for"
        )
    warnings.warn(text, OpenLDNWarning, stacklevel=2)


# ------------------------------------------------------------- closed-world methods as stages of systems


def alone(
    name: str,
    title: str,
    paper: str,
    objective: type[Objective],
    own: type[Settings],
    no_recipe: str = "",
) -> System:
    """A closed-world method on the known classes; unsure images are rejected and clustered."""
    stage = Stage(
        name=name,
        objective=objective,
        settings=settings.combined(own, settings.RejectingSettings),
        outputs="known",
        predictor=RejectAndCluster,
        evaluations=10,
    )
    about = f"{title} on the known classes, k-means on the images it is unsure of"
    return System(name=name, about=about, paper=paper, no_recipe=no_recipe, stages=(stage,))


def second_stage(name: str, objective: type[Objective], own: type[Settings]) -> Stage:
    """A closed-world method on pseudo-labels."""

    def build(problem: Problem, network: Classifier, own: Any) -> Objective:
        return OnPseudoLabels(problem, network, own, objective)

    both = settings.combined(own, PseudoLabelSettings)
    return Stage(name=name, objective=build, settings=both, evaluations=10)


def followed_by(system: System, then: Stage, name: str | None = None, about: str | None = None) -> System:
    """A system, then closed-world training on its pseudo-labels; each has half of the length."""
    whole = sum(stage.share for stage in system.stages)
    first = tuple(replace(stage, share=0.5 * stage.share / whole) for stage in system.stages)
    method = then.name
    if any(stage.name == method for stage in first):
        then = replace(then, name=f"{method}-2")
    return System(
        name=name or f"{system.name}+{method}",
        no_recipe=system.no_recipe,
        about=about or f"{system.about}; then closed-world training with {method}",
        paper=system.paper,
        stages=(*first, replace(then, share=0.5)),
    )

"""The systems, as a table: phases, each with a network of its own, and a predictor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from openldn import config
from openldn.config import Settings
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.loop import Phase
from openldn.nets.classifier import Classifier
from openldn.phases import training
from openldn.phases.cgdl import CGDL
from openldn.phases.closed_world import ClosedWorld, Method
from openldn.phases.discover import Discover
from openldn.phases.ds3l import DS3L
from openldn.phases.dtc import DTC
from openldn.phases.fixmatch import FixMatch
from openldn.phases.gcd import GCD
from openldn.phases.mean_teacher import MeanTeacher
from openldn.phases.mixmatch import MixMatch
from openldn.phases.orca import ORCA
from openldn.phases.rankstats import RankStats
from openldn.phases.refine import Refine
from openldn.phases.rest import Plan, Rest
from openldn.phases.simclr import SimCLR
from openldn.phases.simgcd import SimGCD
from openldn.phases.supervised import Supervised
from openldn.phases.trssl import TRSSL
from openldn.phases.uda import UDA
from openldn.phases.uno import UNO
from openldn.phases.untrained import Untrained

Build = Callable[[Problem, Classifier, Settings], Phase]
Closed = Callable[[config.ClosedWorld], Method]  # a closed-world method, as the settings have it


@dataclass(frozen=True)
class Stage:
    """A phase with what its network has outputs for, and what turns these into classes."""

    build: Build
    part: str  # of the settings
    predictor: str = "argmax"
    outputs: Literal["all", "known", "known and one"] = "all"
    head: str = "linear"
    goes_on: bool = False  # whether the network keeps the features of the stage before
    evaluations: int = 10  # how often it is judged on the way, and at its end; 0: never
    pretraining: bool = False  # whether other systems begin in the same way, so that it is worth keeping
    backbone: str | None = None  # if it cannot be any

    def n_outputs(self, problem: Problem) -> int:
        """How many outputs the network has."""
        if self.outputs == "all":
            return problem.n_classes
        return problem.n_known + (self.outputs == "known and one")


@dataclass(frozen=True)
class Recipe:
    """What a system is made of."""

    stages: tuple[Stage, ...]
    about: str

    @property
    def parts(self) -> tuple[str, ...]:
        """Which parts of the settings it needs, in order."""
        return tuple(dict.fromkeys(stage.part for stage in self.stages))


def discover(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """Stage 1 of OpenLDN."""
    return Discover(problem, network, settings.discover)


def rest(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """Known classes against the rest."""
    return Rest(problem, network, settings.rest)


def spared(before: Sequence[Stage], problem: Problem, settings: Settings) -> float:
    """Image passes that earlier stages leave of their budget, for a later one to spend."""
    left = 0.0
    for stage in before:
        if stage.part == "rest":  # it stops early if it may
            left += max(0.0, (settings.rest.length.budget or 0.0) - Plan.of(problem, settings.rest).cost)
        elif stage.build is untrained:
            left += settings.training.length.budget or 0.0
    return left


def refine(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """All classes, from labels and from what the network itself says."""
    length = settings.refine.length.longer(spared([REST], problem, settings))
    return Refine(problem, network, replace(settings.refine, length=length))


def closed_world(method: Closed, before: Sequence[Stage]) -> Build:
    """Stage 2 of OpenLDN by some method, after whatever has found novel classes."""

    def build(problem: Problem, network: Classifier, settings: Settings) -> Phase:
        part = settings.closed_world
        part = replace(part, length=part.length.longer(spared(before, problem, settings)))
        return ClosedWorld(problem, network, part, method(part))

    return build


def alone(method: Closed) -> Build:
    """The same for known classes alone."""

    def build(problem: Problem, network: Classifier, settings: Settings) -> Phase:
        return ClosedWorld(problem, network, settings.alone, method(settings.alone))

    return build


def training_of(method: Callable[[Problem, Classifier], training.Method], share: float = 1.0) -> Build:
    """Any other method, for a share of the system's length."""

    def build(problem: Problem, network: Classifier, settings: Settings) -> Phase:
        part: config.Training = replace(settings.training, length=settings.training.length.part(share))
        return training.Training(problem, network, part, method(problem, network))

    return build


def untrained(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """No training at all."""
    return Untrained(problem, network)


def pretrained(
    method: Callable[[Problem, Classifier], training.Method], share: float, goes_on: bool = False
) -> Stage:
    """What is learned before a system's own training; its outputs are not asked for."""
    return Stage(
        training_of(method, share),
        "training",
        "reject-and-cluster",
        "known",
        goes_on=goes_on,
        evaluations=0,
        pretraining=True,
    )


CLOSED: dict[str, Closed] = {
    "uda": lambda _: UDA(),
    "mixmatch": lambda settings: MixMatch(weight=settings.mixmatch_weight),
    "fixmatch": lambda _: FixMatch(),
    "mean-teacher": lambda _: MeanTeacher(),
}
DISCOVER = Stage(discover, "discover")
# Before images are grouped all of them are looked at, which takes as long as many steps: once is enough.
REST = Stage(rest, "rest", "groups", "known and one", evaluations=1)
REFINE = Stage(refine, "refine", "balanced", goes_on=True, evaluations=5)
SIMCLR = pretrained(SimCLR, 0.5)


def after(
    *before: Stage, then: Callable[[Problem, Classifier], training.Method], share: float, **ends: str
) -> tuple[Stage, ...]:
    """Pretraining, and a method that goes on with its features for the rest of the length."""
    own = Stage(training_of(then, share), "training", goes_on=bool(before), evaluations=1, **ends)  # type: ignore[arg-type]
    return (*before, own)


RECIPES: dict[str, Recipe] = {
    **{
        f"openldn-{name}": Recipe(
            (DISCOVER, Stage(closed_world(method, [DISCOVER]), "closed_world")),
            f"OpenLDN, closed world by {name}",
        )
        for name, method in CLOSED.items()
    },
    "openldn": Recipe((DISCOVER,), "stage 1 of OpenLDN alone"),
    "rest-refine": Recipe((REST, REFINE), "known classes against the rest, then refined"),
    "rest": Recipe((REST,), "its first stage alone"),
    "fixmatch": Recipe(
        (Stage(alone(CLOSED["fixmatch"]), "alone", "reject-and-cluster", "known"),),
        "FixMatch on known classes, k-means on what it is unsure of",
    ),
    "ds3l": Recipe(
        after(then=DS3L, share=1.0, predictor="reject by weight", outputs="known and one", head="weighted"),
        "DS3L on known classes, k-means on what it gives little weight",
    ),
    "cgdl": Recipe(
        after(then=CGDL, share=1.0, predictor="reject by density", outputs="known", head="ladder"),
        "CGDL on known classes (slim, on the shared trunk), k-means on what lies apart",
    ),
    "dtc": Recipe(
        after(pretrained(Supervised, 0.3), then=DTC, share=0.7, predictor="aligned", head="clusters"),
        "supervised, then DTC",
    ),
    "rankstats": Recipe(
        after(
            SIMCLR,
            pretrained(partial(Supervised, frozen=True), 0.1, goes_on=True),
            then=RankStats,
            share=0.4,
            predictor="aligned",
        ),
        "SimCLR, supervised, then RankStats",
    ),
    "uno": Recipe(
        after(pretrained(Supervised, 0.3), then=UNO, share=0.7, head="concatenated"), "supervised, then UNO"
    ),
    "orca": Recipe(after(SIMCLR, then=ORCA, share=0.5, head="cosine"), "SimCLR, then ORCA"),
    "mixmatch": Recipe(
        (Stage(alone(CLOSED["mixmatch"]), "alone", "reject-and-cluster", "known"),),
        "MixMatch on known classes, k-means on what it is unsure of",
    ),
    "uda": Recipe(
        (Stage(alone(lambda _: UDA(as_second_stage=False)), "alone", "reject-and-cluster", "known"),),
        "UDA on known classes, k-means on what it is unsure of",
    ),
    "mean-teacher": Recipe(
        (Stage(alone(CLOSED["mean-teacher"]), "alone", "reject-and-cluster", "known"),),
        "Mean Teacher on known classes, k-means on what it is unsure of",
    ),
    "supervised": Recipe(
        after(then=Supervised, share=1.0, predictor="reject-and-cluster", outputs="known"),
        "known classes alone, k-means on what it is unsure of",
    ),
    "gcd": Recipe(
        after(SIMCLR, then=GCD, share=0.5, predictor="seeded k-means"),
        "SimCLR, then GCD: contrast and semi-supervised k-means",
    ),
    "simgcd": Recipe(after(SIMCLR, then=SimGCD, share=0.5, head="cosine"), "SimCLR, then SimGCD"),
    "trssl": Recipe(after(then=TRSSL, share=1.0, head="cosine"), "TRSSL"),
    "k-means": Recipe(
        (Stage(untrained, "training", "k-means", backbone="pixels", evaluations=0),), "k-means on pixels"
    ),
    "simclr-k-means": Recipe(
        (Stage(training_of(SimCLR), "training", "unit k-means", evaluations=1),),
        "SimCLR, then k-means on features",
    ),
}


def recipe(method: str) -> Recipe:
    """A system by name; NAME+METHOD is closed-world training on what that system has found."""
    name, plus, closed = method.partition("+")
    if name not in RECIPES or (plus and closed not in CLOSED):
        raise UserError(
            f"there is no method {method!r}; choose one of {', '.join(RECIPES)}, or one of them "
            f"followed by +{' or +'.join(CLOSED)}"
        )
    first = RECIPES[name]
    if not plus:
        return first
    if "closed_world" in first.parts:
        raise UserError(f"{name} ends with closed-world training already; leave out +{closed}")
    then = Stage(closed_world(CLOSED[closed], first.stages), "closed_world")
    return Recipe((*first.stages, then), f"{first.about}; closed world by {closed}")

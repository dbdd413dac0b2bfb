"""The systems, as a table: phases, each with a network of its own, and a predictor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from openldn.config import Settings
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.loop import Phase
from openldn.nets.classifier import Classifier
from openldn.phases.closed_world import ClosedWorld, Method
from openldn.phases.discover import Discover
from openldn.phases.fixmatch import FixMatch
from openldn.phases.mean_teacher import MeanTeacher
from openldn.phases.mixmatch import MixMatch
from openldn.phases.refine import Refine
from openldn.phases.rest import Rest
from openldn.phases.supervised import Supervised
from openldn.phases.uda import UDA

Build = Callable[[Problem, Classifier, Settings], Phase]


@dataclass(frozen=True)
class Stage:
    """A phase with what its network has outputs for, and what turns these into classes."""

    build: Build
    predictor: Literal["argmax", "balanced", "reject-and-cluster", "groups"] = "argmax"
    head: Literal["all", "known", "known and rest"] = "all"
    goes_on: bool = False  # whether the network keeps the features of the stage before
    evaluations: int = 10  # how often it is judged on the way, and at its end

    def n_outputs(self, problem: Problem) -> int:
        """How many outputs the network has."""
        if self.head == "all":
            return problem.n_classes
        return problem.n_known + (self.head == "known and rest")


@dataclass(frozen=True)
class Recipe:
    """What a system is made of."""

    stages: tuple[Stage, ...]


def discover(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """Stage 1 of OpenLDN."""
    return Discover(problem, network, settings.discover)


def supervised(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """Labelled images alone."""
    return Supervised(problem, network, settings.discover)


def rest(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """Known classes against the rest."""
    return Rest(problem, network, settings.rest)


def refine(problem: Problem, network: Classifier, settings: Settings) -> Phase:
    """All classes, from labels and from what the network itself says."""
    return Refine(problem, network, settings.refine)


def closed_world(method: Method) -> Stage:
    """Stage 2 of OpenLDN by some method."""

    def build(problem: Problem, network: Classifier, settings: Settings) -> Phase:
        return ClosedWorld(problem, network, settings.closed_world, method)

    return Stage(build)


DISCOVER = Stage(discover)
# Before images are grouped all of them are looked at, which takes as long as many steps: once is enough.
REST = Stage(rest, "groups", "known and rest", evaluations=1)
REFINE = Stage(refine, "balanced", goes_on=True, evaluations=5)
RECIPES: dict[str, Recipe] = {
    "openldn-uda": Recipe((DISCOVER, closed_world(UDA()))),
    "openldn-mixmatch": Recipe((DISCOVER, closed_world(MixMatch()))),
    "openldn-fixmatch": Recipe((DISCOVER, closed_world(FixMatch()))),
    "openldn-mean-teacher": Recipe((DISCOVER, closed_world(MeanTeacher()))),
    "openldn": Recipe((DISCOVER,)),
    "rest-refine": Recipe((REST, REFINE)),
    "rest-uda": Recipe((REST, closed_world(UDA()))),
    "rest": Recipe((REST,)),
    "supervised": Recipe((Stage(supervised, "reject-and-cluster", "known", evaluations=1),)),
}


def recipe(method: str) -> Recipe:
    """A system by name."""
    if method not in RECIPES:
        raise UserError(f"there is no method {method!r}; choose one of {', '.join(RECIPES)}")
    return RECIPES[method]

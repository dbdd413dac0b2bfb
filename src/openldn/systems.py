"""The systems by name. Other packages can add theirs.

A package outside adds its systems by calling `register`, or by an entry point in the group
`openldn.systems` that names a `System`.
"""

import difflib
import warnings
from importlib.metadata import entry_points

from openldn.errors import OpenLDNWarning, UserError
from openldn.methods import (
    cgdl,
    ds3l,
    dtc,
    fine_tuning,
    fixmatch,
    gcd,
    k_means,
    mean_teacher,
    mixmatch,
    openldn,
    orca,
    pim,
    pu_clustering,
    rankstats,
    self_training,
    simclr,
    simgcd,
    supervised,
    trssl,
    turtle,
    uda,
    uno,
    whitened_clustering,
)
from openldn.methods.closed_world import followed_by
from openldn.options import Options
from openldn.training.stage import Stage, System

CLOSED_WORLD: dict[str, Stage] = {
    stage.name: stage
    for stage in (uda.SECOND_STAGE, mixmatch.SECOND_STAGE, fixmatch.SECOND_STAGE, mean_teacher.SECOND_STAGE)
}
"""What may follow any system: orca+uda."""

_METHODS = (
    *(self_training, pu_clustering, fixmatch, ds3l, cgdl, dtc, rankstats, uno, orca, mixmatch, uda),
    *(
        mean_teacher,
        supervised,
        gcd,
        simgcd,
        trssl,
        k_means,
        simclr,
        fine_tuning,
        whitened_clustering,
        pim,
        turtle,
    ),
)
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        *openldn.SYSTEMS,
        *(method.SYSTEM for method in _METHODS),
        k_means.SEMI_SUPERVISED,
    )
}
FORMER_NAMES = {"rest-refine": "pu-self-training", "rest": "pu-clustering"}


_BUILT_IN = frozenset(SYSTEMS)


def register(system: System) -> System:
    """Adds a system, or replaces one that was added before."""
    if "+" in system.name or system.name in _BUILT_IN:
        raise UserError(f"a system cannot be called {system.name!r}: the name is taken or has a +")
    SYSTEMS[system.name] = system
    return system


def load_plugins() -> None:
    """Registers the systems of installed packages; one that cannot be imported is left out."""
    for entry in entry_points(group="openldn.systems"):
        try:
            register(entry.load())
        except Exception as e:  # someone else's code
            warnings.warn(f"the system {entry.name} cannot be used: {e}", OpenLDNWarning, stacklevel=2)


DEFAULT = "openldn-uda"


def chosen(options: Options) -> System:
    """The system that options name; with `weights="fine-tuned"`, as it starts from pretrained weights."""
    system = find(options.method)
    return system.from_pretrained() if options.weights == "fine-tuned" else system


def find(name: str | None) -> System:
    """A system by name, or the default; NAME+METHOD adds closed-world training on its pseudo-labels."""
    name = name or DEFAULT
    first, plus, then = name.partition("+")
    if first in FORMER_NAMES:
        now = FORMER_NAMES[first] + plus + then
        warnings.warn(f"{name} is now called {now}", OpenLDNWarning, stacklevel=2)
        return find(now)
    if first not in SYSTEMS:
        load_plugins()
    if first not in SYSTEMS or (plus and then not in CLOSED_WORLD):
        close = difflib.get_close_matches(name, SYSTEMS, n=1)
        meant = f"perhaps you meant {close[0]}" if close else f"choose one of {', '.join(SYSTEMS)}"
        raise UserError(
            f"there is no system {name!r}; {meant}, or one of these followed by "
            f"+{' or +'.join(CLOSED_WORLD)}: `openldn systems` lists all"
        )
    system = SYSTEMS[first]
    if not plus:
        return system
    if system.stages[-1].name in CLOSED_WORLD and len(system.stages) > 1:
        raise UserError(f"{first} ends with closed-world training already; leave out +{then}")
    return followed_by(system, CLOSED_WORLD[then])

"""The registry: names, combinations, and what may be added from outside."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from openldn import pipeline, systems
from openldn.errors import OpenLDNWarning, UserError
from openldn.methods import k_means, supervised
from openldn.nets.predictors import Argmax
from openldn.options import Options
from openldn.systems import CLOSED_WORLD, SYSTEMS, find, load_plugins, register
from openldn.training.settings import Hyperparameters, Settings
from openldn.training.stage import LENGTH, Stage, System

ALL = [
    *SYSTEMS,
    *(f"{name}+{then}" for name in ("orca", "fixmatch", "k-means", "fine-tuned") for then in CLOSED_WORLD),
]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(systems, "SYSTEMS", dict(SYSTEMS))


@pytest.mark.parametrize("name", ALL)
def test_a_system_is_well_formed(name: str) -> None:
    system = find(name)
    assert system.name == name
    assert system.about
    assert "\n" not in system.about
    names = [stage.name for stage in system.stages]
    assert len({*names}) == len(names)
    assert sum(stage.share for stage in system.stages) == pytest.approx(1)
    assert not system.stages[-1].pretraining  # it predicts
    assert not system.stages[0].continues
    for stage in system.stages:
        assert issubclass(stage.settings, Settings if stage.objective is not None else Hyperparameters)
        assert stage.objective is not None or not issubclass(stage.settings, Settings)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("orca", "scratch"),
        ("k-means", "scratch"),
        ("whitened-clustering", "frozen"),
        ("ss-k-means", "frozen"),
        ("fine-tuned", "fine-tuned"),
        ("pim+uda", "fine-tuned"),
    ],
)
def test_what_pretrained_weights_a_system_is_for(name: str, weights: str) -> None:
    assert find(name).weights == weights


def test_systems_are_combined() -> None:
    assert [stage.name for stage in find("orca+uda").stages] == ["simclr", "orca", "uda"]
    assert [stage.share for stage in find("orca+uda").stages] == [0.25, 0.25, 0.5]
    assert [stage.name for stage in find("uda+uda").stages] == ["uda", "uda-2"]
    assert find("uda+uda").stages[0].objective is not find("uda+uda").stages[1].objective


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("orca+x", r"there is no system 'orca\+x'"),
        ("orca+", r"there is no system 'orca\+'"),
        ("x", "choose one of openldn-uda, .*followed by \\+uda or "),
        ("x+uda", "there is no system"),
        ("simgdc", "perhaps you meant simgcd"),
        ("openldn-uda+uda", "openldn-uda ends with closed-world training already"),
    ],
)
def test_names_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find(name)


@pytest.mark.parametrize(
    ("before", "now"),
    [("rest", "pu-clustering"), ("rest-refine", "pu-self-training"), ("rest+uda", "pu-clustering+uda")],
)
def test_former_names_still_work(before: str, now: str) -> None:
    with pytest.warns(
        OpenLDNWarning, match=f"{before.replace('+', '.')} is now called {now.replace('+', '.')}"
    ):
        found = find(before)
    assert found.name == now


# ------------------------------------------------------------------------------------------ lengths


def lengths(name: str, **options: Any) -> list[Settings]:
    """The settings of the stages that train."""
    made = find(name).settings(Options(**options)).values()
    return [own for own in made if isinstance(own, Settings)]


@pytest.mark.parametrize("name", [name for name in ALL if find(name).trained])
@pytest.mark.parametrize("epochs", [2.0, 10.0])
def test_epochs_are_divided_among_the_stages(name: str, epochs: float) -> None:
    few, many = (lengths(name, epochs=e) for e in (epochs, 2 * epochs))
    assert sum(own.epochs or 0 for own in few) == pytest.approx(epochs)
    for a, b in zip(few, many, strict=True):
        assert b.epochs == pytest.approx(2 * (a.epochs or 0))
        assert (a.least_images, b.least_images) == (0, 0)


@pytest.mark.parametrize("name", ALL)
def test_a_budget_overrules_the_presets_lengths(name: str) -> None:
    for own in lengths(name, budget=1e6):
        assert (own.epochs, own.least_images) == (None, None)


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("name", ALL)
def test_every_stage_has_a_length(name: str, preset: Any) -> None:
    for stage, own in zip(find(name).trained, lengths(name, preset=preset), strict=True):
        if type(own).epochs is None and "epochs" not in type(own).paper:
            assert own.epochs == pytest.approx(stage.share * LENGTH[preset][0])
        assert stage.objective is None or max(own.epochs or 0, own.least_images or 0) > 0


def test_a_length_that_is_set_overrules_epochs() -> None:
    own = find("orca").settings(Options(epochs=8, settings={"simclr.epochs": 3}))
    assert (own["simclr"].epochs, own["orca"].epochs) == (3, 4)


def test_a_qualified_setting_overrules_a_general_one() -> None:
    for order in ({"lr": 0.1, "orca.lr": 0.2}, {"orca.lr": 0.2, "lr": 0.1}):
        own = find("orca").settings(Options(settings=order))
        assert (own["simclr"].lr, own["orca"].lr) == (0.1, 0.2)


# --------------------------------------------------------------------------------------- from outside


def system(name: str, **changes: Any) -> System:
    stage = Stage(name="own", objective=supervised.Supervised, outputs="known", predictor=Argmax)
    return replace(System(name=name, about="A system of one's own.", stages=(stage,)), **changes)


def test_a_system_from_outside() -> None:
    own = register(system("own-system"))
    assert find("own-system") is own
    assert [stage.name for stage in find("own-system+uda").stages] == ["own", "uda"]
    assert register(own) is own  # again: a module may be loaded twice


@pytest.mark.parametrize("name", ["orca", "own+uda"])
def test_names_that_cannot_be_taken(name: str) -> None:
    with pytest.raises(UserError, match="the name is taken or has a \\+"):
        register(system(name))
    assert find("orca") is SYSTEMS["orca"]


@dataclass
class Entry:
    """An entry point of another package."""

    made: System

    def load(self) -> System:
        return self.made


def test_installed_packages_bring_their_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def entry_points(group: str) -> list[Entry]:
        asked.append(group)
        return [Entry(system("theirs"))]

    monkeypatch.setattr(systems, "entry_points", entry_points)
    assert find("orca") is SYSTEMS["orca"]
    assert asked == []  # nothing is loaded for a system of ours
    assert find("theirs").about == "A system of one's own."
    assert asked == ["openldn.systems"]
    load_plugins()  # again, without harm
    assert find("k-means").stages == k_means.SYSTEM.stages


@pytest.mark.parametrize(
    ("choices", "mentions"),
    [
        ({"epochs": 2}, "trains nothing"),
        ({"backbone": "resnet18", "weights": "scratch"}, "backbone of its own"),
        ({"settings": {"lr": 1.0}}, "it has none"),
    ],
)
def test_what_means_nothing_to_a_system_without_training_is_refused(
    choices: dict[str, Any], mentions: str
) -> None:
    with pytest.raises(UserError, match=mentions):
        pipeline.check(Options(method="k-means", **choices))
    pipeline.check(Options(method="k-means", budget=1000.0))  # spends nothing of it


def test_one_length_at_a_time() -> None:
    with pytest.raises(UserError, match="epochs and a budget"):
        pipeline.check(Options(method="orca", budget=1e4, settings={"epochs": 3}))


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"lr": np.float64(1e-3), "batch": np.int64(64)}
    made = find("openldn").settings(Options(settings=given))["discover"]
    assert (made.lr, made.batch) == (1e-3, 64)
    assert type(made.batch) is int


def test_a_setting_of_another_package_has_limits_of_its_own() -> None:
    class Theirs(Settings):
        threshold: float = 3.0

    assert Theirs().with_values({"threshold": 5.0}).threshold == 5.0
    with pytest.raises(UserError, match="lr="):
        Theirs().with_values({"lr": -1.0})


def test_a_system_can_be_registered_anew_but_not_in_place_of_ours() -> None:
    for about in ("first", "second"):
        register(System(name="again", about=about, stages=find("orca").stages))
        assert find("again").about == about
    with pytest.raises(UserError, match="taken"):
        register(System(name="orca", about="another", stages=find("orca").stages))

"""Hyperparameters: types, text, names, limits, and what presets and lengths make of them."""

import math
from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any, get_type_hints

import pytest

from openldn import systems
from openldn.errors import UserError
from openldn.options import Options, fits
from openldn.training.settings import LIMITS, Hyperparameters, Settings

EVERY: dict[str, type[Hyperparameters]] = {
    f"{system.name}.{stage.name}": stage.settings
    for system in systems.SYSTEMS.values()
    for stage in system.stages
}
OF_EVERY = pytest.mark.parametrize("own", EVERY.values(), ids=EVERY)
TRAINED = [name for name, system in systems.SYSTEMS.items() if system.trained]


def settings(method: str, given: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Of every stage, by its name."""
    return systems.find(method).settings(Options(method=method, settings=given or {}, **options))


def lengths(method: str, **options: Any) -> dict[str, Settings]:
    """The settings of the stages that train; others have no length at all."""
    system, made = systems.find(method), settings(method, **options)
    assert [*made] == [stage.name for stage in system.stages]
    trained = {stage.name for stage in system.trained}
    assert trained == {name for name, own in made.items() if isinstance(own, Settings)}
    assert not any(hasattr(own, "epochs") for name, own in made.items() if name not in trained)
    return {name: own for name, own in made.items() if name in trained}


# -------------------------------------------------------------------------------- of every system


@OF_EVERY
def test_every_setting_has_a_meaning_and_values_of_its_type(own: type[Hyperparameters]) -> None:
    """In both presets; and what `config.json` records gives the same settings again."""
    hints = get_type_hints(own)
    for name, meaning in own.described().items():
        assert meaning.endswith(".") or meaning.endswith(")"), name
        assert len(meaning) > 10, name
    for preset in ("fast", "paper"):
        made = own.of_preset(preset)
        made.check()
        for name, value in asdict(made).items():
            assert fits(value, hints[name]), (preset, name, value)
        assert made.with_values(asdict(made)) == made
        as_text = {name: str(value) for name, value in asdict(made).items()}
        assert made.with_values(as_text) == made


@OF_EVERY
def test_the_paper_preset_changes_settings_that_exist(own: type[Hyperparameters]) -> None:
    """A class's own changes win over those it inherits."""
    made, names = own.of_preset("paper"), {field.name for field in fields(own)}
    nearest = dict[str, Any]()
    for c in own.__mro__:
        for name, value in vars(c).get("paper", {}).items():
            nearest.setdefault(name, value)
    assert nearest.keys() <= names
    assert {name: getattr(made, name) for name in nearest} == nearest
    others = names - nearest.keys()
    assert {name: getattr(made, name) for name in others} == {name: getattr(own(), name) for name in others}
    assert not isinstance(made, Settings) or made.optimiser != "muon"


def test_every_number_has_limits() -> None:
    """Or training ends in a traceback, such as of a division by zero, or goes on with NaN."""
    numbers = {
        name: own
        for own in EVERY.values()
        for name, hint in get_type_hints(own).items()
        if name in own.described() and (fits(1, hint) or fits(1.5, hint))
    }
    assert numbers.keys() - LIMITS.keys() == set()
    for name, own in numbers.items():
        made, (low, high) = own(), LIMITS[name]
        assert -math.inf < low < high < math.inf
        whole = type(getattr(made, name)) is int
        for bad in (low - 1, high * 2) if whole else (math.nan, math.inf, low - 1, high * 2):
            with pytest.raises(UserError, match=f"{name}="):
                made.with_values({name: int(bad) if whole else float(bad)})


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("uda", "temperature", 0),
        ("uda", "threshold", -1),
        ("mixmatch", "mixup", -1),
        ("mixmatch", "weight_decay", -1),
        ("mean-teacher", "ramp_until", 0),
        ("mean-teacher", "ema_steps", 0),
        ("gcd", "supervised_temperature", 0),
        ("simgcd", "teacher_temperature", 0),
        ("simgcd", "supervised_weight", 2),
        ("cgdl", "ce_weight", 0),
        ("dtc", "ramp_length", 0),
        ("rankstats", "top_k", 0),
        ("uno", "overclustering", 0),
        ("trssl", "uncertainty_views", 1),
        ("openldn", "tau", -1),
        ("whitened-clustering", "sharpness", 0),
        ("whitened-clustering", "balance", 1.5),
        ("fine-tuned", "early_lr", 0),
        ("fine-tuned", "resolution", 0),
        ("pim", "temperature", 0),
        ("turtle", "inner_steps", 0),
    ],
)
def test_a_value_that_would_end_in_a_traceback_or_nan_is_refused(method: str, name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"{name}=.* give a number from .* to "):
        settings(method, {name: value})


def test_settings_cannot_be_changed_by_accident() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().lr = 1.0  # type: ignore[misc]


# ------------------------------------------------------------------------------------ types and text


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("batch", "32", 32),
        ("lr", "5e-4", 5e-4),
        ("lr", 1, 1),
        ("lr", "1", 1.0),
        ("epochs", "none", None),
        ("epochs", "2.5", 2.5),
        ("pair", "false", False),
        ("pair", "Yes", True),
        ("pair", "0", False),
        ("order", "omega-first", "omega-first"),
        ("optimiser", "adam", "adam"),
    ],
)
def test_text_becomes_a_value_of_the_settings_type(name: str, given: Any, expected: Any) -> None:
    (made,) = settings("openldn", {name: given}).values()
    assert getattr(made, name) == expected
    assert type(getattr(made, name)) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("batch", "many", "give a whole number"),
        ("batch", 2.5, "give a whole number"),
        ("batch", "2.5", "give a whole number"),
        ("batch", None, "give a whole number"),
        ("lr", True, "give a number"),
        ("lr", "fast", "give a number"),
        ("pair", "perhaps", "give true or false"),
        ("pair", 1, "give true or false"),
        ("order", "ω-first", "give one of omega-first, theta-first"),
        ("order", 3, "give one of omega-first, theta-first"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_give(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(UserError, match=rf"{name}=.*{remedy}"):
        settings("openldn", {name: value})


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("openldn", "batch", 1),
        ("openldn", "lr", -1e-3),
        ("openldn", "lr", "nan"),
        ("openldn", "lr", "inf"),
        ("openldn", "epochs", -1),
        ("openldn", "omega_every", 0),
        ("openldn", "cosine_threshold", 1.5),
        ("supervised", "novel_share", 0),
        ("supervised", "novel_share", 1.0),
        ("openldn-uda", "refreshes", -1),
        ("pu-self-training", "ema_share", 2.0),
    ],
)
def test_a_value_out_of_its_limits_is_refused_with_what_to_give(method: str, name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"{name}=.* give a number from .* to "):
        settings(method, {name: value})


# ---------------------------------------------------------------------------------------------- names


def test_a_name_is_for_all_stages_that_have_it_and_a_qualified_one_for_its_stage() -> None:
    """Whichever comes first."""
    for given in ({"batch": 16, "uda.batch": 8}, {"uda.batch": 8, "batch": 16}):
        made = settings("openldn-uda", given)
        assert [made[name].batch for name in ("discover", "uda")] == [16, 8]
    made = settings("openldn-uda", {"temperature": 0.7})  # which the first stage does not have
    assert made["uda"].temperature == 0.7  # type: ignore[attr-defined]
    assert made["discover"] == settings("openldn-uda")["discover"]


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("openldn", "bacth"),
        ("orca", "pair"),
        ("supervised", "refreshes"),
        ("uda", "refreshes"),
        ("openldn", "paper"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_exist(method: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"{method} has no setting '{name}'") as caught:
        settings(method, {name: "1"})
    listed = str(caught.value).partition("it has ")[2].split(", ")
    stages = systems.find(method).stages
    assert {*listed} == {field.name for stage in stages for field in fields(stage.settings)}
    assert len(listed) == len({*listed})


@pytest.mark.parametrize(
    "name", ["discover.temperature", "uad.temperature", "discover.", ".batch", "a.b.batch"]
)
def test_a_wrong_stage_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(UserError, match=r"stages: discover, uda"):
        settings("openldn-uda", {name: 1})


def test_a_method_that_is_there_twice_has_a_name_for_each_stage() -> None:
    made = settings("uda+uda", {"uda.batch": 32, "uda-2.batch": 16})
    assert {name: own.batch for name, own in made.items()} == {"uda": 32, "uda-2": 16}


# -------------------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    "method",
    [*TRAINED, "orca+uda", "rankstats+mixmatch", "k-means+uda", "whitened-clustering+fixmatch"],
)
def test_epochs_are_divided_among_stages_by_their_shares(method: str) -> None:
    for epochs in (2.0, 10.0):
        made = lengths(method, epochs=epochs)
        assert sum(own.epochs or 0 for own in made.values()) == pytest.approx(epochs)
        whole = sum(stage.share for stage in systems.find(method).trained)
        for stage in systems.find(method).trained:
            assert made[stage.name].epochs == pytest.approx(stage.share / whole * epochs)
            assert made[stage.name].least_images == 0


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("method", systems.SYSTEMS)
def test_by_default_every_stage_has_a_length_and_with_a_budget_none_has(method: str, preset: Any) -> None:
    for own in lengths(method, preset=preset).values():
        assert own.epochs is not None
        assert own.least_images is not None
        assert own.epochs > 0 or own.least_images > 0
    for own in lengths(method, preset=preset, budget=1e6).values():
        assert own.epochs is None
        assert own.least_images is None


def test_a_stage_without_a_length_of_its_own_has_its_share_of_the_presets() -> None:
    made = settings("orca")
    assert [(own.epochs, own.least_images) for own in made.values()] == [(8, 45_000), (8, 45_000)]
    made = settings("simgcd", preset="paper")  # SimCLR has one of its own there
    assert [own.epochs for own in made.values()] == [500, 100]


def test_a_stages_own_length_overrules_all() -> None:
    for length, discover in (({}, 8.0), ({"epochs": 10.0}, 5.0)):
        made = settings("openldn-uda", {"uda.epochs": 3}, **length)
        assert (made["uda"].epochs, made["discover"].epochs) == (3, discover)

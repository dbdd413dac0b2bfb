"""Hyperparameters: one frozen dataclass a stage, each field with its meaning.

Defaults are those of the preset `fast`. `paper` holds what the preset `paper` changes, `paper_on` what it
changes on single data sets. All of them can be set by name, and `config.json` records every one.
"""

import inspect
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, dataclass_transform, get_type_hints

from openldn.errors import UserError
from openldn.options import PresetName, described, fits, parsed, plain

Schedule = Literal["constant", "linear", "warm-up", "cosine", "warm-up-cosine", "cosine-7-16", "steps"]
OptimiserName = Literal["adam", "muon", "sgd", "nesterov"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """Subclasses are frozen dataclasses with keyword arguments; they need no decorator."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Hyperparameters(Frozen):
    """Of a stage that trains nothing; those that train have `Settings`."""

    paper: ClassVar[Mapping[str, Any]] = {}
    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def of_preset(cls, preset: PresetName, data: str | None = None) -> Self:
        """The defaults of a preset, on a named data set or on other images."""
        if preset == "fast":
            return cls()
        changed: dict[str, Any] = {}
        for c in reversed(cls.__mro__):
            changed |= vars(c).get("paper", {})
        return cls(**{**changed, **cls.changes().get(data or "", {})})

    @classmethod
    def changes(cls) -> dict[str, dict[str, Any]]:
        """What the preset `paper` changes on single data sets, by data set."""
        found: dict[str, dict[str, Any]] = {}
        for c in reversed(cls.__mro__):
            for data, own in vars(c).get("paper_on", {}).items():
                found.setdefault(data, {}).update(own)
        return found

    @classmethod
    def described(cls) -> dict[str, str]:
        """The meaning of each setting: the string below its field."""
        meanings = dict[str, str]()
        for c in reversed(cls.__mro__):
            with suppress(OSError, TypeError):  # no source: a class made in a console, or a built-in
                found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(c), re.M | re.S)
                meanings |= {name: " ".join(text.split()) for name, text in found}
        return {field.name: meanings.get(field.name, "") for field in fields(cls)}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The same with some values changed; text is converted, a value of another type is an error."""
        hints = get_type_hints(type(self))
        converted = {}
        for name, value in values.items():
            if isinstance(value, str):
                with suppress(ValueError):
                    value = parsed(value, hints[name])
            value = plain(value)
            if not fits(value, hints[name]):
                raise UserError(f"{name}={value!r} cannot be used; give {described(hints[name])}")
            converted[name] = value
        changed = replace(self, **converted)
        changed.check()
        return changed

    def check(self) -> None:
        """An error if a value makes no sense."""
        for field in fields(self):
            value = getattr(self, field.name)
            owner = next(c for c in type(self).__mro__ if field.name in vars(c).get("__annotations__", {}))
            ours = owner.__module__.startswith("openldn.")  # a setting of another package has its own meaning
            low, high = LIMITS[field.name] if ours and field.name in LIMITS else (-math.inf, math.inf)
            if type(value) in (int, float) and not low <= value <= high:
                raise UserError(
                    f"{field.name}={value} cannot be used; give a number from {low:g} to {high:g}"
                )


class Settings(Hyperparameters):
    """What every stage has that trains a network.

    The loop also reads `refreshes`, `period`, `weight_decay`, `progressive_resizing`, `ema_share` and
    `ema_steps` of a stage that has them. A moving average needs `ema_share`.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        "batch": 256,
        "lr": 5e-4,
        "optimiser": "adam",
    }

    epochs: float | None = None
    """Passes over the unlabelled images; by default the stage's share of the preset's length (fast: 16 in
    all, paper: 200)."""
    least_images: int | None = None
    """See at least this many unlabelled images, however few there are; by default the stage's share of the
    preset's number (fast: 90,000 in all, paper: none)."""
    batch: int = 100
    """Images per step."""
    lr: float = 2e-3
    """Peak learning rate."""
    schedule: Schedule = "warm-up"
    """Learning rate: constant; linear (down to 0); warm-up (up over the first tenth, then linear); cosine
    (down to 0); warm-up-cosine (up over the first twentieth); cosine-7-16 (FixMatch's); steps (a tenth after
    70 %, a hundredth after 90 %)."""
    optimiser: OptimiserName = "muon"
    """adam; muon for convolutions that are followed by a normalisation (adam for all other weights); sgd or
    nesterov, with momentum 0.9."""
    l2: float = 0.0
    """L2 penalty of weights, but not of biases and normalisations; for sgd and nesterov."""


LIMITS: dict[str, tuple[float, float]] = {
    name: limits
    for limits, names in {
        (-1.0, 1.0): "cosine_threshold",
        (0.0, 1.0): "balance tau threshold supervised_weight ema_share warm_up smoothing sure",
        (0.0, 0.95): "frozen_share",
        (1e-6, 1.0): "ramp_until ramp_length backbone_lr early_lr resolution",
        (1e-6, 1 - 1e-6): "novel_share",
        (
            0.0,
            1e9,
        ): "epochs l2 lr similarity_lr omega_lr alpha weight_decay mixup unlabelled_weight consistency "
        "margin pair_weight entropy_weight marginal_weight ridge tolerance",
        (1e-6, 1e9): "temperature supervised_temperature teacher_temperature teacher_temperature_start "
        "ce_weight oversampling max_epochs sharpness period",
        (0, 10**15): "least_images max_images",
        (0, 10**6): "refreshes",
        (
            1,
            10**9,
        ): "top_k ratio overclustering omega_every ema_steps steps inner_steps rounds axes start_images",
        (2, 10**6): "batch uncertainty_views",
    }.items()
    for name in names.split()
}


class PretrainedSettings(Settings):
    """What a stage has besides if its network starts from pretrained weights."""

    backbone_lr: float = 0.1
    """Learning rate of the last layer of the backbone, in units of the head's."""
    early_lr: float = 0.1
    """The same of the first layer; in between it changes geometrically."""
    frozen_share: float = 0.3
    """Share of the backbone's layers, from the first, that stay as they are."""
    resolution: float = 0.65
    """Training images are downsized to this share of the input size of the network, in multiples of 32."""


def combined(*bases: type[Settings]) -> type[Settings]:
    """Settings with the fields of several classes; the first one's values count."""
    return type("CombinedSettings", bases, {})


class RejectingSettings(Settings):
    """Of systems that know the known classes alone and reject other images as novel."""

    novel_share: float | None = None
    """Share of the unlabelled images to reject as novel; by default the share under equal class
    frequencies."""

"""What a user may choose for a run. Hyperparameters belong to systems: see `training/settings.py`.

Each option is written once, with its help text. The command line shows them in the three groups below.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.conf import arg

from openldn.errors import UserError

PresetName = Literal["fast", "paper"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "bfloat16"]

Weights = Literal["auto", "frozen", "fine-tuned", "scratch"]

LARGEST: dict[PresetName, int] = {"fast": 32, "paper": 224}  # default size in pixels of larger images
PRETRAINED_SIZE = 224  # the same for pretrained weights


def shown_as(metavar: str, default: str = "", **how: Any) -> Any:
    """A readable placeholder and default for the help text of the command line."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "", **how)


def _option(metavar: str, default: str = "") -> Any:
    """The same, taken as text: `parsed` and `Options.check` have clearer messages than the command line."""
    return shown_as(metavar, default, constructor=str)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images, at which size, and which of them are labelled."""

    size: Annotated[
        int | None,
        _option(
            "PIXELS", "the images' own, up to 224; from scratch 32, or up to 64 if all are square and alike"
        ),
    ] = None
    """Resize images from files to this many pixels."""
    flip: Annotated[bool | None, _option("{true,false}", "true, but false for digits")] = None
    """Whether a horizontally flipped image still shows the same thing."""
    split: Annotated[str | None, _option("FILE.json")] = None
    """Label the same images as another run: its split.json."""
    known: Annotated[float, _option("SHARE", "0.5")] = 0.5
    """Named data sets: share of the classes that are known."""
    labelled: Annotated[float, _option("SHARE", "0.5")] = 0.5
    """Named data sets: share of the known classes' images that are labelled."""
    images: Annotated[int | None, _option("N", "all")] = None
    """Named data sets: use only N training images, the same number of each class."""
    data_dir: Annotated[str | None, _option("DIR", "$OPENLDN_DATA, else the user's cache")] = None
    """Named data sets: the folder they are kept in."""


@dataclass(frozen=True, kw_only=True)
class SystemOptions:
    """What to train."""

    method: Annotated[str | None, _option("NAME", "chosen for one's own images, else openldn-uda")] = None
    """The system (see `openldn systems`); NAME+uda adds closed-world training on its pseudo-labels."""
    novel: Annotated[int | Literal["auto"] | None, _option("N|auto", "auto, or a named set's own")] = None
    """Number of novel classes, or auto to estimate it."""
    preset: Annotated[PresetName, _option("{fast,paper}", "fast")] = "fast"
    """fast: minutes on a CPU. paper: the paper's settings and lengths, days on a GPU."""
    weights: Annotated[
        Weights | None,
        _option(
            "{auto,frozen,fine-tuned,scratch}",
            "auto for one's own images, unless a system, length or hyperparameter is given",
        ),
    ] = None
    """Features of a frozen pretrained network; pretrained weights that go on learning; a network that learns
    from scratch; or auto: what does best on known classes that are hidden as if they were novel."""
    backbone: Annotated[str | None, _option("NAME", "efficientnet-lite0; from scratch the preset's")] = None
    """A name (see `openldn backbones`), a Hugging Face id, or a model's folder; frozen also NAME,NAME."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters by name, for all stages that have them, or by STAGE.NAME for one."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How long to train, and on what."""

    epochs: Annotated[float | None, _option("E", "the preset's")] = None
    """Passes over the unlabelled images, divided among the stages. All schedules scale with it."""
    budget: Annotated[float | None, _option("PASSES")] = None
    """Instead of --epochs: image passes through the network (forward 1, backward 2), pretraining included."""
    seed: Annotated[int, _option("S", "0")] = 0
    """Random seed."""
    device: Annotated[DeviceName, _option("{auto,cpu,cuda,mps}", "auto")] = "auto"
    """Device to train on; auto takes the fastest one available."""
    precision: Annotated[Precision | None, _option("{float32,bfloat16}", "faster; paper: float32")] = None
    """Floating-point precision; bfloat16 is mixed precision."""
    save_every: Annotated[float, _option("SECONDS", "60")] = 60.0
    """Time between checkpoints."""
    evaluations: Annotated[int | None, _option("N", "the stage's own number, ten for most")] = None
    """Evaluations per stage, including the last; needs ground truth."""


@dataclass(frozen=True, kw_only=True)
class Options(DataOptions, SystemOptions, TrainingOptions):
    """All that may be chosen for a run."""

    @property
    def largest(self) -> int:
        """The size, in pixels, that larger images are resized to."""
        return LARGEST[self.preset] if self.weights in (None, "scratch") else PRETRAINED_SIZE

    def check(self) -> None:
        """An error if a value cannot be used, whatever system it is for."""
        hints = get_type_hints(Options)
        for name, hint in hints.items():
            value = getattr(self, name)
            if name != "settings" and not fits(value, hint):
                raise UserError(f"{name}={value!r} cannot be used; give {described(hint)}")
        positive = {"epochs": self.epochs, "budget": self.budget, "images": self.images}
        for name, given in positive.items():
            if given is not None and not 0 < given < math.inf:
                raise UserError(f"{name} {given} is too small or too large; give a finite number above 0")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"the seed {self.seed} cannot be used; give a whole number from 0 to 2**63 - 1")
        if self.budget is not None and self.epochs is not None:
            raise UserError("--epochs and --budget both say how long to train; give one of them")
        for name, given in (("save_every", self.save_every), ("evaluations", self.evaluations)):
            if given is not None and not given >= 0:
                raise UserError(f"{name} {given} is negative; give 0 or more")


OF_NAMED_SETS = ("known", "labelled", "images", "data_dir")  # these do not apply to one's own images


# --------------------------------------------------------------------------- values and their types


def plain(value: Any) -> Any:
    """A number of numpy's as a plain one; anything else as it is."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; whole numbers are floats too, truth values are not numbers."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is (type(None) if hint is None else hint)


def described(hint: Any) -> str:
    """A type in words: "a whole number", "one of fast, paper"."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return " or ".join(described(part) for part in parts)
    if get_origin(hint) is Literal:
        words = [str(word) for word in get_args(hint)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(hint, str(hint))


def parsed(text: str, hint: Any) -> Any:
    """A value of an annotated type from text; ValueError if it is none."""
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            try:
                return parsed(text, part)
            except ValueError:
                continue
        raise ValueError(text)
    if get_origin(hint) is Literal:
        words = {str(word): word for word in get_args(hint)}
        return words[text] if text in words else _no(text)
    if hint in (None, type(None)):
        return None if text.lower() == "none" else _no(text)
    if hint is bool:
        truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return truth[text.lower()] if text.lower() in truth else _no(text)
    return hint(text)


def _no(text: str) -> Any:
    raise ValueError(text)

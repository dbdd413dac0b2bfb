"""One reader a file: each gives a Problem, or a LabelledSet that is split into one."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from openldn.data.problem import LabelledSet
from openldn.data.sources import cifar10, digits
from openldn.errors import UserError


@dataclass(frozen=True)
class NamedSet:
    """A benchmark: what it is and where it comes from."""

    reader: ModuleType
    classes: int
    images: int
    size: int
    how_to_get: str


NAMED: dict[str, NamedSet] = {
    "digits": NamedSet(digits, 10, 1_797, 8, "comes with scikit-learn"),
    "cifar10": NamedSet(
        cifar10,
        10,
        60_000,
        32,
        "unpack cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html",
    ),
}


def home(data_dir: str | Path | None) -> Path:
    """Where named sets are kept: as told, $OPENLDN_DATA, or a folder in the user's cache."""
    if data_dir is not None:
        return Path(data_dir)
    if told := os.environ.get("OPENLDN_DATA"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openldn"


def find(name: str, data_dir: str | Path | None) -> Path:
    """The folder that holds a set: `home`/`name` if that is there, else `home` itself."""
    base = home(data_dir)
    return base / name if (base / name).is_dir() else base


def read_named(name: str, data_dir: str | Path | None) -> LabelledSet:
    """A benchmark by name."""
    if name not in NAMED:
        raise UserError(
            f"there is no folder or data set {name!r}; give a folder of images or one of {', '.join(NAMED)}"
        )
    named: LabelledSet = NAMED[name].reader.read(find(name, data_dir))
    return named

"""Named data sets: finding, downloading and reading them."""

import shutil
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Protocol

from openldn.data import archives, store
from openldn.data.archives import Archive
from openldn.data.benchmark import Benchmark
from openldn.data.console import say
from openldn.data.sources import digits, herbarium19, imagenet100, stanford_cars
from openldn.data.sources.cifar import CIFAR10, CIFAR100
from openldn.data.sources.class_folders import CUB
from openldn.data.sources.mnist import FASHION_MNIST, MNIST
from openldn.data.sources.photographs import FGVC_AIRCRAFT, OXFORD_PETS, TINY_IMAGENET
from openldn.data.sources.svhn import SVHN
from openldn.errors import UserError


class Reader(Protocol):
    """A reader of a data set in its publisher's layout: a module or an object."""

    def missing(self, folder: Path) -> str | None:
        """Why the set is not in `folder`, or None if it is. Does not look for single images."""

    def read(self, folder: Path) -> Benchmark:
        """The set: pixels, or a list of image files."""


@dataclass(frozen=True)
class NamedSet:
    """A data set, and where it comes from."""

    reader: Reader
    classes: int
    images: int  # training and test
    size: int  # pixels
    licence: str
    archives: tuple[Archive, ...]
    how_to_get: str
    also: tuple[str, ...]  # other archives, each with all of it

    @property
    def offered(self) -> bool:
        """Whether it can be downloaded without a login."""
        return bool(self.archives) and all(archive.url for archive in self.archives)


READERS: dict[str, Reader] = {
    "digits": digits,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "svhn": SVHN,
    "tiny-imagenet": TINY_IMAGENET,
    "oxford-pets": OXFORD_PETS,
    "imagenet-100": imagenet100,
    "fgvc-aircraft": FGVC_AIRCRAFT,
    "stanford-cars": stanford_cars,
    "herbarium19": herbarium19,
    "cub": CUB,
    "mnist": MNIST,
    "fashion-mnist": FASHION_MNIST,
}


def _named_set(name: str) -> NamedSet:
    about = _TABLE[name]
    address, also = about.pop("address", None), about.pop("also", ())
    archives = tuple(
        Archive(file, address and address + file, f"md5:{found['md5']}", found["size"])
        for file, found in about.pop("files", {}).items()
    )
    return NamedSet(READERS[name], archives=archives, also=tuple(also), **about)


_TABLE = tomllib.loads(resources.files("openldn.data.sources").joinpath("named.toml").read_text("utf-8"))
NAMED = {name: _named_set(name) for name in READERS}


def home(data_dir: str | Path | None) -> Path:
    """The folder of all named sets: `data_dir`, $OPENLDN_DATA, or one in the user's cache."""
    return store.cache("OPENLDN_DATA", "") if data_dir is None else Path(data_dir)


def find(name: str, data_dir: str | Path | None) -> Path | None:
    """The folder that holds all of a set, if any: as downloaded, under its name, or `home` itself."""
    reader = NAMED[name].reader
    return next((place for place in _places(name, data_dir) if reader.missing(place) is None), None)


def read_named(name: str, data_dir: str | Path | None) -> Benchmark:
    """A data set by name. If only its archives are there, they are unpacked first."""
    named, at = _named(name), find(name, data_dir) or _unpacked(name, data_dir)
    if at is None:
        places = _places(name, data_dir)
        missing = named.reader.missing(next((place for place in places if place.is_dir()), places[1]))
        offer = f"get it with `openldn datasets --get {name}`, or " if named.offered else ""
        remedy = f"{offer}{named.how_to_get} in {home(data_dir) / name}, or say where it is with --data-dir"
        raise UserError(f"{name} is not there, or not complete ({missing}); {remedy}")
    return named.reader.read(at)


def get(name: str, data_dir: str | Path | None) -> Path:
    """The folder that holds a set, downloaded and unpacked if necessary."""
    named = _named(name)
    if (at := find(name, data_dir) or _unpacked(name, data_dir)) is not None:
        say(f"{name} is there already: {at}")
        return at
    if not named.offered:
        remedy = f"{named.how_to_get} in {home(data_dir) / name}"
        raise UserError(f"{name} cannot be downloaded automatically; {remedy}")
    from openldn.data import download  # imported late: HTTP libraries take long to load

    return download.get(name, named.archives, home(data_dir) / name)


def _named(name: str) -> NamedSet:
    if name not in NAMED:
        raise UserError(f"there is no data set {name!r}; give one of {', '.join(NAMED)}")
    return NAMED[name]


def _unpacked(name: str, data_dir: str | Path | None) -> Path | None:
    """Unpacks the archives of a set, if they are where they belong; returns the folder that then holds it."""
    named, (into, *places) = NAMED[name], _places(name, data_dir)
    for files in ([a.file for a in named.archives], *([file] for file in named.also)):
        if into.exists() or not any(map(archives.is_archive, files)):
            continue
        for place in places:
            if all((place / file).is_file() for file in files):
                archives.unpack([place / file for file in files], into)
                missing = named.reader.missing(into)
                if missing is None:
                    return into
                shutil.rmtree(into)
                wrong = f"{', '.join(files)} in {place} does not hold all of {name} ({missing})"
                raise UserError(f"{wrong}; {named.how_to_get} in {home(data_dir) / name}")
    return None


def _places(name: str, data_dir: str | Path | None) -> tuple[Path, Path, Path]:
    base = home(data_dir)
    return base / name / "unpacked", base / name, base

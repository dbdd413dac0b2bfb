"""Data sets of image files: reads their lists and class folders, and checks that all files are there."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openldn.data.archives import stays_inside
from openldn.data.benchmark import Benchmark
from openldn.data.image_files import SUFFIXES
from openldn.data.pixels import Listing
from openldn.data.text_files import read_text
from openldn.errors import UserError

Labelled = tuple[str, Hashable]  # an image and its class, as the publisher names them


@dataclass(frozen=True)
class FileList:
    """The training or test images, as the publisher lists them."""

    source: Path  # the list, or the folder of class folders
    images: Sequence[Labelled]  # as paths relative to the folder of the set, with /


@dataclass(frozen=True)
class FixedLayout:
    """A reader of a set that comes in one layout only."""

    read: Callable[[Path], Benchmark]
    needs: tuple[str, ...]  # see `missing`

    def missing(self, folder: Path) -> str | None:
        return missing(folder, *self.needs)


def benchmark(
    name: str,
    root: Path,
    train: FileList,
    test: FileList,
    classes: Sequence[str | int],
    *,
    keys: Sequence[Hashable] | None = None,
    size: int = 224,
    remedy: str,
) -> Benchmark:
    """A data set; an error unless each image is there, below `root`, has a known class and is listed once.

    `keys` are the names of the classes in the lists, in the order of `classes`; by default they are the same.
    """
    ids = {key: i for i, key in enumerate(classes if keys is None else keys)}
    listings = []
    for part in (train, test):
        paths = _paths(root, part, remedy)
        for _, label in part.images:
            if label not in ids:
                of = f"which is none of the set's {len(ids)}"
                raise UserError(f"{part.source} names the class {label!r}, {of}; {remedy}")
        labels = np.array([ids[label] for _, label in part.images], np.int64)
        names = tuple(path.relative_to(root).as_posix() for path in paths)
        listings.append(Listing(names, labels, tuple(map(str, paths)), str(root)))
    image, times = Counter(listings[0].names + listings[1].names).most_common(1)[0]
    if times > 1:
        raise UserError(f"{image} is named {times} times in {train.source} and {test.source}; {remedy}")
    return Benchmark(name, listings[0], listings[1], tuple(classes), size)


def from_folders(root: Path, folders: Sequence[str], labels: Sequence[Hashable], remedy: str) -> FileList:
    """The images in class folders below `root`, one folder per label, sorted by name; no hidden files."""
    images = list[Labelled]()
    for folder, label in zip(folders, labels, strict=True):
        files = sorted(_files(root / folder)) if stays_inside(folder) else []
        found = [file for file in files if file.lower().endswith(SUFFIXES) and not file.startswith(".")]
        if not found:
            raise UserError(f"the class folder {root / folder} is missing or holds no image; {remedy}")
        images += [(f"{folder}/{file}", label) for file in found]
    return FileList(root / os.path.commonpath(folders) if folders else root, images)


def from_list(root: Path, file: str, path: str, n_columns: int, remedy: str) -> FileList:
    """The images in a list with so many columns: image, class and others. The last one may have spaces.

    `path` is where an image is, with {} for its name in the list.
    """
    images = []
    for i, line in enumerate(lines(root / file, remedy), 1):
        row = line.split(None, n_columns - 1)
        if len(row) < n_columns:
            raise UserError(f"entry {i} of {root / file} has fewer than {n_columns} columns; {remedy}")
        images.append((path.format(row[0]), row[1]))
    return FileList(root / file, images)


def placed(root: Path, images: Sequence[Labelled], places: Sequence[str], default: str) -> list[Labelled]:
    """The same with the folder that the names are relative to: the one in which the first image is found."""
    first = images[0][0] if images and stays_inside(images[0][0]) else ""
    below = next((place for place in places if (root / place / first).is_file()), default)
    return [(f"{below}/{name}", label) for name, label in images]


def lines(path: Path, remedy: str) -> list[str]:
    """The lines of a text file that are not empty."""
    return [line for line in map(str.strip, read_text(path, remedy).splitlines()) if line]


def missing(folder: Path, *names: str) -> str | None:
    """Which of these files and, with a final /, folders is missing, if any."""
    for name in names:
        path = folder / name
        if not (path.is_dir() if name.endswith("/") else path.is_file()):
            return f"{path} is missing"
    return None


def _paths(root: Path, part: FileList, remedy: str) -> list[Path]:
    """The paths of all images. Folders are listed, since looking for each file is slow on a network disk."""
    if not part.images:
        raise UserError(f"{part.source} names no image; {remedy}")
    there, paths = dict[str, tuple[Path, set[str]]](), []
    for name, _ in part.images:
        below, _, file = name.rpartition("/")
        if below not in there:
            if not stays_inside(name):
                raise UserError(f"{part.source} names {name!r}, which is outside {root}; {remedy}")
            there[below] = root / below, _files(root / below)
        folder, files = there[below]
        if file not in files:
            raise UserError(f"{part.source} names the image {folder / file}, which is missing; {remedy}")
        paths.append(folder / file)
    return paths


def _files(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except OSError:
        return set()

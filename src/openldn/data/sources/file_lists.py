"""Data sets of image files: reads their lists and class folders, and checks that all files are there."""

import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from openldn.data.benchmark import Benchmark
from openldn.data.image_files import SUFFIXES
from openldn.data.listing import Listing
from openldn.data.text_files import read_text
from openldn.errors import UserError


@dataclass(frozen=True)
class FileList:
    """The training or test images, as the publisher lists them."""

    source: Path  # the list, or the folder of class folders
    names: Sequence[str]  # (n,) paths relative to the folder of the set, with /
    labels: Sequence[Hashable]  # (n,) classes, as the list names them


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
        unknown = next((label for label in part.labels if label not in ids), None)
        if unknown is not None:
            raise UserError(
                f"{part.source} names the class {unknown!r}, which is none of the set's {len(ids)}; {remedy}"
            )
        labels = np.array([ids[label] for label in part.labels], np.int64)
        names = tuple(path.relative_to(root).as_posix() for path in paths)
        listings.append(Listing(names, labels, tuple(map(str, paths)), str(root)))
    image, times = Counter(listings[0].names + listings[1].names).most_common(1)[0]
    if times > 1:
        raise UserError(f"{image} is named {times} times in {train.source} and {test.source}; {remedy}")
    return Benchmark(name, listings[0], listings[1], tuple(classes), size)


def from_folders(root: Path, folders: Sequence[str], labels: Sequence[Hashable], remedy: str) -> FileList:
    """The images in class folders below `root`, one folder per label, sorted by name."""
    names, given = list[str](), list[Hashable]()
    for folder, label in zip(folders, labels, strict=True):
        found = sorted(file for file in _files(root / folder) if is_image(file)) if is_inside(folder) else []
        if not found:
            raise UserError(f"the class folder {root / folder} is missing or holds no image; {remedy}")
        names += [f"{folder}/{file}" for file in found]
        given += [label] * len(found)
    return FileList(root / os.path.commonpath(folders) if folders else root, names, given)


def is_image(file: str) -> bool:
    """Whether a file is an image, by its name; hidden files are not."""
    return file.lower().endswith(SUFFIXES) and not file.startswith(".")


def rows(path: Path, columns: int, remedy: str) -> list[list[str]]:
    """The lines of a list, split at white space into so many columns; the last column keeps its spaces."""
    split = [line.split(None, columns - 1) for line in lines(path, remedy)]
    short = next((i for i, row in enumerate(split, 1) if len(row) < columns), None)
    if short is not None:
        raise UserError(f"entry {short} of {path} has fewer than {columns} columns; {remedy}")
    return split


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


def is_inside(name: str) -> bool:
    """Whether a relative path stays below its folder."""
    plain = PurePosixPath(name)
    leaves = plain.is_absolute() or ".." in plain.parts or PureWindowsPath(name).drive
    return not (leaves or "\\" in name or "\0" in name)


def _paths(root: Path, part: FileList, remedy: str) -> tuple[Path, ...]:
    """The paths of all images. Folders are listed, since looking for each file is slow on a network disk."""
    if not part.names:
        raise UserError(f"{part.source} names no image; {remedy}")
    there, paths = dict[str, tuple[Path, set[str]]](), []
    for name in part.names:
        below, _, file = name.rpartition("/")
        if below not in there:
            if not is_inside(name):
                raise UserError(f"{part.source} names {name!r}, which is outside {root}; {remedy}")
            there[below] = root / below, _files(root / below)
        folder, files = there[below]
        if file not in files:
            raise UserError(f"{part.source} names the image {folder / file}, which is missing; {remedy}")
        paths.append(folder / file)
    return tuple(paths)


def _files(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except OSError:
        return set()

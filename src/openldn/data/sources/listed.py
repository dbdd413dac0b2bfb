"""Sets that come as image files: their lists and class folders, and whether all that they name is there."""

import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from openldn.data.images import SUFFIXES
from openldn.data.problem import Listing
from openldn.errors import UserError


@dataclass(frozen=True)
class Part:
    """A training or test part, as its publisher lists it."""

    source: Path  # the list or folder that says so
    names: Sequence[str]  # (n,) paths below the set's folder, with /
    labels: Sequence[Hashable]  # (n,) what the publisher calls their classes


def listing(
    name: str,
    root: Path,
    train: Part,
    test: Part,
    classes: Sequence[str | int],
    *,
    keys: Sequence[Hashable] | None = None,
    size: int = 224,
    remedy: str,
) -> Listing:
    """The set, if every image is there, lies below `root`, has a known class and is named once.

    `keys` are what the parts call the `classes`, in the same order; by default the same.
    """
    ids = {key: i for i, key in enumerate(classes if keys is None else keys)}
    paths, labels = [], []
    for part in (train, test):
        paths.append(_paths(root, part, remedy))
        unknown = next((label for label in part.labels if label not in ids), None)
        if unknown is not None:
            raise UserError(
                f"{part.source} names the class {unknown!r}, which is none of the set's {len(ids)}; {remedy}"
            )
        labels.append(np.array([ids[label] for label in part.labels], np.int64))
    path, times = Counter((*paths[0], *paths[1])).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path} is named {times} times in {train.source} and {test.source}; {remedy}")
    return Listing(name, root, paths[0], labels[0], paths[1], labels[1], tuple(classes), size)


def from_folders(root: Path, folders: Sequence[str], labels: Sequence[Hashable], remedy: str) -> Part:
    """The images in class folders below `root`, one folder a label; in each by name."""
    names, given = list[str](), list[Hashable]()
    for folder, label in zip(folders, labels, strict=True):
        found = sorted(file for file in _files(root / folder) if is_image(file)) if is_inside(folder) else []
        if not found:
            raise UserError(f"the class folder {root / folder} is missing or holds no image; {remedy}")
        names += [f"{folder}/{file}" for file in found]
        given += [label] * len(found)
    return Part(root / os.path.commonpath(folders) if folders else root, names, given)


def is_image(file: str) -> bool:
    """Whether a file's name is an image's; hidden ones are none."""
    return file.lower().endswith(SUFFIXES) and not file.startswith(".")


def rows(path: Path, columns: int, remedy: str) -> list[list[str]]:
    """The lines of a list, split at white space into so many columns; the last keeps its spaces."""
    split = [line.split(None, columns - 1) for line in lines(path, remedy)]
    short = next((i for i, row in enumerate(split, 1) if len(row) < columns), None)
    if short is not None:
        raise UserError(f"entry {short} of {path} has fewer than {columns} columns; {remedy}")
    return split


def lines(path: Path, remedy: str) -> list[str]:
    """The lines of a text file that are not empty."""
    text = read_text(path, remedy)
    return [line for line in map(str.strip, text.splitlines()) if line]


def read_text(path: Path, remedy: str) -> str:
    """A text file, or an error that says how to mend it."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file; {remedy}") from None


def missing(folder: Path, *names: str) -> Path | None:
    """The first of these that is not there; a name that ends in / is a folder's."""
    for name in names:
        path = folder / name
        if not (path.is_dir() if name.endswith("/") else path.is_file()):
            return path
    return None


def is_inside(name: str) -> bool:
    """Whether a name in a list stays below the folder that it is relative to."""
    plain = PurePosixPath(name)
    leaves = plain.is_absolute() or ".." in plain.parts or PureWindowsPath(name).drive
    return not (leaves or "\\" in name or "\0" in name)


def _paths(root: Path, part: Part, remedy: str) -> tuple[Path, ...]:
    """Each folder is listed once: asking for every file takes minutes on a network disk."""
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
            raise UserError(f"{part.source} names the image {folder / file}, which is not there; {remedy}")
        paths.append(folder / file)
    return tuple(paths)


def _files(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except OSError:
        return set()

"""The user's own images: a folder, labelled by class folders or a CSV file, or a CSV file alone."""

import csv
import io
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from openldn.data import image_files
from openldn.data.pixels import Listing
from openldn.data.text_files import read_text
from openldn.errors import UserError

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
LeftOut = tuple[tuple[str, str], ...]  # names of files that look like images and are not read, with reasons


def find(
    folder: Path, labels: Path | None = None, split: Mapping[str, str] | None = None
) -> tuple[Listing, LeftOut]:
    """The images below a folder, labelled by `split`, by the CSV file `labels`, or by class folders.

    Also the files that look like images, but whose format is not read. They need no label and may have one.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give a folder of images or the name of a data set")
    found, others = image_files.find(folder)
    names, left_out = ([image_files.printable(name) for name in some] for some in (found, others))
    if not found:
        what = f" that can be read ({left_out[0]}: {image_files.NOT_READ})" if left_out else ""
        remedy = f"it takes {', '.join(s[1:] for s in image_files.SUFFIXES)}"
        raise UserError(f"there are no images{what} in {folder}; {remedy}")
    if split is not None:
        given = _matched(split, names, "the split", left_out)
    elif labels is not None:
        read = trimmed(_relative(folder, read_labels(labels)), [*names, *left_out])
        given = _matched(read, names, str(labels), left_out)
    else:
        given = _from_folders(folder, names)
    files = tuple(os.path.join(folder, name) for name in found)
    listing = Listing(tuple(names), np.array(given, object), files, root=str(folder))
    return listing, tuple((name, image_files.NOT_READ) for name in left_out)


def find_listed(table: Path, split: Mapping[str, str] | None = None) -> Listing:
    """The images in a CSV file, by absolute paths or paths relative to the folder of the file."""
    given = read_labels(table)
    given = trimmed(given, [name for name in given if os.path.isfile(table.parent / name)])
    if not given:
        raise UserError(f"{table} names no image; its lines must be: image,label")
    names = [*given]
    labels = [*given.values()] if split is None else _matched(split, names, "the split")
    files = tuple(os.path.join(table.parent, name) for name in names)
    return Listing(tuple(names), np.array(labels, object), files, root=str(table))


def read_labels(path: Path) -> dict[str, str]:
    """The label of each image in a CSV file of `image,label`."""
    text = read_text(path, "give a UTF-8 CSV file of image,label")
    given: dict[str, str] = {}
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        columns = [c.strip().lower() for c in reader.fieldnames or ()]
        lacking = [c for c in ("image", "label") if c not in columns]
        if lacking:
            wrong = f"{path} has no column {lacking[0]!r} (it has {', '.join(columns) or 'none'})"
            raise UserError(f"{wrong}; its first line must be: image,label")
        reader.fieldnames = columns
        for row in reader:
            if any(row.get(None) or ()):
                wrong = f"line {reader.line_num} of {path} has more fields than its first line"
                raise UserError(f"{wrong}; put names with commas between double quotes")
            # Space around an image's name may be part of it: see `trimmed`.
            image, label = (row["image"] or "").removeprefix("./"), (row["label"] or "").strip()
            label = "" if label == "-1" else label  # as in arrays
            if image.strip() or label:  # spreadsheets write empty rows
                _set(given, image, label, f"in {path} ")
    except csv.Error as e:
        raise UserError(f"{path} is not a readable CSV file ({e}); save it as UTF-8 CSV") from None
    return given


def trimmed(given: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The same without space around the names of images, except where it is part of one of `names`."""
    known = {*names}
    made: dict[str, str] = {}
    for name, label in given.items():
        _set(made, name if name in known else name.strip().removeprefix("./"), label)
    return made


def _from_folders(folder: Path, names: list[str]) -> list[str]:
    """The first folder of each name is its class."""
    loose = [name for name in names if "/" not in name]
    if loose:
        folders = f"class folders and '{UNLABELLED_FOLDERS[0]}'"
        remedy = f"put them into {folders}, or give their labels with --labels FILE.csv"
        raise UserError(f"{len(loose)} images are directly in {folder} (such as {loose[0]}); {remedy}")
    classes = [name.split("/")[0] for name in names]
    return ["" if name.lower() in UNLABELLED_FOLDERS else name for name in classes]


def _relative(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The same with absolute paths made relative to the folder, if they are in it."""
    made: dict[str, str] = {}
    for name, label in given.items():
        path = Path(name)
        ways = [path, path.parent.resolve() / path.name] if path.is_absolute() else []  # links or not
        inside = next((way for way in ways if way.is_relative_to(folder)), None)
        _set(made, name if inside is None else inside.relative_to(folder).as_posix(), label)
    return made


def _matched(
    given: Mapping[str, str], names: list[str], what: str, left_out: Collection[str] = ()
) -> list[str]:
    """The label of each name, "" if it has none. Labels of images that are left out are ignored."""
    missing = sorted(set(given) - set(names) - set(left_out))
    if missing:
        wrong = f"{what} names {len(missing)} images that are not in the folder (such as {missing[0]!r})"
        raise UserError(f"{wrong}; give paths relative to the folder")
    return [given.get(name, "") for name in names]


def _set(given: dict[str, str], name: str, label: str, where: str = "") -> None:
    if given.setdefault(name, label) != label:
        raise UserError(f"{where}{name!r} is labelled {given[name]!r} and {label!r}; keep one")

"""One's own images: a folder that is labelled by class folders or by a CSV file, or a CSV file alone."""

import csv
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from openldn.data import images
from openldn.errors import UserError

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")


@dataclass(frozen=True)
class Own:
    """Files before any is opened, with what they are called and the labels given."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]  # "" is unlabelled


def find(folder: Path, labels: Path | None = None, split: Mapping[str, str] | None = None) -> Own:
    """`folder`/<class>/* are labelled and `folder`/unlabelled/* not; or `labels` or a split says it."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give a folder of images or a data set's name")
    found = images.find(folder)
    if not found:
        raise UserError(
            f"there are no images in {folder}; it takes {', '.join(s[1:] for s in images.SUFFIXES)}"
        )
    names = [images.shown(name) for name in found]
    if split is not None:
        given = _matched(split, names, "the split")
    elif labels is not None:
        given = _matched(trimmed(_below(folder, read_labels(labels)), names), names, str(labels))
    else:
        given = _from_folders(folder, names)
    return Own(tuple(os.path.join(folder, name) for name in found), tuple(names), tuple(given))


def find_listed(table: Path, split: Mapping[str, str] | None = None) -> Own:
    """The images that a CSV file names, by absolute paths or by paths relative to the file's own folder."""
    given = read_labels(table)
    given = trimmed(given, [name for name in given if (table.parent / name).is_file()])
    if not given:
        raise UserError(f"{table} names no image; its lines must be: image,label")
    names = [*given]
    labels = [*given.values()] if split is None else _matched(split, names, "the split")
    paths = tuple(os.path.join(table.parent, name) for name in names)
    return Own(paths, tuple(names), tuple(labels))


def _from_folders(folder: Path, names: list[str]) -> list[str]:
    """The first folder of each name is its class."""
    loose = [name for name in names if "/" not in name]
    if loose:
        raise UserError(
            f"{len(loose)} images lie directly in {folder} (such as {loose[0]}); put them into class folders "
            f"and '{UNLABELLED_FOLDERS[0]}', or say what they are with --labels FILE.csv"
        )
    tops = [name.split("/")[0] for name in names]
    return ["" if top.lower() in UNLABELLED_FOLDERS else top for top in tops]


def _below(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The same with absolute paths made relative to the folder, where they lie in it."""
    relative: dict[str, str] = {}
    for name, label in given.items():
        path = Path(name)
        ways = [path, path.parent.resolve() / path.name] if path.is_absolute() else []  # through links or not
        inside = next((way for way in ways if way.is_relative_to(folder)), None)
        name = name if inside is None else inside.relative_to(folder).as_posix()
        if relative.setdefault(name, label) != label:
            raise UserError(f"{name!r} is labelled {relative[name]!r} and {label!r}; keep one")
    return relative


def _matched(given: Mapping[str, str], names: list[str], what: str) -> list[str]:
    """The label of each name, "" where there is none."""
    missing = sorted(set(given) - set(names))
    if missing:
        raise UserError(
            f"{what} names {len(missing)} images that are not in the folder (such as {missing[0]!r}); "
            "give paths relative to the folder"
        )
    return [given.get(name, "") for name in names]


def trimmed(given: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The same without the space around an image's name, unless it is so called."""
    known = {*names}
    plain: dict[str, str] = {}
    for name, label in given.items():
        name = name if name in known else name.strip().removeprefix("./")
        if plain.setdefault(name, label) != label:
            raise UserError(f"{name!r} is labelled {plain[name]!r} and {label!r}; keep one")
    return plain


def read_labels(path: Path) -> dict[str, str]:
    """A CSV file of `image,label`, as a dictionary."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            reader = csv.DictReader(f)
            columns = [c.strip().lower() for c in reader.fieldnames or ()]
            lacking = [c for c in ("image", "label") if c not in columns]
            if lacking:
                raise UserError(
                    f"{path} has no column {lacking[0]!r} (it has {', '.join(columns) or 'none'}); "
                    "its first line must be: image,label"
                )
            reader.fieldnames = columns
            given: dict[str, str] = {}
            for row in reader:
                if any(row.get(None) or ()):
                    raise UserError(
                        f"line {reader.line_num} of {path} has more fields than its first line; "
                        "put names with commas between double quotes"
                    )
                # Space around a name may be a part of it: see `trimmed`.
                image, label = (row["image"] or "").removeprefix("./"), (row["label"] or "").strip()
                label = "" if label == "-1" else label  # as in arrays
                if not image.strip() and not label:  # a spreadsheet's empty row
                    continue
                if given.setdefault(image, label) != label:
                    raise UserError(
                        f"{path} says of {image!r} once {given[image]!r} and once {label!r}; keep one"
                    )
    except FileNotFoundError:
        raise UserError(f"there is no label file {path}; check the path") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); give a CSV file of image,label") from None
    except (UnicodeDecodeError, csv.Error) as e:
        raise UserError(f"{path} is not a readable CSV file ({e}); save it as UTF-8 CSV") from None
    return given

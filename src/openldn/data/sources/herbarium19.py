"""Herbarium 2019 (FGVC6): 36,904 pressed plants of 683 species, with the publisher's numbers for classes.

The publisher's test images have no public labels, so its validation images are the test part. It packs both
in class folders, `small-train/<category>/*.jpg` and `small-validation/<category>/*.jpg`. Copies with lists in
COCO's form (`train.json` and `val.json`, as the challenge's later years have them) are read as well.
"""

import json
import os
from pathlib import Path

from openldn.data.problem import Listing
from openldn.data.sources import listed
from openldn.errors import UserError

TRAIN, TEST = "small-train", "small-validation"
LISTS = ("train.json", "val.json")
BELOW = {"train.json": (TRAIN, "train", "."), "val.json": (TEST, "small-val", "validation", "val", ".")}
REMEDY = "unpack small-train.tar.gz and small-validation.tar.gz again"


def read(folder: Path) -> Listing:
    """Classes in the order of their numbers (not of their letters, by which 10 comes before 2)."""
    if _has_lists(folder):
        train, test = (_from_json(folder, file) for file in LISTS)
        classes = sorted({label for label in train.labels if isinstance(label, int)})
    else:
        classes = _categories(folder / TRAIN)
        train, test = (
            listed.from_folders(folder, [f"{part}/{k}" for k in found], found, REMEDY)
            for part, found in ((TRAIN, classes), (TEST, _categories(folder / TEST)))
        )
    return listed.listing("herbarium19", folder, train, test, classes, remedy=REMEDY)


def missing(folder: Path) -> Path | None:
    """What is needed but not there, if anything; single images are not looked for."""
    return None if _has_lists(folder) else listed.missing(folder, f"{TRAIN}/", f"{TEST}/")


def present(folder: Path) -> bool:
    """Whether its folders or its lists are there."""
    return missing(folder) is None


def _has_lists(folder: Path) -> bool:
    return listed.missing(folder, *LISTS) is None


def _categories(folder: Path) -> list[int]:
    """The numbers that are class folders."""
    try:
        found = os.listdir(folder)
    except OSError as e:
        raise UserError(f"{folder} cannot be read ({e.strerror}); {REMEDY}") from None
    numbers = sorted(int(name) for name in found if name.isdecimal() and name == str(int(name)))
    if not numbers:
        raise UserError(f"{folder} has no class folders, which are numbers; {REMEDY}")
    return numbers


def _from_json(folder: Path, file: str) -> listed.Part:
    path = folder / file
    try:
        found = json.loads(listed.read_text(path, REMEDY))
        files = {image["id"]: image["file_name"] for image in found["images"]}
        pairs = [(files[a["image_id"]], a["category_id"]) for a in found["annotations"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{path} is damaged, or does not list images and annotations as COCO does; fetch it again"
        ) from None
    names, labels = [name for name, _ in pairs], [label for _, label in pairs]
    if not all(isinstance(name, str) for name in names) or not all(type(label) is int for label in labels):
        raise UserError(f"{path} has an image without a name or a class that is no number; fetch it again")
    below = _below(folder, file, names)
    return listed.Part(path, [f"{below}/{name}" for name in names], labels)


def _below(folder: Path, file: str, names: list[str]) -> str:
    """The folder that a list's names are relative to: where the first of them is found."""
    first = names[0] if names and listed.is_inside(names[0]) else ""
    return next((below for below in BELOW[file] if (folder / below / first).is_file()), BELOW[file][0])

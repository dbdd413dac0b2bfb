"""Herbarium 2019 (FGVC6): 36,904 pressed plants of 683 species. Classes are the publisher's numbers.

The labels of its test images are not public, so the validation images are used for testing. Both parts have
class folders, `small-train/<category>/*.jpg` and `small-validation/<category>/*.jpg`. Copies with lists in
COCO format (`train.json` and `val.json`, as in later years of the challenge) are read as well.
"""

import json
import os
from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList
from openldn.data.text_files import read_text
from openldn.errors import UserError

TRAIN, TEST = "small-train", "small-validation"
LISTS = {  # and the folders of their images
    "train.json": (TRAIN, "train", "."),
    "val.json": (TEST, "small-val", "validation", "val", "."),
}
REMEDY = "unpack small-train.tar.gz and small-validation.tar.gz again"


def read(folder: Path) -> Benchmark:
    """Classes sorted as text, 10 before 2, as class folders are in the authors' code."""
    if file_lists.missing(folder, *LISTS) is None:
        train, test = (_from_json(folder, file) for file in LISTS)
        classes = sorted({label for _, label in train.images if isinstance(label, int)}, key=str)
    else:
        classes = _categories(folder / TRAIN)
        train, test = (
            file_lists.from_folders(folder, [f"{part}/{k}" for k in found], found, REMEDY)
            for part, found in ((TRAIN, classes), (TEST, _categories(folder / TEST)))
        )
    return file_lists.benchmark("herbarium19", folder, train, test, classes, remedy=REMEDY)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    return file_lists.missing(folder, *LISTS) and file_lists.missing(folder, f"{TRAIN}/", f"{TEST}/")


def _categories(folder: Path) -> list[int]:
    """The numbers of the class folders."""
    try:
        found = os.listdir(folder)
    except OSError as e:
        raise UserError(f"{folder} cannot be read ({e.strerror}); {REMEDY}") from None
    numbers = sorted((int(name) for name in found if name.isdecimal() and name == str(int(name))), key=str)
    if not numbers:
        raise UserError(f"{folder} has no class folders with numbers for names; {REMEDY}")
    return numbers


def _from_json(folder: Path, file: str) -> FileList:
    path = folder / file
    try:
        found = json.loads(read_text(path, REMEDY))
        files = {image["id"]: image["file_name"] for image in found["images"]}
        pairs = [(files[a["image_id"]], a["category_id"]) for a in found["annotations"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        wrong = f"{path} is damaged, or has no images and annotations in the COCO format"
        raise UserError(f"{wrong}; download it again") from None
    if not all(isinstance(name, str) and type(label) is int for name, label in pairs):
        remedy = "download it again"
        raise UserError(f"{path} has an image without a name or a class that is not a number; {remedy}")
    return FileList(path, file_lists.placed(folder, pairs, LISTS[file], LISTS[file][0]))

"""Tiny ImageNet: 110,000 photographs of 64 x 64 pixels in 200 classes, which are WordNet ids."""

from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList

FOLDER = "tiny-imagenet-200"
WNIDS, ANNOTATIONS = f"{FOLDER}/wnids.txt", f"{FOLDER}/val/val_annotations.txt"
REMEDY = "unpack tiny-imagenet-200.zip again"


def read(folder: Path) -> Benchmark:
    """Classes in the order of wnids.txt. Validation images are for testing: test images have no labels."""
    classes = file_lists.lines(folder / WNIDS, REMEDY)
    train = file_lists.from_folders(
        folder, [f"{FOLDER}/train/{wnid}/images" for wnid in classes], classes, REMEDY
    )
    rows = file_lists.rows(folder / ANNOTATIONS, 3, REMEDY)  # file, class, and a box
    test = FileList(
        folder / ANNOTATIONS,
        [f"{FOLDER}/val/images/{file}" for file, _, _ in rows],
        [wnid for _, wnid, _ in rows],
    )
    return file_lists.benchmark("tiny-imagenet", folder, train, test, classes, size=64, remedy=REMEDY)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    return file_lists.missing(folder, WNIDS, ANNOTATIONS, f"{FOLDER}/train/", f"{FOLDER}/val/images/")

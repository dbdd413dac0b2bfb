"""Tiny ImageNet: 110,000 photographs of 64 x 64 pixels in 200 classes, called by their WordNet ids."""

from pathlib import Path

from openldn.data.problem import Listing
from openldn.data.sources import listed

FOLDER = "tiny-imagenet-200"
WNIDS, ANNOTATIONS = f"{FOLDER}/wnids.txt", f"{FOLDER}/val/val_annotations.txt"
REMEDY = "unpack tiny-imagenet-200.zip again"


def read(folder: Path) -> Listing:
    """Classes in the order of wnids.txt. The validation images are the test part: the rest has no labels."""
    classes = listed.lines(folder / WNIDS, REMEDY)
    train = listed.from_folders(
        folder, [f"{FOLDER}/train/{wnid}/images" for wnid in classes], classes, REMEDY
    )
    rows = listed.rows(folder / ANNOTATIONS, 3, REMEDY)  # file, class, and a box
    test = listed.Part(
        folder / ANNOTATIONS,
        [f"{FOLDER}/val/images/{file}" for file, _, _ in rows],
        [wnid for _, wnid, _ in rows],
    )
    return listed.listing("tiny-imagenet", folder, train, test, classes, size=64, remedy=REMEDY)


def missing(folder: Path) -> Path | None:
    """What is needed but not there, if anything; single images are not looked for."""
    return listed.missing(folder, WNIDS, ANNOTATIONS, f"{FOLDER}/train/", f"{FOLDER}/val/images/")


def present(folder: Path) -> bool:
    """Whether its lists and folders are there."""
    return missing(folder) is None

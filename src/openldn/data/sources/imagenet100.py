"""ImageNet-100: the photographs of 100 classes, out of a copy of ImageNet (ILSVRC 2012)."""

import csv
import io
from importlib.resources import files
from pathlib import Path

from openldn.data.problem import Listing
from openldn.data.sources import listed
from openldn.errors import UserError

KAGGLE = "ILSVRC/Data/CLS-LOC/"  # where Kaggle's archive has train and val
SOLUTION = "LOC_val_solution.csv"  # what the validation images show, which lie in no class folders there
REMEDY = "complete the copy of ImageNet"


def read(folder: Path) -> Listing:
    """Classes are called by their WordNet ids, in the order of imagenet100.txt; val is the test part."""
    at, classes = _at(folder), wnids()
    train = listed.from_folders(folder, [f"{at}train/{wnid}" for wnid in classes], classes, REMEDY)
    if _val_is_flat(folder):
        test = _solution(folder, set(classes))
    else:
        test = listed.from_folders(folder, [f"{at}val/{wnid}" for wnid in classes], classes, REMEDY)
    return listed.listing("imagenet-100", folder, train, test, classes, remedy=REMEDY)


def wnids() -> list[str]:
    """The 100 classes, as ORCA chose them."""
    return files("openldn.data.sources").joinpath("imagenet100.txt").read_text("utf-8").split()


def missing(folder: Path) -> Path | None:
    """What is needed but not there, if anything; single images are not looked for."""
    at, classes = _at(folder), wnids()
    test = (f"{at}val/",) if _val_is_flat(folder) else tuple(f"{at}val/{wnid}/" for wnid in classes)
    return listed.missing(folder, *(f"{at}train/{wnid}/" for wnid in classes), *test)


def present(folder: Path) -> bool:
    """Whether the folders of all 100 classes are there, in both parts."""
    return missing(folder) is None


def _at(folder: Path) -> str:
    return KAGGLE if (folder / KAGGLE).is_dir() else ""


def _val_is_flat(folder: Path) -> bool:
    return _at(folder) == KAGGLE and (folder / SOLUTION).is_file()


def _solution(folder: Path, classes: set[str]) -> listed.Part:
    """Rows such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: an image, its class and boxes."""
    reader = csv.DictReader(io.StringIO(listed.read_text(folder / SOLUTION, REMEDY)))
    names, labels = [], []
    try:
        for row in reader:
            wnid = (row.get("PredictionString") or "").split(" ")[0]
            if wnid in classes:
                names.append(f"{KAGGLE}val/{row.get('ImageId')}.JPEG")
                labels.append(wnid)
    except csv.Error:
        raise UserError(f"{folder / SOLUTION} is no CSV file; {REMEDY}") from None
    return listed.Part(folder / SOLUTION, names, labels)

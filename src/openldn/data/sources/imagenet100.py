"""ImageNet-100: the photographs of 100 classes of ImageNet (ILSVRC 2012)."""

import csv
import io
from importlib.resources import files
from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList
from openldn.data.text_files import read_text
from openldn.errors import UserError

KAGGLE = "ILSVRC/Data/CLS-LOC/"  # the folder of train and val in Kaggle's archive
SOLUTION = "LOC_val_solution.csv"  # the classes of the validation images, which have no class folders there
REMEDY = "complete the copy of ImageNet"


def read(folder: Path) -> Benchmark:
    """Classes are WordNet ids, in the order of imagenet100.txt; validation images are used for testing."""
    at, classes = _at(folder), wnids()
    train = file_lists.from_folders(folder, [f"{at}train/{wnid}" for wnid in classes], classes, REMEDY)
    if _val_is_flat(folder):
        test = _solution(folder, set(classes))
    else:
        test = file_lists.from_folders(folder, [f"{at}val/{wnid}" for wnid in classes], classes, REMEDY)
    return file_lists.benchmark("imagenet-100", folder, train, test, classes, remedy=REMEDY)


def wnids() -> list[str]:
    """The 100 classes, as ORCA chose them."""
    return files("openldn.data.sources").joinpath("imagenet100.txt").read_text("utf-8").split()


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    at, classes = _at(folder), wnids()
    test = (f"{at}val/",) if _val_is_flat(folder) else tuple(f"{at}val/{wnid}/" for wnid in classes)
    return file_lists.missing(folder, *(f"{at}train/{wnid}/" for wnid in classes), *test)


def _at(folder: Path) -> str:
    return KAGGLE if (folder / KAGGLE).is_dir() else ""


def _val_is_flat(folder: Path) -> bool:
    return _at(folder) == KAGGLE and (folder / SOLUTION).is_file()


def _solution(folder: Path, classes: set[str]) -> FileList:
    """Rows such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: an image, its class, and boxes."""
    reader = csv.DictReader(io.StringIO(read_text(folder / SOLUTION, REMEDY)))
    names, labels = [], []
    try:
        for row in reader:
            wnid = (row.get("PredictionString") or "").split(" ")[0]
            if wnid in classes:
                names.append(f"{KAGGLE}val/{row.get('ImageId')}.JPEG")
                labels.append(wnid)
    except csv.Error:
        raise UserError(f"{folder / SOLUTION} is not a CSV file; {REMEDY}") from None
    return FileList(folder / SOLUTION, names, labels)

"""ImageNet-100: the photographs of 100 classes of ImageNet (ILSVRC 2012)."""

from importlib.resources import files
from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList
from openldn.data.text_files import read_csv

KAGGLE = "ILSVRC/Data/CLS-LOC/"  # the folder of train and val in Kaggle's archive
SOLUTION = "LOC_val_solution.csv"  # the classes of the validation images, which have no class folders there
REMEDY = "complete the copy of ImageNet"


def read(folder: Path) -> Benchmark:
    """Classes are WordNet ids, in the order of imagenet100.txt; validation images are used for testing."""
    train, test = (
        file_lists.from_folders(folder, folders, wnids(), REMEDY) if folders else _solution(folder)
        for folders in _folders(folder)
    )
    return file_lists.benchmark("imagenet-100", folder, train, test, wnids(), remedy=REMEDY)


def wnids() -> list[str]:
    """The 100 classes, as ORCA chose them."""
    return files("openldn.data.sources").joinpath("imagenet100.txt").read_text("utf-8").split()


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    train, test = _folders(folder)
    return file_lists.missing(folder, *(f"{one}/" for one in train + (test or [f"{KAGGLE}val"])))


def _folders(folder: Path) -> tuple[list[str], list[str]]:
    """The class folders for training and for testing; none for testing if there is Kaggle's list instead."""
    at = KAGGLE if (folder / KAGGLE).is_dir() else ""
    train, test = ([f"{at}{part}/{wnid}" for wnid in wnids()] for part in ("train", "val"))
    return train, [] if at and (folder / SOLUTION).is_file() else test


def _solution(folder: Path) -> FileList:
    """Rows such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: an image, its class, and boxes."""
    classes, (_, rows) = set(wnids()), read_csv(folder / SOLUTION, REMEDY)
    found = [(row.get("ImageId"), (row.get("PredictionString") or "").split(" ")[0]) for row in rows]
    images = [(f"{KAGGLE}val/{image}.JPEG", wnid) for image, wnid in found if wnid in classes]
    return FileList(folder / SOLUTION, images)

"""Data sets that lie in class folders, train/CLASS/* and test/CLASS/*, as many are passed on."""

from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.errors import UserError

PARTS = ("train", "test")


def read(name: str, root: Path) -> Benchmark:
    """The data set in `root`; classes are sorted by name."""
    remedy = "put a folder for each class, with its images, into train and into test"
    for part in PARTS:
        if not (root / part).is_dir():
            raise UserError(f"there is no folder {root / part}; {remedy} in {root}")
    classes = sorted(path.name for path in (root / PARTS[0]).iterdir() if path.is_dir())
    train, test = (
        file_lists.from_folders(root, [f"{part}/{own}" for own in classes], classes, remedy) for part in PARTS
    )
    return file_lists.benchmark(name, root, train, test, classes, remedy=remedy)

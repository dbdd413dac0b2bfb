"""Oxford-IIIT Pets: 7,349 photographs of cats and dogs of 37 breeds."""

from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList
from openldn.errors import UserError

TRAIN, TEST = "annotations/trainval.txt", "annotations/test.txt"
REMEDY = "unpack images.tar.gz and annotations.tar.gz again"


def read(folder: Path) -> Benchmark:
    """The publisher's training and test images; classes in the order of its ids, 1 to 37.

    Sorted by name, all cats would come first, as only their breeds are capitalised. The ids mix both.
    """
    train, test = _part(folder, TRAIN), _part(folder, TEST)
    breeds = {
        label: name.removeprefix("images/").rpartition("_")[0]
        for name, label in zip(train.names, train.labels, strict=True)
    }
    keys = [str(i + 1) for i in range(len(breeds))]
    if set(breeds) != set(keys):
        raise UserError(f"the classes in {folder / TRAIN} are not numbered 1 to {len(breeds)}; {REMEDY}")
    classes = [breeds[key] for key in keys]
    return file_lists.benchmark("oxford-pets", folder, train, test, classes, keys=keys, remedy=REMEDY)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    return file_lists.missing(folder, TRAIN, TEST, "images/")


def _part(folder: Path, file: str) -> FileList:
    rows = file_lists.rows(folder / file, 4, REMEDY)  # image, class, species, breed within the species
    return FileList(folder / file, [f"images/{row[0]}.jpg" for row in rows], [row[1] for row in rows])

"""FGVC-Aircraft: 10,000 photographs of aircraft in 100 variants."""

from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FileList

FOLDER = "fgvc-aircraft-2013b/data"
VARIANTS = f"{FOLDER}/variants.txt"
TRAIN, TEST = f"{FOLDER}/images_variant_trainval.txt", f"{FOLDER}/images_variant_test.txt"
REMEDY = "unpack fgvc-aircraft-2013b.tar.gz again"


def read(folder: Path) -> Benchmark:
    """Training and validation images for training; classes in the order of variants.txt."""
    classes = file_lists.lines(folder / VARIANTS, REMEDY)
    train, test = _part(folder, TRAIN), _part(folder, TEST)
    return file_lists.benchmark("fgvc-aircraft", folder, train, test, classes, remedy=REMEDY)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    return file_lists.missing(folder, VARIANTS, TRAIN, TEST, f"{FOLDER}/images/")


def _part(folder: Path, file: str) -> FileList:
    rows = file_lists.rows(folder / file, 2, REMEDY)  # image, and a variant such as "DC-10" or "Cessna 172"
    images, variants = ([row[i] for row in rows] for i in (0, 1))
    return FileList(folder / file, [f"{FOLDER}/images/{image}.jpg" for image in images], variants)

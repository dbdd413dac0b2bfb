"""FGVC-Aircraft: 10,000 photographs of aircraft in 100 variants."""

from pathlib import Path

from openldn.data.problem import Listing
from openldn.data.sources import listed

FOLDER = "fgvc-aircraft-2013b/data"
VARIANTS = f"{FOLDER}/variants.txt"
TRAIN, TEST = f"{FOLDER}/images_variant_trainval.txt", f"{FOLDER}/images_variant_test.txt"
REMEDY = "unpack fgvc-aircraft-2013b.tar.gz again"


def read(folder: Path) -> Listing:
    """Training and validation images, and test images; classes in the order of variants.txt."""
    classes = listed.lines(folder / VARIANTS, REMEDY)
    train, test = _part(folder, TRAIN), _part(folder, TEST)
    return listed.listing("fgvc-aircraft", folder, train, test, classes, remedy=REMEDY)


def missing(folder: Path) -> Path | None:
    """What is needed but not there, if anything; single images are not looked for."""
    return listed.missing(folder, VARIANTS, TRAIN, TEST, f"{FOLDER}/images/")


def present(folder: Path) -> bool:
    """Whether its lists and the folder of images are there."""
    return missing(folder) is None


def _part(folder: Path, file: str) -> listed.Part:
    rows = listed.rows(folder / file, 2, REMEDY)  # image, and a variant such as "DC-10" or "Cessna 172"
    images, variants = ([row[i] for row in rows] for i in (0, 1))
    return listed.Part(folder / file, [f"{FOLDER}/images/{image}.jpg" for image in images], variants)

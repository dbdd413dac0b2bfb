"""Photographs with lists of their classes: Tiny ImageNet, Oxford-IIIT Pets and FGVC-Aircraft."""

from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists
from openldn.data.sources.file_lists import FixedLayout
from openldn.errors import UserError

TINY = "tiny-imagenet-200"
WNIDS, ANNOTATIONS = f"{TINY}/wnids.txt", f"{TINY}/val/val_annotations.txt"
PETS_TRAIN, PETS_TEST = "annotations/trainval.txt", "annotations/test.txt"
AIRCRAFT = "fgvc-aircraft-2013b/data"
VARIANTS = f"{AIRCRAFT}/variants.txt"
AIRCRAFT_TRAIN, AIRCRAFT_TEST = (f"{AIRCRAFT}/images_variant_{part}.txt" for part in ("trainval", "test"))


def _tiny_imagenet(folder: Path) -> Benchmark:
    """Classes sorted by id, as in the authors' code. Validation images are for testing: test images have no
    labels.
    """
    remedy = "unpack tiny-imagenet-200.zip again"
    classes = sorted(file_lists.lines(folder / WNIDS, remedy))
    folders = [f"{TINY}/train/{wnid}/images" for wnid in classes]
    train = file_lists.from_folders(folder, folders, classes, remedy)
    test = file_lists.from_list(folder, ANNOTATIONS, TINY + "/val/images/{}", 3, remedy)
    return file_lists.benchmark("tiny-imagenet", folder, train, test, classes, size=64, remedy=remedy)


def _oxford_pets(folder: Path) -> Benchmark:
    """The publisher's training and test images; classes in the order of its ids, 1 to 37.

    Sorted by name, all cats would come first, as only their breeds are capitalised. The ids mix both.
    """
    remedy = "unpack images.tar.gz and annotations.tar.gz again"
    train, test = (
        file_lists.from_list(folder, file, "images/{}.jpg", 4, remedy) for file in (PETS_TRAIN, PETS_TEST)
    )
    breeds = {label: name.removeprefix("images/").rpartition("_")[0] for name, label in train.images}
    keys = [str(i + 1) for i in range(len(breeds))]
    if set(breeds) != set(keys):
        raise UserError(f"the classes in {folder / PETS_TRAIN} are not numbered 1 to {len(breeds)}; {remedy}")
    classes = [breeds[key] for key in keys]
    return file_lists.benchmark("oxford-pets", folder, train, test, classes, keys=keys, remedy=remedy)


def _fgvc_aircraft(folder: Path) -> Benchmark:
    """Training and validation images for training; classes in the order of variants.txt."""
    remedy = "unpack fgvc-aircraft-2013b.tar.gz again"
    classes = file_lists.lines(folder / VARIANTS, remedy)
    train, test = (
        file_lists.from_list(folder, file, AIRCRAFT + "/images/{}.jpg", 2, remedy)
        for file in (AIRCRAFT_TRAIN, AIRCRAFT_TEST)
    )
    return file_lists.benchmark("fgvc-aircraft", folder, train, test, classes, remedy=remedy)


TINY_IMAGENET = FixedLayout(_tiny_imagenet, (WNIDS, ANNOTATIONS, f"{TINY}/train/", f"{TINY}/val/images/"))
OXFORD_PETS = FixedLayout(_oxford_pets, (PETS_TRAIN, PETS_TEST, "images/"))
FGVC_AIRCRAFT = FixedLayout(_fgvc_aircraft, (VARIANTS, AIRCRAFT_TRAIN, AIRCRAFT_TEST, f"{AIRCRAFT}/images/"))

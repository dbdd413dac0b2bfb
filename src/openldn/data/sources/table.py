"""The named data sets: what each is, where it comes from, and what reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from openldn.data.archives import Archive
from openldn.data.benchmark import Benchmark
from openldn.data.sources import (
    digits,
    fgvc_aircraft,
    herbarium19,
    imagenet100,
    oxford_pets,
    stanford_cars,
    svhn,
    tiny_imagenet,
)
from openldn.data.sources.cifar import CIFAR10, CIFAR100
from openldn.data.sources.mnist import FASHION_MNIST, MNIST


class Reader(Protocol):
    """A reader of a data set in its publisher's layout: a module, or an object if two sets share one."""

    def missing(self, folder: Path) -> str | None:
        """Why the set is not in `folder`, or None if it is. Does not look for single images."""

    def read(self, folder: Path) -> Benchmark:
        """The set: pixels, or a list of image files."""


@dataclass(frozen=True)
class NamedSet:
    """A data set, and where it comes from."""

    reader: Reader
    classes: int
    images: int  # training and test
    size: int  # pixels
    licence: str
    archives: tuple[Archive, ...]
    how_to_get: str
    also: tuple[str, ...] = ()  # other archives, each with all of it

    @property
    def offered(self) -> bool:
        """Whether it can be downloaded without a login."""
        return bool(self.archives) and all(archive.url for archive in self.archives)


# Reader, classes, training and test images, pixels, licence.
_SETS: dict[str, tuple[Reader, int, int, int, str]] = {
    "digits": (digits, 10, 1_797, 8, "CC BY 4.0"),
    "cifar10": (CIFAR10, 10, 60_000, 32, "none stated"),
    "cifar100": (CIFAR100, 100, 60_000, 32, "none stated"),
    "svhn": (svhn, 10, 99_289, 32, "non-commercial use"),
    "tiny-imagenet": (tiny_imagenet, 200, 110_000, 64, "non-commercial research"),
    "oxford-pets": (oxford_pets, 37, 7_349, 224, "CC BY-SA 4.0"),
    "imagenet-100": (imagenet100, 100, 133_000, 224, "non-commercial research"),  # about so many images
    "fgvc-aircraft": (fgvc_aircraft, 100, 10_000, 224, "non-commercial research"),
    "stanford-cars": (stanford_cars, 196, 16_185, 224, "non-commercial research"),
    "herbarium19": (herbarium19, 683, 36_904, 224, "non-commercial research and education"),
    "mnist": (MNIST, 10, 70_000, 28, "CC BY-SA 3.0"),
    "fashion-mnist": (FASHION_MNIST, 10, 70_000, 28, "MIT"),
}

_HOW_TO_GET = {
    "digits": "comes with scikit-learn",
    "cifar10": "put cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "put cifar-100-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html",
    "svhn": "put train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
    "tiny-imagenet": "put tiny-imagenet-200.zip from cs231n.stanford.edu/tiny-imagenet-200.zip",
    "oxford-pets": "put images.tar.gz and annotations.tar.gz from www.robots.ox.ac.uk/~vgg/data/pets",
    "imagenet-100": "put (a link to) ImageNet's train/<wnid> and val/<wnid> there, from image-net.org after "
    "a login, or unpack Kaggle's imagenet-object-localization-challenge",
    "fgvc-aircraft": "put fgvc-aircraft-2013b.tar.gz from www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
    "stanford-cars": "its site is gone: put cars_train.tgz, cars_test.tgz and car_devkit.tgz from a mirror, "
    "with cars_test_annos_withlabels.mat, or an unpacked mirror,",
    "herbarium19": "put small-train.tar.gz and small-validation.tar.gz from "
    "github.com/visipedia/herbarium_comp",
    "mnist": "put its four .gz files from ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "put its four .gz files from github.com/zalandoresearch/fashion-mnist",
}

# The address of the files, if anybody may download them.
_ADDRESSES = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
    "cifar100": "https://www.cs.toronto.edu/~kriz/",
    "svhn": "http://ufldl.stanford.edu/housenumbers/",
    "tiny-imagenet": "http://cs231n.stanford.edu/",
    "oxford-pets": "https://www.robots.ox.ac.uk/~vgg/data/pets/data/",
    "fgvc-aircraft": "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/",
    "herbarium19": "https://storage.googleapis.com/nybg/herbarium-2019-fgvc6/",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}

# The name, MD5 sum and size in bytes of each file; sizes of stanford-cars and herbarium19 are approximate.
_FILES = (
    ("cifar10", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
    ("cifar100", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
    ("svhn", svhn.TRAIN, "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    ("svhn", svhn.TEST, "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    ("tiny-imagenet", "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),
    ("oxford-pets", "images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c", 791_918_971),
    ("oxford-pets", "annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f", 19_173_078),
    ("fgvc-aircraft", "fgvc-aircraft-2013b.tar.gz", "d4acdd33327262359767eeaa97a4f732", 2_753_340_328),
    ("stanford-cars", "cars_train.tgz", "065e5b463ae28d29e77c1b4b166cfe61", 979_000_000),
    ("stanford-cars", "cars_test.tgz", "4ce7ebf6a94d07f1952d94dd34c4d501", 977_000_000),
    ("stanford-cars", "car_devkit.tgz", "c3b158d763b6e2245038c8ad08e45376", 330_000),
    ("stanford-cars", "cars_test_annos_withlabels.mat", "b0a2b23655a3edd16d84508592a98d10", 186_000),
    ("herbarium19", "small-train.tar.gz", "8bf1985008dea8f79da1d9668b065543", 1_700_000_000),
    ("herbarium19", "small-validation.tar.gz", "d7e8670238a54f13b8b729823a988004", 135_000_000),
    ("mnist", "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    ("mnist", "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    ("mnist", "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    ("mnist", "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ("fashion-mnist", "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
    ("fashion-mnist", "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
    ("fashion-mnist", "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
    ("fashion-mnist", "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
)

_ALSO = {"cifar10": ("cifar-10-python.tar.gz",), "cifar100": ("cifar-100-python.tar.gz",)}


def _archives(name: str) -> tuple[Archive, ...]:
    base = _ADDRESSES.get(name)
    return tuple(
        Archive(file, base and base + file, f"md5:{md5}", size)
        for of, file, md5, size in _FILES
        if of == name
    )


NAMED = {
    name: NamedSet(*about, _archives(name), _HOW_TO_GET[name], _ALSO.get(name, ()))
    for name, about in _SETS.items()
}

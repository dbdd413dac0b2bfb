"""MNIST and Fashion-MNIST, as idx files, gzipped or not: 70,000 grey images of 28 x 28 pixels each."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.problem import LabelledSet
from openldn.errors import UserError

SIDE = 28
MOST = 1_000_000  # images: a header that says more is wrong, and nothing is read on its word
IMAGES, LABELS = (
    ("images", "idx3", 2051),
    ("labels", "idx1", 2049),
)  # with the number that the file begins with
# By their names nobody can tell the two sets' files apart, but by the first training labels.
BEGINNINGS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2)}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Mnist:
    """A reader of one of the two sets."""

    name: str
    classes: tuple[str | int, ...]
    flip: bool

    def missing(self, folder: Path) -> Path | None:
        """What is needed but not there, if anything."""
        files = (_find(folder, part, kind) for part in ("train", "t10k") for kind in (IMAGES, LABELS))
        return next((file for file in files if not file.is_file()), None)

    def present(self, folder: Path) -> bool:
        """Whether all four files are there, and not those of the other set."""
        return self.missing(folder) is None and self._other(folder) is None

    def read(self, folder: Path) -> LabelledSet:
        """The publisher's training and test part."""
        (images, labels), (test_images, test_labels) = (
            self._part(folder, part) for part in ("train", "t10k")
        )
        if (other := self._other(folder)) is not None:
            raise UserError(f"{folder} holds {other}, not {self.name}; give each a folder of its own name")
        return LabelledSet(
            name=self.name,
            images=torch.from_numpy(images)[:, None],
            labels=labels,
            test_images=torch.from_numpy(test_images)[:, None],
            test_labels=test_labels,
            classes=self.classes,
            flip=self.flip,
        )

    def _other(self, folder: Path) -> str | None:
        """The other set, if it is that one's files."""
        path = _find(folder, "train", LABELS)
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
                first = tuple(f.read(16)[8:])
        except (OSError, EOFError, zlib.error):  # `read` says what is wrong with it
            return None
        return next(
            (name for name, known in BEGINNINGS.items() if known == first and name != self.name), None
        )

    def _part(self, folder: Path, part: str) -> tuple[Bytes, NDArray[np.int64]]:
        images = _read(_find(folder, part, IMAGES), IMAGES[2])
        path = _find(folder, part, LABELS)
        labels = _read(path, LABELS[2])
        if len(labels) != len(images):
            raise UserError(
                f"{folder} has {len(images)} {part} images but {len(labels)} labels; fetch {path.name} again"
            )
        if (highest := labels.max()) >= len(self.classes):
            raise UserError(
                f"{path} holds the label {highest}, but {self.name} ends at {len(self.classes) - 1}; "
                "fetch it again"
            )
        return images, labels.astype(np.int64)


def _find(folder: Path, part: str, kind: tuple[str, str, int]) -> Path:
    """The file under whichever of its names it has; if it has none, the publisher's."""
    names = [f"{part}-{kind[0]}{mark}{kind[1]}-ubyte{end}" for mark in "-." for end in (".gz", "")]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _read(path: Path, magic: int) -> Bytes:
    """What an idx file holds, of the shape that its header says, and never more than that in memory."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
            return _content(path, cast(BinaryIO, f), magic)
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error):
        raise UserError(f"{path} is damaged or cut off; fetch it again") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); fetch it again") from None


def _content(path: Path, f: BinaryIO, magic: int) -> Bytes:
    found, n = struct.unpack(">II", f.read(8))
    if found != magic:
        raise UserError(f"{path} begins with {found}, not {magic}, so it is no such idx file; fetch it again")
    shape: tuple[int, ...] = (n,)
    if magic == IMAGES[2]:
        shape = (n, *struct.unpack(">II", f.read(8)))
        if shape[1:] != (SIDE, SIDE):
            raise UserError(f"{path} says {shape[1]} x {shape[2]} pixels, not {SIDE}; fetch it again")
    if not 0 < n <= MOST:
        raise UserError(f"{path} says that it holds {n} entries, which cannot be; fetch it again")
    size = int(np.prod(shape))
    data = f.read(size + 1)
    if len(data) != size:
        what = "shorter" if len(data) < size else "longer"
        raise UserError(f"{path} is {what} than the {size} bytes that its header says; fetch it again")
    return np.frombuffer(bytearray(data), np.uint8).reshape(shape)  # a copy that may be written to


MNIST = Mnist("mnist", tuple(range(10)), flip=False)  # a mirrored digit is another thing
FASHION_MNIST = Mnist(
    "fashion-mnist",
    (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    flip=True,
)

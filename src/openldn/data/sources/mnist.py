"""MNIST and Fashion-MNIST, as idx files, gzipped or not: 70,000 grey images of 28 x 28 pixels each."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.benchmark import Benchmark
from openldn.errors import UserError

SIDE = 28
MOST = 1_000_000  # images; a header with a larger number is wrong
IMAGES, LABELS = ("images", "idx3", 2051), ("labels", "idx1", 2049)  # with magic numbers
# The files of both sets have the same names. They are told apart by the first training labels.
BEGINNINGS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2)}


@dataclass(frozen=True)
class Mnist:
    """A reader of one of the two sets."""

    name: str
    classes: tuple[str | int, ...]
    flip: bool

    def missing(self, folder: Path) -> str | None:
        files = (_find(folder, part, kind) for part in ("train", "t10k") for kind in (IMAGES, LABELS))
        missing = next((f"{file} is missing" for file in files if not file.is_file()), None)
        return missing or (f"{folder} holds another set" if self._is_other(folder) else None)

    def read(self, folder: Path) -> Benchmark:
        train, test = self._part(folder, "train"), self._part(folder, "t10k")
        return Benchmark.in_memory(self.name, train, test, self.classes, self.flip)

    def _is_other(self, folder: Path) -> bool:
        path = _find(folder, "train", LABELS)
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
                first = tuple(f.read(16)[8:])
        except (OSError, EOFError, zlib.error):  # `read` reports what is wrong
            return False
        return any(known == first for name, known in BEGINNINGS.items() if name != self.name)

    def _part(self, folder: Path, part: str) -> tuple[Tensor, NDArray[np.int64]]:
        path = _find(folder, part, LABELS)
        images, labels = _read(_find(folder, part, IMAGES), IMAGES[2]), _read(path, LABELS[2])
        if len(labels) != len(images):
            remedy = f"get {path.name} again"
            raise UserError(f"{folder} has {len(images)} {part} images but {len(labels)} labels; {remedy}")
        if (highest := labels.max()) >= len(self.classes):
            wrong = f"{path} holds the label {highest}, but {self.name} ends at {len(self.classes) - 1}"
            raise UserError(f"{wrong}; download it again")
        return torch.from_numpy(images)[:, None], labels.astype(np.int64)


def _find(folder: Path, part: str, kind: tuple[str, str, int]) -> Path:
    """The file, under any of the names in use; if there is none, the publisher's name."""
    names = [f"{part}-{kind[0]}{mark}{kind[1]}-ubyte{end}" for mark in "-." for end in (".gz", "")]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _read(path: Path, magic: int) -> NDArray[np.uint8]:
    """The content of an idx file; never reads more than its header says."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
            found, n = struct.unpack(">II", f.read(8))
            if found != magic:
                wrong = f"{path} begins with {found}, not {magic}, so it is not such an idx file"
                raise UserError(f"{wrong}; download it again")
            shape: tuple[int, ...] = (n,)
            if magic == IMAGES[2]:
                shape = (n, *struct.unpack(">II", f.read(8)))
                if shape[1:] != (SIDE, SIDE):
                    wrong = f"{path} says {shape[1]} x {shape[2]} pixels, not {SIDE}"
                    raise UserError(f"{wrong}; download it again")
            if not 0 < n <= MOST:
                raise UserError(f"{path} says that it holds {n} entries, which cannot be; download it again")
            size = math.prod(shape)
            data = f.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error):
        raise UserError(f"{path} is damaged or cut off; download it again") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); download it again") from None
    if len(data) != size:
        what = "shorter" if len(data) < size else "longer"
        raise UserError(f"{path} is {what} than the {size} bytes that its header says; download it again")
    return np.frombuffer(bytearray(data), np.uint8).reshape(shape)  # a writable copy


MNIST = Mnist("mnist", tuple(range(10)), flip=False)  # a mirrored digit is not a digit
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
FASHION_MNIST = Mnist("fashion-mnist", tuple(CLOTHES.split(",")), flip=True)

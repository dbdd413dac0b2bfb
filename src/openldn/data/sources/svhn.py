"""SVHN, cropped: 99,289 house-number digits of 32 x 32 pixels, cut from street photographs."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.benchmark import Benchmark
from openldn.data.sources import matlab
from openldn.data.sources.file_lists import FixedLayout
from openldn.errors import UserError

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def _read(folder: Path) -> Benchmark:
    """The publisher's training and test images. No flips: a mirrored digit is not a digit."""
    train, test = _part(folder / TRAIN), _part(folder / TEST)
    return Benchmark.in_memory("svhn", train, test, tuple(range(10)), flip=False)


def _part(path: Path) -> tuple[Tensor, NDArray[np.int64]]:
    remedy = f"download {path.name} again"
    pixels, given = matlab.read(path, "X", "y", remedy=remedy)
    pixels, labels = np.asarray(pixels), np.asarray(given).reshape(-1)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise UserError(f"{path} holds {pixels.dtype} of shape {pixels.shape}, not 32 x 32 x 3 x n; {remedy}")
    if len(labels) != pixels.shape[3] or labels.dtype.kind not in "uif":
        raise UserError(f"{path} has {pixels.shape[3]} images but {len(labels)} labels; {remedy}")
    outside = labels[~np.isin(labels, np.arange(1, 11))]
    if len(outside):
        raise UserError(f"{path} holds the label {outside[0]}, but SVHN's are 1 to 10; {remedy}")
    images = np.array(pixels.transpose(3, 2, 0, 1), order="C")
    return torch.from_numpy(images), labels.astype(np.int64) % 10  # the digit 0 has the label 10


SVHN = FixedLayout(_read, (TRAIN, TEST))

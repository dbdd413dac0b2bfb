"""CIFAR-10 in its publisher's binary layout: 60,000 colour photographs of 32 x 32 pixels."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.problem import LabelledSet
from openldn.errors import UserError

FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = ("test_batch.bin",)
RECORD = 1 + 3 * 32 * 32  # a label, then red, green and blue planes
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def read(folder: Path) -> LabelledSet:
    """The publisher's training and test part, from `folder`/cifar-10-batches-bin."""
    train, test = _records(folder, TRAIN), _records(folder, TEST)
    return LabelledSet(
        name="cifar10",
        images=torch.from_numpy(train[:, 1:].reshape(-1, 3, 32, 32)),
        labels=train[:, 0].astype(np.int64),
        test_images=torch.from_numpy(test[:, 1:].reshape(-1, 3, 32, 32)),
        test_labels=test[:, 0].astype(np.int64),
        classes=tuple(CLASSES),
    )


def present(folder: Path) -> bool:
    """Whether all of its files are there."""
    return all((folder / FOLDER / name).is_file() for name in (*TRAIN, *TEST))


def _records(folder: Path, names: tuple[str, ...]) -> NDArray[np.uint8]:
    parts = []
    for name in names:
        path = folder / FOLDER / name
        try:
            data = np.fromfile(path, np.uint8)
        except FileNotFoundError:
            raise UserError(
                f"CIFAR-10 is not at {folder / FOLDER} ({name} is missing); unpack "
                f"cifar-10-binary.tar.gz in {folder}, or say where it is with --data-dir"
            ) from None
        except OSError as e:
            raise UserError(
                f"{path} cannot be read ({e.strerror}); unpack cifar-10-binary.tar.gz again"
            ) from None
        if len(data) == 0 or len(data) % RECORD:
            raise UserError(
                f"{path} is cut off ({len(data)} bytes, but a record has {RECORD}); "
                "unpack cifar-10-binary.tar.gz again"
            )
        if (highest := data[::RECORD].max()) >= len(CLASSES):
            raise UserError(
                f"{path} holds the label {highest}, but CIFAR-10 ends at {len(CLASSES) - 1}; "
                "unpack cifar-10-binary.tar.gz again"
            )
        parts.append(data.reshape(-1, RECORD))
    return np.concatenate(parts)

"""Handwritten digits shipped inside scikit-learn: 1,797 grey images of 8 x 8 pixels."""

from pathlib import Path

import numpy as np
import torch

from openldn.data.problem import LabelledSet


def read(folder: Path) -> LabelledSet:
    """Every fifth image of each class is the test part. A mirrored digit is another thing: no flips."""
    from sklearn.datasets import load_digits  # when needed: it takes as long to load as torch

    data = load_digits()
    images = torch.from_numpy(np.round(data.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = data.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for k in range(10):
        test[np.flatnonzero(labels == k)[::5]] = True
    return LabelledSet(
        name="digits",
        images=images[~test],
        labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        classes=tuple(range(10)),
        flip=False,
    )


def missing(folder: Path) -> Path | None:
    """Nothing: it comes with scikit-learn."""
    return None


def present(folder: Path) -> bool:
    """Always: it comes with scikit-learn."""
    return True

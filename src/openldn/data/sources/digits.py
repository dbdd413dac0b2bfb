"""Handwritten digits shipped inside scikit-learn: 1,797 grey images of 8 x 8 pixels."""

from pathlib import Path

import numpy as np
import torch

from openldn.data.benchmark import Benchmark


def read(folder: Path) -> Benchmark:
    """Every fifth image of each class is a test image. No flips: a mirrored digit is not a digit."""
    from sklearn.datasets import load_digits  # imported late: it takes as long as torch

    data = load_digits()
    images = torch.from_numpy(np.round(data.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = data.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for k in range(10):
        test[np.flatnonzero(labels == k)[::5]] = True
    parts = [(images[rows], labels[rows]) for rows in (~test, test)]
    return Benchmark.in_memory("digits", parts[0], parts[1], tuple(range(10)), flip=False)


def missing(folder: Path) -> str | None:
    """Nothing: it comes with scikit-learn."""
    return None

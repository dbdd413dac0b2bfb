"""Principal component analysis."""

import numpy as np
import torch
from torch import Tensor


def principal_axes(z: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The mean of rows z (n, d) and their first principal axes, at most `most` and n - 1.  (d,), (d, a)"""
    mean = z.mean(dim=0)
    rest = z - mean
    axes = eigh(rest.T @ rest)[1].flip(1)  # by falling variance
    return mean, axes[:, : max(1, min(most, len(z) - 1))].to(z.dtype)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rising eigenvalues of a symmetric matrix, and its eigenvectors as columns, in float64.

    By numpy: where rows are fewer than features, torch's often does not converge, in float64 neither.
    """
    values, vectors = np.linalg.eigh(matrix.double().numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors)

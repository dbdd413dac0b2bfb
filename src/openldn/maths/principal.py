"""Principal component analysis."""

import torch
from torch import Tensor


def principal_axes(z: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The mean of rows z (n, d) and their first principal axes, at most `most` and n - 1.  (d,), (d, a)"""
    mean = z.mean(dim=0)
    rest = z - mean
    axes = torch.linalg.eigh(rest.T @ rest)[1].flip(1)  # by falling variance
    return mean, axes[:, : max(1, min(most, len(z) - 1))]

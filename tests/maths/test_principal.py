"""Principal axes against a singular value decomposition by numpy."""

import numpy as np
import pytest
import torch

from openldn.maths.principal import principal_axes


@pytest.mark.parametrize(
    ("n", "d", "most", "kept"), [(40, 6, 3, 3), (40, 6, 20, 6), (5, 12, 20, 4), (1, 3, 2, 1)]
)
def test_they_are_the_directions_of_most_variance(n: int, d: int, most: int, kept: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d)) * np.linspace(3, 1, d) + rng.standard_normal(d)
    mean, axes = principal_axes(torch.from_numpy(x), most)
    assert axes.shape == (d, kept)
    np.testing.assert_allclose(mean, x.mean(axis=0))
    np.testing.assert_allclose(axes.T @ axes, np.eye(kept), atol=1e-9)
    _, sizes, directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    if n > 1:
        along = np.abs(directions[:kept] @ axes.numpy())  # up to sign
        np.testing.assert_allclose(along, np.eye(kept), atol=1e-6)
        spread = (torch.from_numpy(x) - mean) @ axes
        np.testing.assert_allclose(spread.norm(dim=0), sizes[:kept], rtol=1e-6)

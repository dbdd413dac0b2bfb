"""Principal axes against a singular value decomposition by numpy."""

import numpy as np
import pytest
import torch

from openldn.maths.principal import principal_axes


@pytest.mark.parametrize("seed", range(3))
def test_few_images_of_many_features_have_axes_too(seed: int) -> None:
    """As averages of a ReLU are, of which many are zero or alike: torch's eigh fails for some of these."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.randn(4, 1280, generator=g).relu()
    z = classes[torch.arange(48) % 4] + 1e-3 * torch.randn(48, 1280, generator=g).relu()
    z = torch.nn.functional.normalize(z * (torch.rand(1280, generator=g) < 0.3), dim=1)
    mean, axes = principal_axes(z, 512)
    assert axes.dtype == torch.float32
    assert axes.shape == (1280, 47)
    torch.testing.assert_close(axes.T @ axes, torch.eye(47), atol=1e-5, rtol=0)
    rest = z - mean
    torch.testing.assert_close(rest @ axes @ axes.T, rest, atol=1e-4, rtol=0)  # they span all rows


def test_equal_rows_have_axes_too() -> None:
    _, axes = principal_axes(torch.ones(5, 3), 2)
    torch.testing.assert_close(axes.T @ axes, torch.eye(2))


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

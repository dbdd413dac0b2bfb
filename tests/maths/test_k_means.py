"""k-means: plain, balanced and semi-supervised, on blobs and on images that are all alike."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.maths.k_means import balanced_k_means, k_means, k_means_plus_plus, semi_supervised


def blobs(n: int = 25) -> tuple[Tensor, np.ndarray]:
    """Four blobs far apart.  (4n, 4), (4n,)"""
    kinds = np.repeat(np.arange(4), n)
    noise = np.random.default_rng(0).standard_normal((4 * n, 4))
    return torch.from_numpy(8 * np.eye(4)[kinds] + noise).float(), kinds


def test_k_means_finds_blobs_and_their_means() -> None:
    z, kinds = blobs()
    centres, clusters = k_means(z, 4, seed=0)
    assert len({*zip(kinds.tolist(), clusters.tolist(), strict=True)}) == 4  # one cluster a blob
    for c in range(4):
        torch.testing.assert_close(centres[c], z[clusters == c].mean(dim=0))
    assert torch.equal(k_means(z, 4, seed=0)[0], centres)


def test_k_means_with_more_clusters_than_distinct_images_repeats_centres() -> None:
    """And does not warn."""
    z = torch.eye(3).repeat(2, 1)
    centres, clusters = k_means(z, 5, seed=0)
    assert centres.shape == (5, 3)
    assert {tuple(row) for row in centres.tolist()} == {tuple(row) for row in torch.eye(3).tolist()}
    torch.testing.assert_close(centres[clusters], z)


def test_k_means_plus_plus_draws_by_squared_distance() -> None:
    """From a given centre, on a line: rows at 1 and at 3 are drawn as 1 is to 9; the centre itself never."""
    z, rng = torch.tensor([[0.0], [1.0], [3.0]]), np.random.default_rng(0)
    drawn = [float(k_means_plus_plus(z, z[:1], 2, rng)[1]) for _ in range(1000)]
    assert {*drawn} == {1.0, 3.0}
    assert drawn.count(3.0) / 1000 == pytest.approx(0.9, abs=0.04)
    assert torch.equal(k_means_plus_plus(z, z[:2], 2, rng), z[:2])  # nothing left to draw


def test_semi_supervised_k_means_keeps_labelled_images_in_their_class() -> None:
    z, kinds = blobs()
    labels = torch.from_numpy(np.where((kinds < 2) & (np.arange(100) % 2 == 0), kinds, -1))
    z[0] = z[99]  # labelled 0, but it looks like the last class
    centres = semi_supervised(z, labels, 2, 4, seed=0)
    nearest = torch.cdist(z, centres).argmin(dim=1).numpy()
    assert (nearest[1:25] == 0).all()
    assert (nearest[25:50] == 1).all()
    assert {*nearest[50:75]} | {*nearest[75:]} == {2, 3}
    mine = torch.from_numpy((nearest == 0) & (np.arange(100) != 0))
    mine[0] = True
    torch.testing.assert_close(centres[0], z[mine].mean(dim=0), atol=1e-4, rtol=1e-4)


def test_balanced_k_means_does_not_cut_a_wide_class_in_two() -> None:
    """A wide class, and two narrow ones close together: plain k-means cuts the one and joins the others."""
    torch.manual_seed(0)
    wide = torch.randn(200, 2) * torch.tensor([0.1, 3.0])
    narrow = [torch.tensor([5.0, 0.0 + 1.5 * k]) + 0.1 * torch.randn(200, 2) for k in range(2)]
    z, truth = torch.cat([wide, *narrow]), torch.arange(3).repeat_interleave(200)

    def right(clusters: Tensor) -> float:
        counts = np.array([[int(((clusters == c) & (truth == k)).sum()) for c in range(3)] for k in range(3)])
        return max(sum(counts[k, order[k]] for k in range(3)) for order in permutations(range(3))) / len(z)

    assert right(k_means(z, 3, seed=0)[1]) < 0.8
    centres = balanced_k_means(z, 3, seed=0, temperature=0.5)
    # In loops: centres are weighted means of images, with Sinkhorn weights that make clusters equally large.
    near = [[math.exp(-float((row - c).square().sum()) / 0.5) for c in centres] for row in z]
    shared = torch.tensor(near, dtype=torch.float64)
    for _ in range(500):
        shared = shared / shared.sum(dim=0) * 200
        shared = shared / shared.sum(dim=1, keepdim=True)
    torch.testing.assert_close((shared.T @ z.double() / 200).float(), centres, atol=0.1, rtol=0)
    assert right(shared.argmax(dim=1)) > 0.99
    assert torch.equal(centres, balanced_k_means(z, 3, seed=0, temperature=0.5))


def test_balanced_k_means_survives_identical_images() -> None:
    assert torch.isfinite(balanced_k_means(torch.ones(12, 3), 4, seed=0, temperature=0.1)).all()


def test_semi_supervised_k_means_survives_identical_images() -> None:
    z, labels = torch.ones(12, 3), torch.tensor([0, 1] + [-1] * 10)
    assert torch.isfinite(semi_supervised(z, labels, 2, 4, seed=0)).all()

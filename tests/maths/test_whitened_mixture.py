"""The whitened space and the mixture, by plain loops."""

import math

import numpy as np
import pytest
import torch

from openldn.maths.priors import leaning
from openldn.maths.whitened_mixture import (
    evenness,
    in_space,
    mixture,
    one_hot,
    space,
    within_class_whitening,
)


@pytest.mark.parametrize("ridge", [0.5, 100.0])
def test_whitening_makes_the_shrunk_covariance_within_classes_the_identity(ridge: float) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((30, 4)) @ rng.standard_normal((4, 4))
    y = np.arange(30) % 3 * 2  # classes 0, 2 and 4
    scatter = np.zeros((4, 4))
    for k in (0, 2, 4):
        for row in z[y == k]:
            rest = row - z[y == k].mean(axis=0)
            scatter += np.outer(rest, rest)
    variance = np.trace(scatter) / 27 / 4
    covariance = (scatter + ridge * variance * np.eye(4)) / (27 + ridge)
    w = within_class_whitening(torch.from_numpy(z).float(), torch.from_numpy(y), ridge).double().numpy()
    np.testing.assert_allclose(w.T @ covariance @ w, np.eye(4), atol=1e-5)


def test_without_variance_within_classes_nothing_is_whitened() -> None:
    z = torch.eye(3)
    assert torch.equal(within_class_whitening(z, torch.arange(3), 1.0), torch.eye(3))
    assert torch.equal(within_class_whitening(z[[0, 0, 1]], torch.tensor([0, 0, 1]), 1.0), torch.eye(3))


@pytest.mark.parametrize("positive", [True, False])
def test_the_space_by_loops(positive: bool) -> None:
    """Square roots of what has no negative values; unit length; centred; unit length; whitened; the same."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((25, 6)) ** (2 if positive else 1)
    labels = torch.tensor([0, 1] * 6 + [-1] * 13)
    state = space(torch.from_numpy(x).float(), labels, axes=4, ridge=100.0)
    assert bool(state["root"]) is positive
    u = np.array([row / math.sqrt((row**2).sum()) for row in (np.sqrt(x) if positive else x)])
    v = u - u.mean(axis=0)
    v = np.array([row / math.sqrt((row**2).sum()) for row in v])
    v = (v - v.mean(axis=0)) @ state["map"].double().numpy()
    v = np.array([row / math.sqrt((row**2).sum()) for row in v])
    found = in_space(torch.from_numpy(x).float(), state)
    assert found.shape == (25, 4)
    np.testing.assert_allclose(found, v, atol=1e-4)


@pytest.mark.parametrize(("balance", "rounds"), [(0.0, 1), (1.0, 1), (0.4, 3)])
def test_the_mixture_by_loops(balance: float, rounds: int) -> None:
    """Each image is judged by centres without itself."""
    rng = np.random.default_rng(2)
    z = rng.standard_normal((14, 5))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    labels = torch.tensor([0, 1] * 3 + [-1] * 8)
    first = torch.cat([labels[:6], torch.tensor([2, 2, 3, 3, 0, 1, -1, -1])])
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    q = np.array([[float(k == c) for c in range(4)] for k in first.tolist()])
    bias = torch.zeros(4)
    for _ in range(rounds):
        logits = np.zeros((14, 4))
        for i in range(14):
            for c in range(4):
                centre = sum(q[j, c] * z[j] for j in range(14) if j != i)
                logits[i, c] = 4 * (z[i] @ centre) / np.linalg.norm(centre)
        bias = leaning(torch.from_numpy(logits[6:]).float(), prior, balance, bias)
        for i in range(6, 14):
            e = np.exp(logits[i] + bias.double().numpy())
            q[i] = e / e.sum()
    centres = q.T @ z
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    found = mixture(torch.from_numpy(z).float(), labels, first, prior, balance, 4.0, rounds)
    np.testing.assert_allclose(found.centres, centres, atol=2e-4)
    np.testing.assert_allclose(found.bias, bias, atol=2e-3)
    assert found.quality == pytest.approx(sum(max(row) for row in logits[6:]) / 8, abs=1e-3)
    if balance == 0:
        assert not found.bias.any()


def test_a_class_of_one_image_and_one_of_none_do_no_harm() -> None:
    z = torch.nn.functional.normalize(torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.tensor([0, 1] + [-1] * 7)
    first = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 2])
    found = mixture(z, labels, first, torch.full((4,), 0.25), 0.5)
    assert found.centres.isfinite().all()
    assert found.bias.isfinite().all()
    assert math.isfinite(found.quality)


def test_equal_sizes_are_trusted_as_far_as_labelled_numbers_are_even() -> None:
    even = torch.tensor([0] * 9 + [1] * 9 + [2] * 9 + [-1] * 60)
    assert evenness(even, 6) == 1.0
    counts = [2, 4, 30]
    tail = torch.tensor([k for k, n in enumerate(counts) for _ in range(n)] + [-1] * 60)
    mean = sum(counts) / 3
    variance = sum((n - mean) ** 2 for n in counts) / 2
    v = variance / mean**2 - 1 / mean
    assert v > 0
    assert evenness(tail, 6) == pytest.approx(1 / (1 + 10 * v))
    by_chance = torch.tensor([0] * 8 + [1] * 11 + [2] * 9 + [-1] * 60)
    assert evenness(by_chance, 6) == 1.0  # no more than Poisson
    assert evenness(torch.tensor([1, 1, -1]), 3) == 1.0  # one class says nothing


def test_rows_without_a_label_are_zero() -> None:
    assert one_hot(torch.tensor([-1, 0]), 3).tolist() == [[0, 0, 0], [1, 0, 0]]

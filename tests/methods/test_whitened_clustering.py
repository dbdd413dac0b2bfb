"""Whitened clustering: its parts by plain loops, and the whole on Gaussian classes."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.data.problem import Problem
from openldn.maths import metrics
from openldn.maths.priors import leaning
from openldn.methods.whitened_clustering import (
    Settings,
    WhitenedClustering,
    evenness,
    in_space,
    mixture,
    one_hot,
    sample,
    space,
    within_class_whitening,
)
from openldn.nets.classifier import Outputs


def gaussians(sizes: list[int], d: int = 20, apart: float = 6.0, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Features of classes of these sizes, with one strong direction of noise in all.  (n, d), (n,)"""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = apart * rng.standard_normal((len(sizes), d))[y] + rng.standard_normal((len(y), d))
    z[:, 0] += 10 * rng.standard_normal(len(y))
    return torch.from_numpy(z).float(), y


def problem(z: Tensor, y: np.ndarray, n_known: int, labelled: int, n_novel: int) -> Problem:
    """The first `labelled` images of each of the first classes have labels."""
    labels = torch.full((len(y),), -1)
    for k in range(n_known):
        labels[torch.from_numpy(np.flatnonzero(y == k)[:labelled])] = k
    return Problem(z[:, None], labels, tuple(map(str, range(len(y)))), tuple(range(n_known)), n_novel)


def outputs(images: Tensor) -> Outputs:
    return Outputs(images[:, 0], images[:, 0])


def fitted(given: Problem, **settings: float | None) -> WhitenedClustering:
    made = WhitenedClustering(Settings(**settings))  # type: ignore[arg-type]
    made.fit(outputs, given, seed=0)
    return made


def accuracy(made: WhitenedClustering, given: Problem, y: np.ndarray, n_true: int) -> float:
    rows = given.unlabelled
    found = made.probabilities(outputs(given.images[rows])).argmax(dim=1).numpy()
    result = metrics.evaluate(
        y[rows], found, n_known=given.n_known, n_classes=n_true, n_ids=given.n_classes, ordered=True
    )
    return float(result["protocols"]["anchored"]["all"])


# --------------------------------------------------------------------------------------------- parts


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
    state = space(torch.from_numpy(x).float(), labels, Settings(axes=4))
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
    prior, settings = torch.tensor([0.1, 0.2, 0.3, 0.4]), Settings(sharpness=4.0, rounds=rounds)
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
    found, found_bias = mixture(torch.from_numpy(z).float(), labels, first, prior, balance, settings)
    np.testing.assert_allclose(found, centres, atol=2e-4)
    np.testing.assert_allclose(found_bias, bias, atol=2e-3)
    if balance == 0:
        assert not found_bias.any()


def test_a_class_of_one_image_and_one_of_none_do_no_harm() -> None:
    z = torch.nn.functional.normalize(torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.tensor([0, 1] + [-1] * 7)
    first = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 2])
    centres, bias = mixture(z, labels, first, torch.full((4,), 0.25), 0.5, Settings())
    assert centres.isfinite().all()
    assert bias.isfinite().all()


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


def test_a_sample_has_all_labelled_rows_and_some_others() -> None:
    labels = torch.tensor([-1, 0, -1, 1, -1, -1])
    assert sorted(sample(labels, 10, 0).tolist()) == [0, 1, 2, 3, 4, 5]
    some = sample(labels, 2, 0).tolist()
    assert some[:2] == [1, 3]
    assert len({*some[2:]} & {0, 2, 4, 5}) == 2
    assert sample(labels, 2, 0).tolist() == some
    assert {tuple(sample(labels, 2, seed)[2:].tolist()) for seed in range(20)} > {tuple(some[2:])}
    assert one_hot(labels[:2], 3).tolist() == [[0, 0, 0], [1, 0, 0]]


# ------------------------------------------------------------------------------------------ the whole


@pytest.mark.parametrize(
    ("sizes", "labelled"),
    [([40] * 6, 20), ([40] * 6, 1), ([60, 30, 20, 50, 25, 12], 8)],
    ids=["even", "one label a class", "imbalanced"],
)
def test_gaussian_classes_are_found(sizes: list[int], labelled: int) -> None:
    z, y = gaussians(sizes)
    given = problem(z, y, 3, labelled, 3)
    assert accuracy(fitted(given), given, y, 6) > 97


def test_whitening_and_labels_are_what_finds_classes_under_strong_noise() -> None:
    """Classes that differ little, beside one direction of much noise; a huge ridge switches whitening off."""
    z, y = gaussians([60] * 6, apart=1.5)
    given = problem(z, y, 3, 30, 3)
    whitened = accuracy(fitted(given), given, y, 6)
    assert whitened > accuracy(fitted(given, ridge=1e9), given, y, 6) + 5
    assert whitened > 85


def test_predictions_are_the_same_for_few_images_and_after_a_fit_of_the_same() -> None:
    z, y = gaussians([30] * 4)
    given = problem(z, y, 2, 10, 2)
    made, again = fitted(given), fitted(given)
    p = made.probabilities(outputs(given.images))
    assert torch.equal(p, again.probabilities(outputs(given.images)))
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
    torch.testing.assert_close(made.probabilities(outputs(given.images[7:12])), p[7:12])
    new = WhitenedClustering()  # as a saved model is loaded
    new.state = made.state
    assert torch.equal(new.probabilities(outputs(given.images)), p)


def test_a_sample_for_the_start_is_enough() -> None:
    z, y = gaussians([60] * 6)
    given = problem(z, y, 3, 20, 3)
    assert accuracy(fitted(given, start_images=60), given, y, 6) > 97


def test_balance_draws_shares_to_the_prior() -> None:
    """Overlapping classes of unequal size: the more balance, the more even the shares."""
    z, y = gaussians([120, 40, 20, 80, 20], apart=0.8)
    given = problem(z, y, 2, 10, 3)
    far = []
    for balance in (0.0, 0.5, 1.0):
        p = fitted(given, balance=balance).probabilities(outputs(given.images[given.unlabelled]))
        far.append(float((p.mean(dim=0) - given.class_prior()).abs().sum()))
    assert far == sorted(far, reverse=True)
    assert far[2] < 0.5 * far[0]


def test_a_state_from_a_file_is_checked() -> None:
    z, y = gaussians([20] * 4)
    made = fitted(problem(z, y, 2, 10, 2))
    assert made.fits(made.state, 4, 2, 2)
    assert not made.fits(made.state, 4, 2, 3)
    for name in ("mean", "centre", "centres", "bias", "sharpness"):
        assert not made.fits({**made.state, name: torch.zeros(3)}, 4, 2, 2), name
    with pytest.raises(KeyError):
        made.fits({k: v for k, v in made.state.items() if k != "map"}, 4, 2, 2)

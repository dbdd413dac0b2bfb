"""Whitened clustering on Gaussian classes; its parts are tested with maths/whitened_mixture.py."""

import numpy as np
import pytest
import torch

from openldn.data.pixels import Images
from openldn.data.problem import Problem
from openldn.maths import metrics
from openldn.methods.whitened_clustering import Settings, WhitenedClustering, sample
from openldn.nets.classifier import Outputs
from toy import as_outputs as outputs
from toy import gaussians, on_features


def fitted(given: Problem, **settings: float | None) -> WhitenedClustering:
    made = WhitenedClustering(Settings(**settings))  # type: ignore[arg-type]
    made.fit(lambda images: outputs(images[torch.arange(len(images))]), given, seed=0)
    return made


def accuracy(made: WhitenedClustering, given: Problem, y: np.ndarray, n_true: int) -> float:
    rows = given.unlabelled
    found = made.probabilities(outputs(given.images[rows])).argmax(dim=1).numpy()
    result = metrics.evaluate(
        y[rows], found, n_known=given.n_known, n_classes=n_true, n_ids=given.n_classes, ordered=True
    )
    return float(result["protocols"]["anchored"]["all"])


def test_a_sample_has_some_labelled_rows_and_some_others() -> None:
    labels = torch.tensor([-1, 0, -1, 1, -1, -1])
    assert sorted(sample(labels, 10, 10, 0).tolist()) == [0, 1, 2, 3, 4, 5]
    some = sample(labels, 2, 2, 0).tolist()
    assert some[:2] == [1, 3]
    assert len({*some[2:]} & {0, 2, 4, 5}) == 2
    assert sample(labels, 2, 2, 0).tolist() == some
    assert {tuple(sample(labels, 2, 2, seed)[2:].tolist()) for seed in range(20)} > {tuple(some[2:])}
    assert {tuple(sample(labels, 1, 0, seed).tolist()) for seed in range(20)} == {(1,), (3,)}


def test_a_sample_of_many_images_is_enough() -> None:
    """Only so many are looked at, and all are classified."""
    z, y = gaussians([300] * 6)
    given, seen = on_features(z, y, [100] * 3, 3), list[int]()

    def counted(images: Images) -> Outputs:
        seen.append(len(images))
        return outputs(images[torch.arange(len(images))])

    made = WhitenedClustering(Settings(max_images=400))
    made.fit(counted, given, seed=0)
    assert seen == [400]
    assert accuracy(made, given, y, 6) > 97


@pytest.mark.parametrize(
    ("sizes", "labelled"),
    [
        ([40] * 6, [20] * 3),
        ([40] * 6, [1] * 3),
        ([60, 30, 20, 50, 25, 12], [30, 15, 10]),
        ([200, 40, 20, 100, 25, 10], [100, 20, 10]),
        ([60, 30, 20, 50, 25, 12], [8] * 3),
        ([100, 20, 20, 100, 20, 20], [8] * 3),
    ],
    ids=["even", "one label a class", "imbalanced", "long tail", "even labels", "few large classes"],
)
def test_gaussian_classes_are_found(sizes: list[int], labelled: list[int]) -> None:
    z, y = gaussians(sizes)
    given = on_features(z, y, labelled, 3)
    assert accuracy(fitted(given), given, y, 6) > 97


def test_whitening_and_labels_are_what_finds_classes_under_strong_noise() -> None:
    """Classes that differ little, beside one direction of much noise; a huge ridge switches whitening off."""
    z, y = gaussians([60] * 6, apart=1.5)
    given = on_features(z, y, [30] * 3, 3)
    whitened = accuracy(fitted(given), given, y, 6)
    assert whitened > accuracy(fitted(given, ridge=1e9), given, y, 6) + 5
    assert whitened > 85


def test_predictions_are_the_same_for_few_images_and_after_a_fit_of_the_same() -> None:
    z, y = gaussians([30] * 4)
    given = on_features(z, y, [10, 10], 2)
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
    given = on_features(z, y, [20] * 3, 3)
    assert accuracy(fitted(given, start_images=60), given, y, 6) > 97


def test_balance_draws_shares_to_the_prior() -> None:
    """Overlapping classes of unequal size: the more balance, the more even the shares."""
    z, y = gaussians([120, 40, 20, 80, 20], apart=0.8)
    given = on_features(z, y, [10, 10], 3)
    far = []
    for balance in (0.0, 0.5, 1.0):
        p = fitted(given, balance=balance).probabilities(outputs(given.images[given.unlabelled]))
        far.append(float((p.mean(dim=0) - given.class_prior()).abs().sum()))
    assert far == sorted(far, reverse=True)
    assert far[2] < 0.5 * far[0]


def test_a_state_from_a_file_is_checked() -> None:
    z, y = gaussians([20] * 4)
    made = fitted(on_features(z, y, [10, 10], 2))
    assert made.fits(made.state, 4, 2, 2)
    assert not made.fits(made.state, 4, 2, 3)
    for name in ("mean", "centre", "centres", "bias", "sharpness"):
        assert not made.fits({**made.state, name: torch.zeros(3)}, 4, 2, 2), name
    with pytest.raises(KeyError):
        made.fits({k: v for k, v in made.state.items() if k != "map"}, 4, 2, 2)


def test_a_sample_keeps_some_images_of_every_known_class() -> None:
    labels = torch.cat([torch.zeros(1000), torch.ones(3), torch.full((2,), 2), -torch.ones(500)]).long()
    for seed in range(5):
        rows = sample(labels, 100, 50, seed)
        kept = torch.bincount(labels[rows] + 1).tolist()
        assert kept[0] == 50
        assert kept[2:] == [3, 2]
        assert kept[1] == 95
        assert len(rows.unique()) == len(rows)
    assert torch.equal(sample(labels, 2000, 500, 0), torch.arange(1505))

"""Batch compositions, learning rates, progressive resizing and ramps."""

import math

import pytest
import torch

from openldn.data.problem import Problem
from openldn.training.schedules import (
    downsized,
    equal,
    full_of_each,
    half_and_half,
    labelled_alone,
    learning_rate,
    linear_ramp,
    oversampled,
    progressive_size,
    proportional,
    sigmoid_ramp,
)


def problem(n_labelled: int, n_unlabelled: int) -> Problem:
    n = n_labelled + n_unlabelled
    labels = torch.tensor([0] * n_labelled + [-1] * n_unlabelled)
    return Problem(torch.zeros(n, 1, 8, 8, dtype=torch.uint8), labels, tuple(map(str, range(n))), (0,), 1)


# ---------------------------------------------------------------------------------------- compositions


@pytest.mark.parametrize(
    ("n_labelled", "expected"),
    [(250, (25, 75, 75)), (10, (10, 90, 90)), (900, (50, 50, 50)), (333, (33, 67, 67))],
)
def test_proportional_batches_are_like_the_whole_set_within_bounds(n_labelled: int, expected) -> None:
    """At least a tenth and at most half is labelled."""
    assert proportional(problem(n_labelled, 1000 - n_labelled), 100) == expected


@pytest.mark.parametrize("batch", [2, 3, 7, 100])
def test_every_composition_fills_its_batch(batch: int) -> None:
    for n_labelled in (1, 250, 999):
        made = problem(n_labelled, 1000 - n_labelled)
        some = [proportional(made, batch), equal(made, batch), oversampled(made, batch, 3.0)]
        for labelled, unlabelled, counted in some:
            assert labelled + unlabelled == batch
            assert min(labelled, unlabelled) >= 1
            assert counted == unlabelled
        assert abs(equal(made, batch).labelled - batch / 2) <= 0.5
        assert full_of_each(made, batch) == (batch, batch, batch)


@pytest.mark.parametrize("n_labelled", [10, 250, 900])
def test_labelled_images_alone_and_half_take_as_many_steps_as_proportional_batches(n_labelled: int) -> None:
    made = problem(n_labelled, 1000 - n_labelled)
    counted = proportional(made, 100).counted
    assert labelled_alone(made, 100) == (100, 0, counted)
    assert half_and_half(made, 101) == (50, 51, proportional(made, 101).counted)


@pytest.mark.parametrize(
    ("n_labelled", "n_unlabelled"), [(250, 750), (50, 950), (900, 100), (1, 999), (999, 1)]
)
def test_oversampled_images_are_seen_more_often_within_reason(n_labelled: int, n_unlabelled: int) -> None:
    """Three times as often as others, to the nearest image of a batch, but at most half of a batch."""
    few, many, counted = oversampled(problem(n_labelled, n_unlabelled), 100, 3.0)
    assert few + many == 100
    assert counted == many
    assert 1 <= few <= 50
    often = [k / n_labelled / ((100 - k) / n_unlabelled) for k in range(1, 51)]
    assert abs(often[few - 1] - 3) == min(abs(each - 3) for each in often)


# ------------------------------------------------------------------------------------- over progress


def test_learning_rates_start_above_zero_and_end_where_they_should() -> None:
    """A stage of one step, at progress 0, learns too."""
    at = (0.0, 0.05, 0.1, 0.55, 1.0)
    assert [learning_rate(2.0, "warm-up", t) for t in at] == pytest.approx([0.2, 1.1, 2.0, 1.0, 0.0])
    assert [learning_rate(2.0, "linear", t) for t in at] == pytest.approx([2.0, 1.9, 1.8, 0.9, 0.0])
    assert [learning_rate(2.0, "constant", t) for t in at] == [2.0] * 5
    assert [learning_rate(2.0, "cosine", t) for t in (0.0, 1 / 3, 0.5, 1.0)] == pytest.approx([2, 1.5, 1, 0])
    at = (0.0, 0.025, 0.05, 0.525, 1.0)
    assert [learning_rate(2.0, "warm-up-cosine", t) for t in at] == pytest.approx([0.2, 1.1, 2, 1, 0])
    ends = [learning_rate(2.0, "cosine-7-16", t) for t in (0.0, 1.0)]
    assert ends == pytest.approx([2.0, 2 * math.cos(7 * math.pi / 16)])
    at = (0.0, 0.69, 0.7, 0.89, 0.9, 1.0)
    assert [learning_rate(2.0, "steps", t) for t in at] == pytest.approx([2, 2, 0.2, 0.2, 0.02, 0.02])


@pytest.mark.parametrize(
    ("size", "expected"), [(32, [16, 24, 32]), (28, [14, 21, 28]), (20, [14, 15, 20]), (8, [8, 8, 8])]
)
def test_images_grow_in_thirds_and_are_never_too_small(size: int, expected: list[int]) -> None:
    assert [progressive_size(progress, size) for progress in (0.0, 0.34, 0.67)] == expected
    assert [progressive_size(progress, size) for progress in (0.33, 0.66, 0.99)] == expected
    assert progressive_size(1.0, size) == size


def test_a_linear_ramp_is_a_straight_line_to_its_end() -> None:
    assert [linear_ramp(t, 0.4) for t in (0.0, 0.1, 0.3, 0.4, 0.9)] == pytest.approx([0, 0.25, 0.75, 1, 1])


def test_a_sigmoid_ramp_is_laine_and_ailas() -> None:
    assert sigmoid_ramp(0.0, 0.5) == pytest.approx(math.exp(-5))
    assert sigmoid_ramp(0.1, 0.5) == pytest.approx(math.exp(-5 * 0.8**2))
    assert [sigmoid_ramp(t, 0.5) for t in (0.5, 0.7, 1.0)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("size", "resolution", "expected"),
    [(224, 0.65, 160), (160, 0.65, 96), (140, 0.65, 96), (40, 0.65, 32), (20, 0.65, 20), (224, 1.0, 224)],
)
def test_images_are_downsized_to_multiples_of_the_stride(size: int, resolution: float, expected: int) -> None:
    assert downsized(size, resolution) == expected

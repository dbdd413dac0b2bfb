"""Schedules and batch compositions. Schedules are functions of progress in [0, 1]: any length is sensible."""

import math
from typing import NamedTuple

from openldn.data.problem import Problem
from openldn.training.settings import Schedule


class Composition(NamedTuple):
    """What a step consists of."""

    labelled: int  # images
    unlabelled: int
    counted: int  # how many unlabelled images a step counts for in an epoch


def proportional(problem: Problem, batch: int) -> Composition:
    """The share of labelled images is that of the whole set, but at least a tenth and at most half."""
    share = min(max(len(problem.labelled) / len(problem.images), 0.1), 0.5)
    n_labelled = max(round(share * batch), 1)
    return Composition(n_labelled, batch - n_labelled, batch - n_labelled)


def labelled_alone(problem: Problem, batch: int) -> Composition:
    """Labelled images alone; as many steps an epoch as `proportional` has."""
    return Composition(batch, 0, proportional(problem, batch).counted)


def half_and_half(problem: Problem, batch: int) -> Composition:
    """Half of the batch is labelled; as many steps an epoch as `proportional` has."""
    return Composition(batch // 2, batch - batch // 2, proportional(problem, batch).counted)


def equal(problem: Problem, batch: int) -> Composition:
    """Half of the batch is labelled."""
    n_labelled = max(round(0.5 * batch), 1)
    return Composition(n_labelled, batch - n_labelled, batch - n_labelled)


def full_of_each(problem: Problem, batch: int, ratio: int = 1) -> Composition:
    """A batch of labelled images, and `ratio` times as many unlabelled ones."""
    return Composition(batch, ratio * batch, ratio * batch)


def oversampled(problem: Problem, batch: int, factor: float) -> Composition:
    """Labelled images are seen `factor` times as often as others, but are at most half of a batch."""
    ratio = min(1.0, factor * len(problem.labelled) / max(1, len(problem.unlabelled)))
    n_labelled = min(max(1, round(batch * ratio / (1 + ratio))), batch - 1)
    return Composition(n_labelled, batch - n_labelled, batch - n_labelled)


def learning_rate(peak: float, schedule: Schedule, progress: float) -> float:
    """Of a step, given its peak; the schedules are described with the setting."""
    match schedule:
        case "constant":
            share = 1.0
        case "linear":
            share = 1 - progress
        case "warm-up":
            share = min(0.1 + 9 * progress, (1 - progress) / 0.9)
        case "cosine":
            share = half_cosine(progress)
        case "warm-up-cosine":
            share = min(0.1 + 18 * progress, half_cosine(max(0.0, (progress - 0.05) / 0.95)))
        case "cosine-7-16":
            share = math.cos(7 * math.pi * progress / 16)
        case "steps":
            share = 0.1 ** ((progress >= 0.7) + (progress >= 0.9))
    return peak * share


def half_cosine(progress: float) -> float:
    """From one to zero along half a period of the cosine."""
    return (1 + math.cos(math.pi * progress)) / 2


def progressive_size(progress: float, size: int, least: int = 14) -> int:
    """Progressive resizing: half of the images' own pixels in the first third, three quarters, then all.

    Early steps learn what small images show too, for a quarter of the arithmetic.
    """
    share = (0.5, 0.75, 1.0)[min(int(3 * progress), 2)]
    return min(size, max(least, round(share * size)))


def downsized(size: int, resolution: float, stride: int = 32) -> int:
    """A share of the size of images, in multiples of the stride of most networks."""
    return min(size, max(stride, stride * round(resolution * size / stride)))


def linear_ramp(progress: float, until: float) -> float:
    """0 to 1 in a straight line that ends at `until`."""
    return min(1.0, progress / until)


def sigmoid_ramp(progress: float, until: float) -> float:
    """0 to 1 along exp(-5 (1 - t)²), which ends at `until` (Laine and Aila, 2017)."""
    return math.exp(-5 * (1 - min(1.0, progress / until)) ** 2)

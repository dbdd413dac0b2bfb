"""Batches, budgets and ramps, which are functions of progress in [0, 1]: any length is a sensible run."""

import math

from openldn.config import Discover, Length, Schedule
from openldn.data.problem import Problem


def composition(problem: Problem, settings: Discover) -> tuple[int, int]:
    """How many labelled and unlabelled images a step has."""
    if settings.composition == "proportional":
        return proportional(problem, settings.batch)
    n_labelled = max(round(0.5 * settings.batch), 1)
    return n_labelled, settings.batch - n_labelled


def proportional(problem: Problem, batch: int) -> tuple[int, int]:
    """As many labelled images as there are among all, but a tenth at least and at most half."""
    share = min(max(len(problem.labelled) / len(problem.images), 0.1), 0.5)
    n_labelled = max(round(share * batch), 1)
    return n_labelled, batch - n_labelled


def oversampled(problem: Problem, batch: int, often: float) -> tuple[int, int]:
    """How many labelled and unlabelled images a step has if labelled ones are seen so much more often.

    At least one of either, and not more labelled than unlabelled ones.
    """
    ratio = min(1.0, often * len(problem.labelled) / max(1, len(problem.unlabelled)))
    n_labelled = min(max(1, round(batch * ratio / (1 + ratio))), batch - 1)
    return n_labelled, batch - n_labelled


def steps_for(
    length: Length, n_unlabelled: int, batch: int, cost: float, overhead: float = 0.0
) -> tuple[int, int]:
    """Steps of one pass over the unlabelled images, and of the whole phase (at least one).

    `batch` is how many of these a step takes. A step costs so many image passes, and what is done beside the
    steps so many in all: where a budget is given, it says how many steps there are.
    """
    epoch = math.ceil(n_unlabelled / batch)
    if length.budget is not None:
        return epoch, max(1, int((length.budget - overhead) / cost))
    return epoch, max(1, round(length.passes(n_unlabelled) * n_unlabelled / batch))


def learning_rate(peak: float, schedule: Schedule, progress: float) -> float:
    """`constant`; `fall`: down to zero; or `decay`: up from a tenth over the first tenth first.

    In straight lines.
    """
    if schedule == "constant":
        return peak
    if schedule == "fall":
        return peak * (1 - progress)
    return peak * min(0.1 + 9 * progress, (1 - progress) / 0.9)


def side(progress: float, size: int, least: int = 14) -> int:
    """Pixels to learn at: half of the images' own in the first third, three quarters, then all.

    Early steps learn what shows in small images too, for a quarter of the arithmetic.
    """
    share = (0.5, 0.75, 1.0)[min(int(3 * progress), 2)]
    return min(size, max(least, round(share * size)))


def growing(size: int) -> float:
    """What a step costs on average while images grow so, in units of one with whole images."""
    return sum((side(third / 3, size) / size) ** 2 for third in range(3)) / 3


def ramp(progress: float, until: float) -> float:
    """0 to 1 along a straight line that ends at `until`."""
    return min(1.0, progress / until)


def late(progress: float, until: float) -> float:
    """0 to 1 along exp(-5 (1 - t)²), slowly at first, which ends at `until`: of Laine and Aila (2017)."""
    return math.exp(-5 * (1 - min(1.0, progress / until)) ** 2)

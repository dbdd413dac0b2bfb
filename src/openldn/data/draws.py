"""Random numbers that belong to a place, not to an order: the same whenever and with whomever they are drawn.

A key stands for a place (seed, phase, epoch, row, ...), and the k-th number drawn there is a function of
the key and k. They are SplitMix64's (Steele, Lea and Flood, 2014), a stream for each key, and are made on
the host, so every device gets the same ones.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15


def keys_of(*numbers: ArrayLike) -> Keys:
    """A key for each place; some of the numbers that name it are one for all, others (n,)."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _mixed(key + np.uint64(GOLDEN) + np.asarray(number).astype(np.uint64))
    return key


class Draws:
    """Numbers for n places. What a place gets does not depend on who else is there."""

    def __init__(self, keys: Keys):
        self.keys, self._drawn = keys, 0

    def uniform(self, times: int) -> NDArray[np.float64]:
        """So many numbers for each place, from 0 to 1, without 1.  (times, n)"""
        steps = [k * GOLDEN % 2**64 for k in range(self._drawn + 1, self._drawn + times + 1)]
        self._drawn += times
        bits = _mixed(self.keys + np.array(steps, np.uint64)[:, None])
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def whole(uniform: NDArray[np.float64], low: int, high: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers from `low` to `high`, without `high`, all as likely."""
    return low + (uniform * np.subtract(high, low)).astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's last step: each bit hangs on all bits of x, and no two x have the same result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

"""Counter-based random numbers: they depend on a key, not on the order in which they are drawn.

A key is made of numbers such as seed, stage, epoch and row. The k-th number of a key is a function of the key
and k: a stream of SplitMix64 (Steele, Lea and Flood, 2014) per key. They are made on the host, so that every
device gets the same ones.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15


def keys_of(*numbers: ArrayLike) -> Keys:
    """A key for each combination of numbers; each is a scalar or an array (n,)."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _mixed(key + np.uint64(GOLDEN) + np.asarray(number).astype(np.uint64))
    return key


class Draws:
    """Random numbers for n keys, each independent of the other keys."""

    def __init__(self, keys: Keys):
        self.keys, self._drawn = keys, 0

    def uniform(self, times: int) -> NDArray[np.float64]:
        """The next `times` numbers of each key, in [0, 1).  (times, n)"""
        steps = [k * GOLDEN % 2**64 for k in range(self._drawn + 1, self._drawn + times + 1)]
        self._drawn += times
        bits = _mixed(self.keys + np.array(steps, np.uint64)[:, None])
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(uniform: NDArray[np.float64], low: int, high: ArrayLike) -> NDArray[np.int64]:
    """Integers in [low, high) from uniform numbers in [0, 1)."""
    return low + (uniform * np.subtract(high, low)).astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64, a bijection in which each bit depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

"""The batches of a Problem, step by step.

The rows of a batch are a function of (seed, epoch, step in the epoch), and the views of a row are one of
(seed, epoch, pass, row). There is no random state to save: a resumed run sees the same batches.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.draws import keys_of
from openldn.data.pixels import expect, takes_time
from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.device import views_on

AT_ONCE = 2**22  # pixel values that are made at a time
Views = tuple[Tensor, ...]  # each (n, c, h, w), floats in [0, 1]


class Batch(NamedTuple):
    """Views of labelled images with their labels, and views of unlabelled images with their rows."""

    x: Views  # of l images
    y: Tensor  # (l,)
    u: Views  # of u images
    rows: Tensor  # (u,) rows in the Problem

    @property
    def views(self) -> Views:
        """Each view of all images, labelled ones first, if both have as many.  (l + u, c, h, w) each"""
        return tuple(torch.cat([x, u]) for x, u in zip(self.x, self.u, strict=True))


class Stream:
    """An endless sequence of shuffled passes over `rows`, in batches."""

    def __init__(self, rows: Tensor, batch: int, seed: tuple[int, ...]):
        self.rows, self.batch, self.seed = rows.numpy(), batch, seed
        self._passes: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, i: int) -> Tensor:
        """The i-th batch; it may contain the end of one pass and the start of the next."""
        if self.batch == 0:
            return torch.empty(0, dtype=torch.int64)
        number = self.passes(i)
        place = np.arange(i * self.batch, (i + 1) * self.batch) % len(self.rows)
        drawn = [self._shuffled(k)[place[number == k]] for k in np.unique(number).tolist()]
        return torch.from_numpy(self.rows[np.concatenate(drawn)])

    def passes(self, i: int) -> NDArray[np.int64]:
        """The number of the pass that each row of the i-th batch belongs to."""
        return np.arange(i * self.batch, (i + 1) * self.batch) // max(1, len(self.rows))

    def _shuffled(self, k: int) -> NDArray[np.int64]:
        if k not in self._passes:  # keep the previous pass too: a batch may be of both
            order = np.random.default_rng([*self.seed, k]).permutation(len(self.rows))
            self._passes = {j: p for j, p in self._passes.items() if j == k - 1} | {k: order}
        return self._passes[k]


class Batches:
    """The batches of one epoch, with `n_labelled` and `n_unlabelled` images each."""

    def __init__(
        self,
        problem: Problem,
        *,
        n_labelled: int,
        n_unlabelled: int,
        labelled_views: tuple[str, ...],
        unlabelled_views: tuple[str, ...],
        seed: tuple[int, ...],
        device: torch.device,
    ):
        self.problem, self.device, self.views_on = problem, device, views_on(device)
        self.labelled_views, self.unlabelled_views = labelled_views, unlabelled_views
        # Of small images, several batches are made at a time, which is faster: a block.
        values = max(n_labelled, n_unlabelled) * math.prod(problem.images.shape[1:])
        self._ahead = max(1, min(16, AT_ONCE // max(1, values)))
        # If every image has a pseudo-label, all of them are used as unlabelled images.
        unlabelled = problem.unlabelled if len(problem.unlabelled) else torch.arange(len(problem.images))
        self._labelled = Stream(problem.labelled, n_labelled * self._ahead, (*seed, 0))
        self._unlabelled = Stream(unlabelled, n_unlabelled * self._ahead, (*seed, 1))
        self._made: tuple[int, list[Batch]] = (-1, [])

    def __getitem__(self, i: int) -> Batch:
        block, k = divmod(i, self._ahead)
        if self._made[0] != block:
            rows_l, x = self._drawn(self._labelled, block, self.labelled_views)
            rows_u, u = self._drawn(self._unlabelled, block, self.unlabelled_views)
            y = self.problem.labels[rows_l].to(self.device)
            self._made = block, [Batch(*parts) for parts in zip(x, y, u, rows_u, strict=True)]
            for stream in (self._labelled, self._unlabelled) if takes_time(self.problem.images) else ():
                expect(self.problem.images, stream[block + 1])
        return self._made[1][k]

    def _drawn(self, stream: Stream, block: int, names: tuple[str, ...]) -> tuple[Tensor, list[Views]]:
        """The rows of a block of batches (b, n), and the views of each batch."""
        rows = stream[block]
        keys = keys_of(*stream.seed, stream.passes(block), rows.numpy())
        images = self.problem.images[rows].to(self.views_on)
        shape = (self._ahead, stream.batch // self._ahead)
        seen = views(images, names, self.problem.flip, keys, self.problem.crop)
        made = [view.to(self.device).unflatten(0, shape) for view in seen]
        return rows.view(shape), [tuple(view[k] for view in made) for k in range(self._ahead)]

"""From a Problem to what a method sees at each step.

Which rows a step gets is a function of (seed, epoch, step in the epoch): there is no sampler state to
save, and a resumed run draws what it would have drawn.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.device import views_on


class Batch(NamedTuple):
    """Labelled views with their labels, unlabelled views with their rows. There are no other labels."""

    x: tuple[Tensor, ...]  # each (l, c, h, w), floats in [0, 1]
    y: Tensor  # (l,)
    u: tuple[Tensor, ...]  # each (u, c, h, w)
    rows: Tensor  # (u,) rows of the Problem


class Stream:
    """An endless row of shuffled passes over `rows`, cut into batches."""

    def __init__(self, rows: Tensor, batch: int, seed: tuple[int, ...]):
        self.rows, self.batch, self.seed = rows.numpy(), batch, seed
        self._passes: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, i: int) -> Tensor:
        """The i-th batch; a batch may end one pass and begin the next."""
        if self.batch == 0:
            return torch.empty(0, dtype=torch.int64)
        places = np.arange(i * self.batch, (i + 1) * self.batch)
        number, place = np.divmod(places, len(self.rows))
        drawn = [self._shuffled(k)[place[number == k]] for k in np.unique(number).tolist()]
        return torch.from_numpy(self.rows[np.concatenate(drawn)])

    def _shuffled(self, k: int) -> NDArray[np.int64]:
        if k not in self._passes:  # keep the last pass too: a batch may stand across two
            order = np.random.default_rng([*self.seed, k]).permutation(len(self.rows))
            self._passes = {j: p for j, p in self._passes.items() if j == k - 1} | {k: order}
        return self._passes[k]


class Batches:
    """The batches of one epoch: `n_labelled` and `n_unlabelled` images each, with their views."""

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
        self._labelled = Stream(problem.labelled, n_labelled, (*seed, 0))
        # Where every image has been given a pseudo-label, all of them serve as unlabelled ones.
        unlabelled = problem.unlabelled if len(problem.unlabelled) else torch.arange(len(problem.images))
        self._unlabelled = Stream(unlabelled, n_unlabelled, (*seed, 1))

    def __getitem__(self, i: int) -> Batch:
        """The i-th batch; its views are drawn from torch's global generator."""
        rows_l, rows_u = self._labelled[i], self._unlabelled[i]
        return Batch(
            x=self._views(rows_l, self.labelled_views),
            y=self.problem.labels[rows_l].to(self.device),
            u=self._views(rows_u, self.unlabelled_views),
            rows=rows_u,
        )

    def _views(self, rows: Tensor, names: tuple[str, ...]) -> tuple[Tensor, ...]:
        images = self.problem.images[rows].to(self.views_on)
        return tuple(view.to(self.device) for view in views(images, names, self.problem.flip))

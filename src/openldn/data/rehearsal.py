"""Rehearsals: known classes are hidden as if they were novel, so that systems can be compared by labels.

A rehearsal has all images. Some of the known classes lose all of their labels, the others a quarter of them.
How well the hidden labels are found is what a user can know of a system beforehand.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.pixels import Part
from openldn.data.problem import UNLABELLED, Problem

LEAST_KNOWN = 3  # classes: two stay known, one is hidden


def possible(problem: Problem) -> bool:
    """Whether there are enough classes, and enough labels of each, for a rehearsal."""
    counts = torch.bincount(problem.labels[problem.labelled], minlength=problem.n_known)
    return problem.n_known >= LEAST_KNOWN and int(counts.min()) >= 2


def sample(problem: Problem, most: int, seed: int) -> Problem:
    """About `most` of the images, if there are more: the same share of each known class and of the others.

    Of each known class at least four labelled images remain.
    """
    n = len(problem.images)
    if n <= most:
        return problem
    rng, labels = np.random.default_rng([seed, 0x5A]), problem.labels.numpy()
    kept = list[NDArray[np.int64]]()
    for k in (UNLABELLED, *range(problem.n_known)):
        rows = rng.permutation(np.flatnonzero(labels == k))
        kept.append(rows[: max(round(len(rows) * most / n), 0 if k == UNLABELLED else 4)])
    chosen = np.sort(np.concatenate(kept))
    return replace(
        problem,
        images=Part(problem.images, torch.from_numpy(chosen)),
        labels=problem.labels[torch.from_numpy(chosen)],
        names=tuple(problem.names[i] for i in chosen.tolist()),
    )


def rehearsal(problem: Problem, seed: int) -> tuple[Problem, Tensor, NDArray[np.int64]]:
    """The problem with a third of the known classes hidden; the rows whose labels it lacks; these labels.

    They are numbered like the classes of the new problem: known ones first, then the hidden ones.
    """
    rng = np.random.default_rng([seed, 0x4E4])
    n_hidden = max(1, problem.n_known // 3)
    order = rng.permutation(problem.n_known)
    known, hidden = np.sort(order[n_hidden:]), np.sort(order[:n_hidden])
    place = np.empty(problem.n_known, np.int64)
    place[np.concatenate([known, hidden])] = np.arange(problem.n_known)
    labels = problem.labels.numpy()
    true = np.where(labels == UNLABELLED, UNLABELLED, place[labels])
    given = np.where(true >= len(known), UNLABELLED, true)
    for k in range(len(known)):
        of_class = rng.permutation(np.flatnonzero(true == k))
        given[of_class[: max(1, len(of_class) // 4)]] = UNLABELLED
    made = replace(
        problem,
        labels=torch.from_numpy(given),
        classes=tuple(problem.classes[k] for k in known),
        n_novel=problem.n_novel + n_hidden,
    )
    judged = np.flatnonzero(given != true)
    return made, torch.from_numpy(judged), true[judged]

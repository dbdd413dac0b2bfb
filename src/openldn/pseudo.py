"""Class-balanced confident pseudo-labels: what turns the open world into a closed one."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from openldn.errors import OpenLDNWarning


def most_confident(p: Tensor, n_known: int, k: int) -> tuple[Tensor, Tensor]:
    """Of the images predicted in each novel class the k most confident ones: their rows and classes.

    p is (n, C). A class with fewer predictions gives all it has; images predicted known are never taken.
    """
    confidence, predicted = p.max(dim=1)
    chosen = []
    for c in range(n_known, p.shape[1]):
        rows = torch.nonzero(predicted == c).flatten()
        order = confidence[rows].argsort(descending=True, stable=True)
        chosen.append(rows[order[:k]])
    rows = torch.cat(chosen)
    return rows, predicted[rows]


def warn_of_empty(labels: Tensor, n_known: int, names: Sequence[str | int]) -> None:
    """Tells the owner of novel classes that got no pseudo-label at all."""
    empty = [name for c, name in enumerate(names) if c >= n_known and not bool((labels == c).any())]
    if len(empty) == len(names) - n_known:
        warnings.warn(
            "no image was predicted to be novel, so closed-world training starts with the known classes "
            "alone; more epochs, or fewer novel classes, may help",
            OpenLDNWarning,
            stacklevel=2,
        )
    elif empty:
        warnings.warn(
            f"no image was predicted in {len(empty)} of {len(names) - n_known} novel classes "
            f"({', '.join(map(str, empty))}); they have no pseudo-labels for now, and there may be fewer "
            "novel classes than were asked for",
            OpenLDNWarning,
            stacklevel=2,
        )

"""Pseudo-labels of the most confident images."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from openldn.errors import OpenLDNWarning
from openldn.methods.closed_world import most_confident, warn_of_empty_classes


def by_hand(p: Tensor, n_known: int, k: int) -> list[tuple[int, int]]:
    found = []
    for c in range(n_known, p.shape[1]):
        members = [(max(row), i) for i, row in enumerate(p.tolist()) if row.index(max(row)) == c]
        members.sort(key=lambda pair: (-pair[0], pair[1]))
        found += [(i, c) for _, i in members[:k]]
    return found


@pytest.mark.parametrize("k", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_most_confident_against_a_loop(k: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(60, 6, generator=g, dtype=torch.float64)).softmax(dim=1)
    p[30:40] = p[20:30]  # equally confident ones
    rows, classes = most_confident(p, 2, k)
    assert list(zip(rows.tolist(), classes.tolist(), strict=True)) == by_hand(p, 2, k)
    assert int(classes.min()) >= 2
    assert max(Counter(classes.tolist()).values()) <= k


def test_a_class_without_predictions_gives_none() -> None:
    p = torch.eye(4)[[0, 1, 3, 3, 3, 0]]
    rows, classes = most_confident(p, 2, 2)
    assert rows.tolist() == [2, 3]
    assert classes.tolist() == [3, 3]
    with pytest.warns(OpenLDNWarning, match=r"1 of 2 novel classes \(novel-1\)"):
        warn_of_empty_classes(classes, 2, ["cat", "dog", "novel-1", "novel-2"])


def test_nothing_predicted_novel() -> None:
    rows, classes = most_confident(torch.eye(4)[[0, 1, 1]], 2, 5)
    assert rows.tolist() == classes.tolist() == []
    assert rows.dtype == classes.dtype == torch.int64
    with pytest.warns(OpenLDNWarning, match="no image was predicted to be novel"):
        warn_of_empty_classes(classes, 2, ["cat", "dog", "novel-1", "novel-2"])


def test_no_warning_where_every_novel_class_has_some() -> None:
    warn_of_empty_classes(
        torch.tensor([2, 3, 3]), 2, ["cat", "dog", "novel-1", "novel-2"]
    )  # warnings are errors

"""Ward's clustering with labels, against plain agglomeration that computes every variance anew."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from torch import Tensor

from openldn.maths.ward import Tree, ward


def spread(rows: np.ndarray) -> float:
    """The sum of squared distances to the mean."""
    return float(((rows - rows.mean(axis=0)) ** 2).sum())


def agglomerated(z: np.ndarray, labels: list[int], n_known: int, n_classes: int) -> list[set[int]]:
    """Sets of rows; the first `n_known` have the labelled rows of a known class each."""
    clusters = [{i for i, label in enumerate(labels) if label == k} for k in range(n_known)]
    clusters += [{i} for i, label in enumerate(labels) if label < 0]
    while len(clusters) > n_classes:
        best, pair = math.inf, (-1, -1)
        for a, b in combinations(range(len(clusters)), 2):
            if b < n_known:
                continue
            both, parts = clusters[a] | clusters[b], (clusters[a], clusters[b])
            more = spread(z[[*both]]) - sum(spread(z[[*part]]) for part in parts)
            if more < best:
                best, pair = more, (a, b)
        clusters[pair[0]] |= clusters.pop(pair[1])
    return clusters


def rows(n: int, d: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d))).float()


@pytest.mark.parametrize(("seed", "n_classes"), [(0, 5), (1, 3), (2, 9), (3, 4), (4, 6)])
def test_it_is_plain_agglomeration_with_known_classes_apart(seed: int, n_classes: int) -> None:
    z = rows(32, 3, seed)
    labels = torch.full((32,), -1)
    labels[torch.randperm(32, generator=torch.Generator().manual_seed(seed))[:9]] = torch.arange(9) % 3
    found = ward(z, labels, 3, n_classes)
    expected = agglomerated(z.double().numpy(), labels.tolist(), 3, n_classes)
    assert [{*torch.nonzero(found == k).flatten().tolist()} for k in range(3)] == expected[:3]
    novel = {frozenset(torch.nonzero(found == k).flatten().tolist()) for k in range(3, n_classes)}
    assert novel == {*map(frozenset, expected[3:])}
    assert torch.equal(found[labels >= 0], labels[labels >= 0])


def test_one_tree_is_cut_into_any_number_of_classes() -> None:
    """Finer cuts divide the clusters of coarser ones."""
    z, labels = rows(40, 3, 6), torch.full((40,), -1)
    labels[:6] = torch.arange(6) % 3
    tree, coarser = Tree(z, labels, 3), torch.zeros(40)
    for n_classes in (3, 4, 8, 20, 37):
        found = tree.cut(n_classes)
        assert torch.equal(found, ward(z, labels, 3, n_classes))
        assert {*found.tolist()} == {*range(n_classes)}
        assert len({*zip(found.tolist(), coarser.tolist(), strict=True)}) == n_classes
        coarser = found


@pytest.mark.parametrize("n_clusters", [1, 2, 7, 60])
def test_without_labels_it_is_scipys(n_clusters: int) -> None:
    z = rows(60, 4, 5)
    ours = ward(z, torch.full((60,), -1), 0, n_clusters)
    theirs = hierarchy.fcluster(hierarchy.ward(z.double().numpy()), n_clusters, "maxclust")
    pairs = {*zip(ours.tolist(), theirs.tolist(), strict=True)}
    assert {*ours.tolist()} == {*range(n_clusters)}
    assert len(pairs) == len({*theirs.tolist()}) == n_clusters


def test_known_classes_stay_apart_though_they_lie_together() -> None:
    """Two known classes at one place, a novel one far away; the novel images are one class."""
    z = torch.cat([rows(20, 2, 0), rows(10, 2, 1) + 50])
    labels = torch.full((30,), -1)
    labels[:4] = torch.tensor([0, 1, 0, 1])
    found = ward(z, labels, 2, 3)
    assert found[:4].tolist() == [0, 1, 0, 1]
    assert {*found[:20].tolist()} <= {0, 1}
    assert {*found[20:].tolist()} == {2}


def test_as_many_classes_as_images_and_images_that_are_alike() -> None:
    labels = torch.tensor([0, 1, -1, -1, -1])
    assert ward(rows(5, 3, 0), labels, 2, 5).tolist() == [0, 1, 2, 3, 4]
    alike = ward(torch.ones(5, 3), labels, 2, 3)
    assert alike[:2].tolist() == [0, 1]
    assert {*alike.tolist()} == {0, 1, 2}  # every class has images


def test_rounded_distances_that_are_not_symmetric(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 is nearest to 1, 1 to 2 and 2 to 0: a chain would never end."""
    costs = torch.tensor([[0.0, 1.0, 1.1], [1.1, 0.0, 1.0], [1.0, 1.1, 0.0]])
    monkeypatch.setattr(torch, "cdist", lambda *_: costs.sqrt())
    z, none = torch.zeros(3, 2), torch.full((3,), -1)
    assert ward(z, none, 0, 1).tolist() == [0, 0, 0]
    assert sorted(ward(z, none, 0, 2).tolist()) == [0, 0, 1]


def test_a_known_class_without_images_stays_alone() -> None:
    z = torch.tensor([[0.0, 1.0], [0.0, 1.1], [5.0, 0.0], [5.0, 0.1]])
    labels = torch.tensor([0, -1, -1, -1])  # of two known classes, 1 has no image
    assert ward(z, labels, 2, 3).tolist() == [0, 0, 2, 2]

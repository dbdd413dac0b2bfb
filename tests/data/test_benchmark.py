"""Benchmarks: splits into a problem and its ground truth, and subsets."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from openldn.data.benchmark import Benchmark
from openldn.data.problem import UNLABELLED
from openldn.errors import UserError


def benchmark(per_class: tuple[int, ...] = (30, 17, 25, 9, 12), flip: bool = True) -> Benchmark:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(per_class)), per_class))
    images = torch.from_numpy(rng.integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8))
    classes = tuple("abcdefghij"[: len(per_class)])
    return Benchmark.in_memory("toy", (images, labels), (images[:10], labels[:10]), classes, flip)


@pytest.mark.parametrize("share", ["0.1", "0.5", "0.07", "0.55", "0.29", "1", "0.001"])
@pytest.mark.parametrize("known", [0.4, 0.6, 0.8])
def test_split_labels_a_share_of_each_known_class(known: float, share: str) -> None:
    whole = benchmark((100, 50, 25, 9, 12))
    given, truth = whole.split(known=known, labelled=float(share), seed=3)
    n_known = round(known * 5)
    assert given.n_known == truth.n_known == n_known
    assert given.n_novel == 5 - n_known
    assert given.classes == whole.classes[:n_known]
    labels = given.labels.numpy()
    for c in range(5):
        rows = whole.train.labels == c
        expected = math.ceil(Fraction(share) * int(rows.sum())) if c < n_known else 0
        assert (labels[rows] == c).sum() == expected  # as many as asked for, exactly
        assert (labels[rows] == UNLABELLED).sum() == rows.sum() - expected  # and never wrongly labelled


def test_split_is_a_partition_of_all_images() -> None:
    whole = benchmark()
    given, truth = whole.split(known=0.6, labelled=0.5, seed=0)
    labelled, unlabelled = given.labelled.tolist(), given.unlabelled.tolist()
    assert sorted(labelled + unlabelled) == list(range(len(whole.train.labels)))
    assert not set(labelled) & set(unlabelled)
    assert torch.equal(given.images, whole.train.pixels)
    assert len(set(given.names)) == len(given.images)
    assert torch.equal(truth.images, whole.test.pixels)
    assert truth.labels.tolist() == whole.test.labels.tolist()
    assert truth.classes == whole.classes
    assert set(whole.train.labels[unlabelled].tolist()) == {0, 1, 2, 3, 4}


def test_split_depends_on_the_seed_alone() -> None:
    whole = benchmark()
    drawn = [whole.split(known=0.6, labelled=0.5, seed=seed)[0].labels.tolist() for seed in range(5)]
    torch.manual_seed(99)
    again = [whole.split(known=0.6, labelled=0.5, seed=seed)[0].labels.tolist() for seed in range(5)]
    assert drawn == again
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_split_claims_as_many_novel_classes_as_told_and_passes_on_the_flip() -> None:
    given, truth = benchmark(flip=False).split(known=0.4, labelled=0.5, seed=0, novel=7)
    assert given.n_novel == 7
    assert given.n_classes == 9
    assert truth.n_classes == 5
    assert given.flip is False
    assert benchmark(flip=True).split(known=0.4, labelled=0.5, seed=0)[0].flip is True


@pytest.mark.parametrize(
    ("known", "labelled", "word"),
    [
        (0.2, 0.5, "known 0.2 makes 1 of 5 classes known"),
        (1.0, 0.5, "known 1.0 makes 5 of 5 classes known"),
        (5.0, 0.5, "known 5.0 is not a share of the classes; give a number between 0 and 1"),
        (math.nan, 0.5, "known nan is not a share"),
        (0.6, 0.0, "labelled 0.0 is not a share"),
        (0.6, 1.2, "labelled 1.2 is not a share"),
    ],
)
def test_splits_that_make_no_sense_are_refused(known: float, labelled: float, word: str) -> None:
    with pytest.raises(UserError, match=f"--{word}"):
        benchmark().split(known=known, labelled=labelled, seed=0)


@pytest.mark.parametrize("n", [1, 7, 20, 40, 1000])
def test_a_subset_has_the_first_images_of_each_class(n: int) -> None:
    whole = benchmark()
    part = whole.subset(n)
    each = max(1, n // 5)
    expected = sorted(i for k in range(5) for i in np.flatnonzero(whole.train.labels == k)[:each].tolist())
    assert part.train.names == tuple(f"toy/train/{i}" for i in expected)
    assert part.train.labels.tolist() == whole.train.labels[expected].tolist()
    assert torch.equal(part.train.pixels[torch.arange(len(expected))], whole.train.pixels[expected])
    assert part.test is whole.test


def test_a_subset_of_files_is_the_same_as_of_pixels() -> None:
    whole = benchmark()
    files = replace(whole.train, images=tuple(f"/at/{name}" for name in whole.train.names), root="/at")
    part = replace(whole, train=files).subset(20).train
    assert part.names == whole.subset(20).train.names
    assert part.files == tuple(f"/at/{name}" for name in part.names)
    assert part.labels.tolist() == whole.subset(20).train.labels.tolist()
    assert part.root == "/at"

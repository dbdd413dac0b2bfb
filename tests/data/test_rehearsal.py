"""Known classes hidden as if novel."""

import numpy as np
import pytest
import torch

from openldn.data.problem import UNLABELLED, Problem
from openldn.data.rehearsal import possible, rehearsal, sample


def problem(n_known: int, labelled: int = 8, n_novel: int = 3) -> Problem:
    labels = [k for k in range(n_known) for _ in range(labelled)] + [UNLABELLED] * 30
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return Problem(
        images=torch.arange(len(labels)).view(-1, 1, 1, 1).to(torch.uint8),
        labels=torch.tensor(labels)[order],
        names=tuple(map(str, range(len(labels)))),
        classes=tuple(f"class {k}" for k in range(n_known)),
        n_novel=n_novel,
    )


@pytest.mark.parametrize("n_known", [3, 4, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_third_of_the_classes_lose_all_labels_and_the_others_a_quarter(n_known: int, seed: int) -> None:
    given = problem(n_known)
    made, judged, true = rehearsal(given, seed)
    n_hidden = max(1, n_known // 3)
    assert made.n_known == n_known - n_hidden
    assert made.n_novel == given.n_novel + n_hidden
    assert (made.labels[judged] == UNLABELLED).all()
    assert (given.labels[judged] != UNLABELLED).all()
    others = np.setdiff1d(np.arange(len(given.labels)), judged.numpy())
    # What is still labelled has the same class, by name, and nothing else has a label.
    for i in others.tolist():
        before, after = int(given.labels[i]), int(made.labels[i])
        assert (before == UNLABELLED) == (after == UNLABELLED)
        assert before == UNLABELLED or given.classes[before] == made.classes[after]
    hidden = sorted({*given.classes} - {*made.classes})
    names = [*made.classes, *hidden]
    assert [names[t] for t in true] == [given.classes[k] for k in given.labels[judged].tolist()]
    assert np.bincount(true, minlength=n_known).tolist() == [2] * made.n_known + [8] * n_hidden


def test_other_seeds_hide_other_classes() -> None:
    assert len({rehearsal(problem(7), seed)[0].classes for seed in range(6)}) > 2


@pytest.mark.parametrize(("n_known", "labelled", "enough"), [(3, 2, True), (2, 8, False), (5, 1, False)])
def test_what_is_needed(n_known: int, labelled: int, enough: bool) -> None:
    assert possible(problem(n_known, labelled)) is enough


def test_a_sample_has_the_same_share_of_each_class() -> None:
    labels = torch.tensor([0] * 40 + [1] * 80 + [2] * 6 + [-1] * 274)[torch.randperm(400)]
    problem = Problem(
        torch.arange(400, dtype=torch.uint8).view(-1, 1, 1, 1),
        labels,
        tuple(map(str, range(400))),
        (0, 1, 2),
        3,
    )
    made = sample(problem, 100, seed=0)
    rows = [int(name) for name in made.names]
    assert rows == sorted({*rows})
    assert made.labels.tolist() == [int(labels[i]) for i in rows]
    assert torch.equal(made.images[torch.arange(len(rows))], problem.images[torch.tensor(rows)])
    # A quarter, but at least four of each class.
    assert [made.labels.tolist().count(k) for k in (0, 1, 2, -1)] == [10, 20, 4, round(274 / 4)]
    assert sample(problem, 400, seed=0) is problem
    assert sample(problem, 100, seed=0).names == made.names

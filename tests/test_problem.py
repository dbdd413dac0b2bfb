"""What is given and to whom it is shown: splits, promotion, names, batches, pseudo-labels."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.data.batches import Batch, Batches, Stream
from openldn.data.problem import UNLABELLED, LabelledSet, Problem, encode
from openldn.errors import OpenLDNWarning, UserError
from openldn.pseudo import most_confident, warn_of_empty


def labelled_set(per_class: tuple[int, ...] = (30, 17, 25, 9, 12), flip: bool = True) -> LabelledSet:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(per_class)), per_class))
    images = torch.from_numpy(rng.integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8))
    classes = tuple("abcdefghij"[: len(per_class)])
    return LabelledSet("toy", images, labels, images[:10], labels[:10], classes, flip)


def problem(labels: list[int], classes: tuple[str | int, ...] = ("cat", "dog"), n_novel: int = 2) -> Problem:
    images = torch.arange(len(labels) * 64).remainder(251).to(torch.uint8).view(-1, 1, 8, 8)
    return Problem(images, torch.tensor(labels), tuple(map(str, labels)), classes, n_novel)


# ------------------------------------------------------------------------------------------ split


@pytest.mark.parametrize("share", ["0.1", "0.5", "0.07", "0.55", "0.29", "1", "0.001"])
@pytest.mark.parametrize("known", [0.4, 0.6, 0.8])
def test_split_labels_a_share_of_each_known_class(known: float, share: str) -> None:
    whole = labelled_set((100, 50, 25, 9, 12))
    given, truth = whole.split(known=known, labelled=float(share), seed=3)
    n_known = round(known * 5)
    assert given.n_known == truth.n_known == n_known
    assert given.n_novel == 5 - n_known
    assert given.classes == whole.classes[:n_known]
    labels = given.labels.numpy()
    for c in range(5):
        rows = whole.labels == c
        expected = math.ceil(Fraction(share) * int(rows.sum())) if c < n_known else 0
        assert (labels[rows] == c).sum() == expected  # as many as asked for, exactly
        assert (labels[rows] == UNLABELLED).sum() == rows.sum() - expected  # and never wrongly labelled


def test_split_is_a_partition_of_all_images() -> None:
    whole = labelled_set()
    given, truth = whole.split(known=0.6, labelled=0.5, seed=0)
    labelled, unlabelled = given.labelled.tolist(), given.unlabelled.tolist()
    assert sorted(labelled + unlabelled) == list(range(len(whole.labels)))
    assert not set(labelled) & set(unlabelled)
    assert torch.equal(given.images, whole.images)
    assert len(set(given.names)) == len(given.images)
    assert torch.equal(truth.images, whole.test_images)
    assert truth.labels.tolist() == whole.test_labels.tolist()
    assert truth.classes == whole.classes
    assert set(whole.labels[unlabelled].tolist()) == {0, 1, 2, 3, 4}


def test_split_depends_on_the_seed_alone() -> None:
    whole = labelled_set()
    drawn = [whole.split(known=0.6, labelled=0.5, seed=seed)[0].labels.tolist() for seed in range(5)]
    torch.manual_seed(99)
    again = [whole.split(known=0.6, labelled=0.5, seed=seed)[0].labels.tolist() for seed in range(5)]
    assert drawn == again
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_split_claims_as_many_novel_classes_as_told_and_passes_on_the_flip() -> None:
    given, truth = labelled_set(flip=False).split(known=0.4, labelled=0.5, seed=0, novel=7)
    assert given.n_novel == 7
    assert given.n_classes == 9
    assert truth.n_classes == 5
    assert given.flip is False
    assert labelled_set(flip=True).split(known=0.4, labelled=0.5, seed=0)[0].flip is True


@pytest.mark.parametrize(
    ("known", "labelled", "word"),
    [(0.2, 0.5, "known"), (1.0, 0.5, "known"), (0.6, 0.0, "labelled"), (0.6, 1.2, "labelled")],
)
def test_splits_that_make_no_sense_are_refused(known: float, labelled: float, word: str) -> None:
    with pytest.raises(UserError, match=f"--{word}"):
        labelled_set().split(known=known, labelled=labelled, seed=0)


# ---------------------------------------------------------------------------------------- problem


def test_promote_labels_rows_and_leaves_the_original() -> None:
    before = problem([0, 1, -1, -1, -1])
    after = before.promote(torch.tensor([4, 2]), torch.tensor([3, 2]))
    assert after.labels.tolist() == [0, 1, 2, -1, 3]
    assert after.labelled.tolist() == [0, 1, 2, 4]
    assert after.unlabelled.tolist() == [3]
    assert before.labels.tolist() == [0, 1, -1, -1, -1]
    assert (after.classes, after.n_novel, after.n_classes) == (before.classes, 2, 4)
    assert after.images is before.images


def test_promoting_nothing_changes_nothing() -> None:
    before = problem([0, 1, -1])
    nothing = torch.empty(0, dtype=torch.int64)
    assert before.promote(nothing, nothing).labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("classes", "n_novel", "expected"),
    [
        ((0, 1, 2), 2, [0, 1, 2, 3, 4]),
        ((3, 7), 3, [3, 7, 8, 9, 10]),
        (("cat", "dog"), 2, ["cat", "dog", "novel-1", "novel-2"]),
        (("cat", "novel-1"), 2, ["cat", "novel-1", "novel-2", "novel-3"]),
        (("novel-2", "novel-3"), 3, ["novel-2", "novel-3", "novel-1", "novel-4", "novel-5"]),
        ((1, "cat"), 1, [1, "cat", "novel-1"]),
        (("1", "2"), 1, ["1", "2", "novel-1"]),
        (("cat", "dog"), 0, ["cat", "dog"]),
    ],
)
def test_names_of_novel_classes(classes: tuple, n_novel: int, expected: list) -> None:
    made = problem([0, 1, -1], classes, n_novel).class_names()
    assert made == expected
    assert len(set(made)) == len(made)


def test_with_novel_changes_the_number_alone() -> None:
    before = problem([0, 1, -1, -1])
    after = before.with_novel(5)
    assert (after.n_novel, after.n_classes, before.n_novel) == (5, 7, 2)
    assert after.labels is before.labels


def test_digest_tells_problems_apart() -> None:
    first = problem([0, 1, -1, -1])
    assert first.digest() == problem([0, 1, -1, -1]).digest()
    changed = first.images.clone()
    changed[2, 0, 3, 3] += 1
    others = [
        problem([0, 1, -1, 0]),
        problem([1, 0, -1, -1]),
        problem([0, 1, -1, -1], classes=("cat", "fox")),
        Problem(changed, first.labels, first.names, first.classes, 2),
        Problem(first.images.view(4, 1, 4, 16), first.labels, first.names, first.classes, 2),
    ]
    assert len({p.digest() for p in [first, *others]}) == 6


def test_digest_does_not_see_how_images_lie_in_memory() -> None:
    first = problem([0, 1, -1, -1])
    turned = first.images.transpose(2, 3).contiguous().transpose(2, 3)
    assert not turned.is_contiguous()
    assert Problem(turned, first.labels, first.names, first.classes, 2).digest() == first.digest()


@pytest.mark.parametrize(
    ("labels", "classes", "n_novel", "words"),
    [
        ([], ("cat", "dog"), 1, "no images"),
        ([-1, -1], (), 1, "no image is labelled"),
        ([0, 1], ("cat", "dog"), 1, "every image is labelled"),
        ([0, 0, -1], ("cat",), 1, "one class"),
        ([0, 1, -1], ("cat", "dog"), 0, "number of novel classes is 0"),
        ([0, 1, -1], ("cat", "dog"), 2, "cannot be found in 1"),
    ],
)
def test_problems_nothing_can_be_learned_from_are_refused(labels, classes, n_novel, words) -> None:
    with pytest.raises(UserError, match=words):
        problem(labels, classes, n_novel).check()


def test_a_sound_problem_passes() -> None:
    sound = problem([0, 1, -1], n_novel=1)
    assert sound.check() is sound


# ----------------------------------------------------------------------------------------- encode


@pytest.mark.parametrize(
    ("labels", "ids", "classes"),
    [
        (["dog", "", "cat", None, "dog"], [1, -1, 0, -1, 1], ("cat", "dog")),
        ([10, 9, -1, 2, 10], [2, 1, -1, 0, 2], (2, 9, 10)),
        ([None, "", -1], [-1, -1, -1], ()),
        (["10", "9"], [0, 1], ("10", "9")),
        ([0, 0, 1], [0, 0, 1], (0, 1)),
        ([], [], ()),
    ],
)
def test_encode(labels: list, ids: list[int], classes: tuple) -> None:
    made, names = encode(labels)
    assert made.tolist() == ids
    assert made.dtype == torch.int64
    assert names == classes
    for label, i in zip(labels, made.tolist(), strict=True):
        assert i == UNLABELLED or names[i] == label


# ----------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(("n", "batch"), [(10, 5), (10, 3), (7, 7), (3, 8), (1, 4), (13, 1)])
def test_every_pass_covers_each_row_once(n: int, batch: int) -> None:
    """Also where a batch is longer than the pool, or ends in the middle of a pass."""
    rows = torch.arange(n) * 2 + 5
    stream = Stream(rows, batch, (1, 2))
    drawn = torch.cat([stream[i] for i in range(6 * n)]).tolist()
    passes = [drawn[k : k + n] for k in range(0, len(drawn), n)]
    assert len(passes) >= 6
    assert all(sorted(one) == rows.tolist() for one in passes)
    if n > 5:
        assert all(a != b for a, b in itertools.pairwise(passes))  # shuffled anew each time
        assert rows.tolist() not in passes


@pytest.mark.parametrize(("n", "batch"), [(10, 3), (3, 8), (7, 7)])
def test_random_access_equals_sequential(n: int, batch: int) -> None:
    sequential = Stream(torch.arange(n), batch, (4,))
    expected = [sequential[i].tolist() for i in range(20)]
    assert Stream(torch.arange(n), batch, (4,))[7].tolist() == expected[7]
    anyhow = Stream(torch.arange(n), batch, (4,))
    for i in [19, 3, 4, 0, 7, 7, 12, 2]:
        assert anyhow[i].tolist() == expected[i]
    assert [len(one) for one in expected] == [batch] * 20


def test_streams_differ_by_seed() -> None:
    seeds = [(0,), (1,), (0, 1), (1, 0, 1)]
    drawn = [tuple(Stream(torch.arange(50), 50, seed)[0].tolist()) for seed in seeds]
    assert len(set(drawn)) == len(seeds)


def test_batches_of_no_rows() -> None:
    assert Stream(torch.arange(5), 0, (0,))[3].tolist() == []
    assert Stream(torch.empty(0, dtype=torch.int64), 0, (0,))[0].dtype == torch.int64


def batches(given: Problem, seed: tuple[int, ...] = (1, 2), n_labelled: int = 4) -> Batches:
    return Batches(
        given,
        n_labelled=n_labelled,
        n_unlabelled=6,
        labelled_views=("weak",),
        unlabelled_views=("weak", "strong"),
        seed=seed,
        device=torch.device("cpu"),
    )


def equal(a: Batch, b: Batch) -> bool:
    return (
        all(torch.equal(x, y) for x, y in zip([*a.x, *a.u], [*b.x, *b.u], strict=True))
        and torch.equal(a.y, b.y)
        and torch.equal(a.rows, b.rows)
    )


def test_batches_follow_their_seed() -> None:
    """And nothing else: not torch's generator, nor which batches were asked for before."""
    given, _ = labelled_set().split(known=0.6, labelled=0.5, seed=0)
    made = batches(given)
    uninterrupted = [made[i] for i in range(12)]
    for i in (11, 3, 7):
        torch.manual_seed(i)
        assert equal(batches(given)[i], uninterrupted[i])  # as after a resumption
    assert batches(given, (1, 3))[3].rows.tolist() != uninterrupted[3].rows.tolist()


Views = dict[tuple[str, int], list[Tensor]]


def noise() -> Problem:
    """40 images, half of them labelled, of which two views are hardly ever the same by chance."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 80, 80), dtype=np.uint8)
    labels = torch.arange(40).remainder(4).where(torch.arange(40) % 4 < 2, UNLABELLED)
    return Problem(torch.from_numpy(pixels), labels, tuple(map(str, range(40))), ("a", "b"), 2)


def views_by_row(made: Batches, n: int) -> Views:
    """The views of each row in n batches, under their kind (x0, u0, u1)."""
    found: Views = {}
    for i in range(n):
        batch = made[i]
        for kind, rows, views in [("x", made._labelled[i], batch.x), ("u", batch.rows, batch.u)]:
            for k, view in enumerate(views):
                for row, image in zip(rows.tolist(), view, strict=True):
                    found.setdefault((f"{kind}{k}", row), []).append(image)
    return found


def test_a_view_is_the_same_whoever_else_is_in_the_batch() -> None:
    given = noise()
    few, many = views_by_row(batches(given, n_labelled=4), 15), views_by_row(batches(given, n_labelled=12), 5)
    for row in given.labelled.tolist():  # 20 of them, 60 drawn: three passes
        assert len(few["x0", row]) == len(many["x0", row]) == 3
        assert all(map(torch.equal, few["x0", row], many["x0", row]))


def test_views_differ_between_passes_epochs_phases_seeds_names_and_rows() -> None:
    """In all, nearly as many as were made; by chance a few weak views show the same."""
    given = noise()
    given = replace(given, images=given.images[:1].expand(40, -1, -1, -1))  # 40 times the same image
    found = [views_by_row(batches(given, seed), 10) for seed in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]]
    for kinds, n, fewest in [(("x0", "u0"), 400, 280), (("u1",), 240, 239)]:
        made = [
            view for one in found for (kind, _), several in one.items() if kind in kinds for view in several
        ]
        assert len(made) == n
        assert len({view.numpy().tobytes() for view in made}) >= fewest


def test_batches_hold_what_they_say() -> None:
    """Labels fit their images, rows are unlabelled ones, and each image comes as often as any other."""
    whole = labelled_set((8, 8, 8, 8, 8))
    grey = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    whole = LabelledSet("toy", grey, whole.labels, grey, whole.labels, whole.classes)
    given, _ = whole.split(known=0.6, labelled=0.5, seed=0)
    made = batches(given)
    seen: Counter[int] = Counter()
    for i in range(6):  # 24 labelled in all, twice the twelve there are
        batch = made[i]
        assert [x.shape for x in (*batch.x, *batch.u)] == [(4, 1, 8, 8), (6, 1, 8, 8), (6, 1, 8, 8)]
        rows = (batch.x[0][:, 0, 0, 0] * 255).round().long()  # an image of one grey stays what it is
        assert torch.equal(batch.y, given.labels[rows])
        seen.update(rows.tolist())
        assert (given.labels[batch.rows] == UNLABELLED).all()
        assert torch.equal((batch.u[0][:, 0, 0, 0] * 255).round().long(), batch.rows)
    assert seen == Counter(dict.fromkeys(given.labelled.tolist(), 2))


def test_without_unlabelled_images_all_of_them_serve() -> None:
    given = problem([0, 1, 2, 3, 0, 1])
    assert sorted(batches(given)[0].rows.tolist()) == list(range(6))


# ----------------------------------------------------------------------------------- pseudo-labels


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
        warn_of_empty(classes, 2, ["cat", "dog", "novel-1", "novel-2"])


def test_nothing_predicted_novel() -> None:
    rows, classes = most_confident(torch.eye(4)[[0, 1, 1]], 2, 5)
    assert rows.tolist() == classes.tolist() == []
    assert rows.dtype == classes.dtype == torch.int64
    with pytest.warns(OpenLDNWarning, match="no image was predicted to be novel"):
        warn_of_empty(classes, 2, ["cat", "dog", "novel-1", "novel-2"])


def test_no_warning_where_every_novel_class_has_some() -> None:
    warn_of_empty(torch.tensor([2, 3, 3]), 2, ["cat", "dog", "novel-1", "novel-2"])  # warnings are errors

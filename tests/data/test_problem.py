"""Problems: promotion, class names, digests, checks, and the encoding of labels."""

import pytest
import torch

from openldn.data.problem import UNLABELLED, Problem, encode
from openldn.errors import UserError


def problem(labels: list[int], classes: tuple[str | int, ...] = ("cat", "dog"), n_novel: int = 2) -> Problem:
    images = torch.arange(len(labels) * 64).remainder(251).to(torch.uint8).view(-1, 1, 8, 8)
    return Problem(images, torch.tensor(labels), tuple(map(str, labels)), classes, n_novel)


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


def test_class_prior_is_what_equally_large_classes_leave_unlabelled() -> None:
    """12 images, 4 classes of 3 each: 2 labelled images in the first, more than 3 in the second."""
    prior = problem([0, 0, 1, 1, 1, 1, *[-1] * 6]).class_prior()
    left = torch.tensor([1.0, 0.3, 3.0, 3.0])  # at least a tenth
    torch.testing.assert_close(prior, left / left.sum())


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
        ([0, 1], ("cat", "dog"), 1, "every image is labelled.*put some of them into the folder `unlabelled`"),
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

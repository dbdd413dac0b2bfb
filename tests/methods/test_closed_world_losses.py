"""Losses of closed-world methods, on a network whose logits are the pixels."""

import math

import pytest
import torch
import torch.nn.functional as F

import toy
from openldn.data.batches import Batch
from openldn.maths.losses import mixup
from openldn.training.stage import Objective


def objective(method: str, **settings: object) -> Objective:
    return toy.training(method, **settings).objective


def batch(x: torch.Tensor, y: torch.Tensor, *u: torch.Tensor) -> Batch:
    """Of logits (n, 3)."""
    return Batch((toy.as_images(x),), y, tuple(map(toy.as_images, u)), torch.arange(len(u[0])))


WEAK = torch.tensor([[5.0, 0.0, 0.0], [1.2, 0.0, 0.0], [0.1, 0.0, 0.0]])  # confidence .99, .62 and .37


@pytest.mark.parametrize("as_second_stage", [True, False])
def test_uda_follows_sharpened_predictions_where_they_are_confident(as_second_stage: bool) -> None:
    """OpenLDN's authors compare the threshold with the sharpened prediction, UDA's with the plain one."""
    torch.manual_seed(0)
    x, y, strong = torch.randn(1, 3), torch.tensor([1]), torch.randn(3, 3)  # one row: mixup with itself
    made = objective("openldn-uda" if as_second_stage else "uda")
    found = made.losses(toy.Echo(), toy.Echo(), batch(x, y, WEAK, strong), 0.5)  # type: ignore[arg-type]
    torch.testing.assert_close(found["labelled"], F.cross_entropy(x, y))
    total = 0.0
    for w, s in list(zip(WEAK, strong, strict=True))[: 2 if as_second_stage else 1]:
        q = [math.exp(float(v) / 0.4) for v in w]
        log_p = s.log_softmax(dim=0)
        total -= sum(a / sum(q) * float(b) for a, b in zip(q, log_p, strict=True))
    assert float(found["unlabelled"]) == pytest.approx(total / 3, rel=1e-5)


def test_fixmatch_follows_the_class_where_it_is_very_confident() -> None:
    torch.manual_seed(0)
    x, y, strong = torch.randn(2, 3), torch.tensor([1, 0]), torch.randn(3, 3)
    for threshold, taught in ((0.95, 1), (0.6, 2), (0.0, 3)):
        made = objective("fixmatch", threshold=threshold)
        found = made.losses(toy.Echo(), toy.Echo(), batch(x, y, WEAK, strong), 0.5)  # type: ignore[arg-type]
        torch.testing.assert_close(found["labelled"], F.cross_entropy(x, y))
        expected = -float(strong.log_softmax(dim=1)[:taught, 0].sum()) / 3
        assert float(found["unlabelled"]) == pytest.approx(expected, rel=1e-5)


def test_mean_teacher_agrees_with_the_average_on_the_other_view() -> None:
    torch.manual_seed(0)
    x, y, u1, u2 = torch.randn(2, 3), torch.tensor([1, 0]), torch.randn(4, 3), torch.randn(4, 3)

    class Teacher(toy.Echo):
        def __call__(self, x: torch.Tensor):
            return super().__call__(2 * x)

    made = objective("mean-teacher", consistency=7.0, ramp_until=0.4)
    for progress, ramp in ((0.0, 0.0), (0.1, 0.25), (0.4, 1.0), (1.0, 1.0)):
        found = made.losses(toy.Echo(), Teacher(), batch(x, y, u1, u2), progress)  # type: ignore[arg-type]
        torch.testing.assert_close(found["labelled"], F.cross_entropy(x, y))
        squares = [
            (a - b) ** 2
            for student, teacher in zip(u1.softmax(1).tolist(), (2 * u2).softmax(1).tolist(), strict=True)
            for a, b in zip(student, teacher, strict=True)
        ]
        expected = 7 * ramp * sum(squares) / len(squares)
        assert float(found["unlabelled"]) == pytest.approx(expected, rel=1e-5)


def test_mixmatch_learns_sharpened_guesses_by_both_views() -> None:
    """One image of each kind; which rows are mixed, and by how much, is drawn again here."""
    x, u1, u2 = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0], [0.0, 2.0, 0.0]])[:, None]
    made = objective("mixmatch", unlabelled_weight=8.0)
    torch.manual_seed(0)
    found = made.losses(toy.Echo(), toy.Echo(), batch(x, torch.tensor([1]), u1, u2), 0.5)  # type: ignore[arg-type]
    guess = (u1[0].softmax(dim=0) + u2[0].softmax(dim=0)) / 2
    q = guess**2 / (guess**2).sum()
    torch.manual_seed(0)
    rows, targets = mixup(0.75, torch.cat([x, u1, u2]), torch.stack([torch.eye(3)[1], q, q]))
    torch.testing.assert_close(found["labelled"], -(targets[0] * rows[0].log_softmax(dim=0)).sum())
    error = sum((rows[i].softmax(dim=0) - targets[i]).square().sum() / 6 for i in (1, 2))
    torch.testing.assert_close(found["unlabelled"], 8.0 * 0.5 * torch.as_tensor(error))

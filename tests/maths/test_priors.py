"""Class priors, and predictions corrected to follow them."""

import math

import pytest
import torch
import torch.nn.functional as F

from openldn.data.problem import Problem
from openldn.maths import losses
from openldn.maths.priors import (
    DistributionAlignment,
    SinkhornQueue,
    leaning,
    prior_correction,
    uniform_correction,
)


def test_the_prior_is_what_labels_leave_of_equal_classes() -> None:
    """A hundred images of four classes, so 25 each: 10 and 24 of the known ones are labelled."""
    labels = torch.tensor([0] * 10 + [1] * 24 + [-1] * 66)
    images = torch.zeros(100, 1, 8, 8, dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(100))), (0, 1), n_novel=2)
    left = torch.tensor([15, 2.5, 25, 25])  # the second would have one; a tenth of 25 is the least
    assert torch.allclose(problem.class_prior(), left / left.sum())


def test_aligned_predictions_follow_the_prior() -> None:
    """Against Sinkhorn's algorithm on the matrix of probabilities, by loops."""
    torch.manual_seed(0)
    wanted = torch.tensor([0.5, 0.3, 0.2])
    logits = 2 * torch.randn(40, 3) + torch.tensor([3.0, 0, 0])
    found = DistributionAlignment(wanted)(logits, rounds=200).softmax(dim=1)
    q = logits.softmax(dim=1).tolist()
    for _ in range(200):
        for k in range(3):
            total = sum(row[k] for row in q)
            for row in q:
                row[k] *= 40 * float(wanted[k]) / total
        for row in q:
            row[:] = [value / sum(row) for value in row]
    assert torch.allclose(found.mean(dim=0), wanted, atol=1e-4)
    assert torch.allclose(found, torch.tensor(q), atol=1e-3)


@pytest.mark.parametrize("prior", [[0.25, 0.25, 0.5], [0.05, 0.05, 0.9]])
def test_corrections_to_a_prior_and_to_a_uniform_one(prior: list[float]) -> None:
    """The first gives the mean prediction the prior; the second undoes the prior, whatever the bias."""
    torch.manual_seed(0)
    wanted = torch.tensor(prior)
    log_p = (2 * torch.randn(60, 3) + torch.tensor([2.0, 0.0, -1.0])).log_softmax(dim=1)
    b = prior_correction(log_p, wanted, rounds=200)
    total = [0.0] * 3
    for row in log_p.tolist():
        raised = [math.exp(value + shift) for value, shift in zip(row, b.tolist(), strict=True)]
        total = [t + value / sum(raised) / 60 for t, value in zip(total, raised, strict=True)]
    assert total == pytest.approx(prior, abs=1e-4)
    assert torch.equal(prior_correction(log_p, wanted, rounds=0), torch.zeros(3))
    uniform = uniform_correction(log_p, wanted)
    weighed = (log_p + uniform).softmax(dim=1) * wanted  # under the prior again
    torch.testing.assert_close((weighed / weighed.sum(1, keepdim=True)).mean(0), wanted, atol=1e-3, rtol=0)


def test_leaning_is_from_nothing_to_the_prior() -> None:
    torch.manual_seed(0)
    wanted = torch.tensor([0.6, 0.3, 0.1])
    log_p = (2 * torch.randn(60, 3) + torch.tensor([0.0, 1.0, 2.0])).log_softmax(dim=1)
    start = torch.tensor([1.0, -2.0, 1.0])
    assert torch.equal(leaning(log_p, wanted, 0.0, start), torch.zeros(3))
    whole = prior_correction(log_p, wanted, rounds=300)
    torch.testing.assert_close(
        leaning(log_p, wanted, 1.0, start, rounds=300), whole - whole.mean(), atol=1e-4, rtol=0
    )
    once = leaning(log_p, wanted, 1.0, start, rounds=30)
    assert torch.equal(leaning(log_p, wanted, 1.0, leaning(log_p, wanted, 1.0, start, rounds=20)), once)
    shares = []
    for balance in (0.0, 0.3, 0.8, 1.0):
        b = leaning(log_p, wanted, balance, start, rounds=300)
        share = (log_p + b).softmax(dim=1).mean(dim=0)
        shares.append(float((share - wanted).abs().sum()))
        if balance:  # unbalanced transport: what is added pays for the distance from the prior
            penalty = (1 / balance - 1) * b + share.log() - wanted.log()
            torch.testing.assert_close(penalty, penalty.mean().expand(3), atol=1e-4, rtol=0)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1e-4 < 0.1 < shares[0]


def test_alignment_is_over_recent_predictions() -> None:
    """A batch of one class stays mostly that class once enough others were seen; old ones are forgotten."""
    torch.manual_seed(0)
    align = DistributionAlignment(torch.tensor([0.5, 0.5]), length=300)
    confident = torch.tensor([[4.0, 0.0]]).expand(10, 2)
    alone = align(confident).softmax(dim=1)
    assert torch.allclose(alone.mean(dim=0), torch.tensor([0.5, 0.5]), atol=1e-3)
    for _ in range(40):
        align(torch.cat([confident, confident.flip(1)]))
    assert len(align.recent) == 300
    assert (align(confident).softmax(dim=1)[:, 0] > 0.9).all()


@pytest.mark.parametrize(("rows", "classes"), [(75, 10), (75, 100), (192, 200)])
def test_a_queue_makes_up_for_small_batches(rows: int, classes: int) -> None:
    """A network that is right about each image gets soft labels that are nearly one-hot, after some steps."""
    torch.manual_seed(0)
    sinkhorn = SinkhornQueue(classes)
    for _ in range(12):
        y = torch.randint(classes, (rows,))
        scores = 0.8 * F.one_hot(y, classes) + 0.1 * torch.randn(rows, classes)
        labels = sinkhorn(scores)
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(rows))
    right = float(labels[torch.arange(rows), y].mean())
    assert right > 0.9
    if rows < classes:
        assert float(losses.sinkhorn(scores)[torch.arange(rows), y].mean()) < 0.7


def test_the_queue_is_bounded_and_its_state_can_be_restored() -> None:
    torch.manual_seed(0)
    one, other = SinkhornQueue(5), SinkhornQueue(5)
    for _ in range(10):
        one(torch.randn(4, 5))
    other.load_state_dict(one.state_dict())
    scores, recent = torch.randn(4, 5), one.recent.clone()
    assert torch.equal(one(scores), other(scores))
    assert torch.equal(one.recent, torch.cat([scores, recent[:-4]]))
    many = torch.randn(15, 5)
    assert torch.equal(one(many), losses.sinkhorn(many))  # a large batch needs no queue

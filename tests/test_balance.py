"""Shares of classes, and predictions moved towards them."""

import pytest
import torch
import torch.nn.functional as F

from openldn import losses
from openldn.balance import Balance, Sinkhorn, shares
from openldn.data.problem import Problem
from openldn.nets.classifier import Outputs
from openldn.predictors import Balanced


def test_shares_are_what_labels_leave() -> None:
    """A hundred images of four classes, so 25 each: 10 and 24 of the known ones are labelled."""
    labels = torch.tensor([0] * 10 + [1] * 24 + [-1] * 66)
    images = torch.zeros(100, 1, 8, 8, dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(100))), (0, 1), n_novel=2)
    left = torch.tensor([15, 2.5, 25, 25])  # the second would have one; a tenth of 25 is the least
    assert torch.allclose(shares(problem), left / left.sum())


def test_every_class_gets_its_share() -> None:
    """Against Sinkhorn's algorithm on the matrix of probabilities, by loops."""
    torch.manual_seed(0)
    wanted = torch.tensor([0.5, 0.3, 0.2])
    logits = 2 * torch.randn(40, 3) + torch.tensor([3.0, 0, 0])
    found = Balance(wanted)(logits, rounds=200).softmax(dim=1)
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


def test_shares_hold_over_what_was_said_lately() -> None:
    """A batch of one class alone stays mostly that class, once enough others have been seen; old ones go."""
    torch.manual_seed(0)
    balance = Balance(torch.tensor([0.5, 0.5]), length=300)
    sure = torch.tensor([[4.0, 0.0]]).expand(10, 2)
    alone = balance(sure).softmax(dim=1)
    assert torch.allclose(alone.mean(dim=0), torch.tensor([0.5, 0.5]), atol=1e-3)
    for _ in range(40):
        balance(torch.cat([sure, sure.flip(1)]))
    assert len(balance.recent) == 300
    assert (balance(sure).softmax(dim=1)[:, 0] > 0.9).all()


def test_balanced_predictions_hold_where_classes_are_equally_frequent() -> None:
    """Weighed by its share again, each class has that share of the unlabelled images; by loops.

    And what the network was biased towards does not matter.
    """
    torch.manual_seed(0)
    labels = torch.tensor([0] * 40 + [1] * 20 + [-1] * 140)  # 50 each: 10, 30, 50 and 50 are left
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(200))), (0, 1), n_novel=2)
    logits = 2 * torch.randn(140, 4)
    biased = logits + torch.tensor([3.0, 0.0, -2.0, 1.0])
    predictor, other = Balanced(), Balanced()
    predictor.fit(lambda images: Outputs(logits, logits), problem, seed=0)
    other.fit(lambda images: Outputs(biased, biased), problem, seed=0)
    p = predictor.probabilities(Outputs(logits, logits))
    wanted, found = [10 / 140, 30 / 140, 50 / 140, 50 / 140], [0.0] * 4
    for row in p.tolist():
        weighed = [value * share for value, share in zip(row, wanted, strict=True)]
        found = [total + value / sum(weighed) / 140 for total, value in zip(found, weighed, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-4)
    assert torch.allclose(p, other.probabilities(Outputs(biased, biased)), atol=1e-4)
    assert predictor.fits(predictor.state, n_outputs=4, n_known=2, n_novel=2)
    assert not predictor.fits({"shift": torch.zeros(5)}, n_outputs=4, n_known=2, n_novel=2)


@pytest.mark.parametrize(("rows", "classes"), [(75, 10), (75, 100), (192, 200)])
def test_labels_of_few_rows_are_as_good_as_those_of_many(rows: int, classes: int) -> None:
    """Of a network that knows each image, nearly all of a label is on its class, after some steps."""
    torch.manual_seed(0)
    sinkhorn = Sinkhorn(classes)
    for _ in range(12):
        y = torch.randint(classes, (rows,))
        scores = 0.8 * F.one_hot(y, classes) + 0.1 * torch.randn(rows, classes)
        labels = sinkhorn(scores)
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(rows))
    right = float(labels[torch.arange(rows), y].mean())
    assert right > 0.9
    if rows < classes:
        assert float(losses.sinkhorn(scores)[torch.arange(rows), y].mean()) < 0.7


def test_recent_rows_are_forgotten_and_come_back() -> None:
    torch.manual_seed(0)
    one, other = Sinkhorn(5), Sinkhorn(5)
    for _ in range(10):
        one(torch.randn(4, 5))
    other.load_state_dict(one.state_dict())
    scores, recent = torch.randn(4, 5), one.recent.clone()
    assert torch.equal(one(scores), other(scores))
    assert torch.equal(one.recent, torch.cat([scores, recent[:-4]]))
    many = torch.randn(15, 5)
    assert torch.equal(one(many), losses.sinkhorn(many))  # enough of them by themselves

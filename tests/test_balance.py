"""Shares of classes, and predictions moved towards them."""

import torch

from openldn.balance import Balance, shares
from openldn.data.problem import Problem


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

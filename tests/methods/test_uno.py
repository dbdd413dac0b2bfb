"""UNO: swapped pseudo-labels, several heads."""

import torch

import toy
from openldn.maths.losses import sinkhorn
from openldn.methods.uno import MultiHead, swapped_loss


def test_swapped_targets_come_from_labels_and_from_the_other_view() -> None:
    torch.manual_seed(0)
    logits, other, y = torch.randn(6, 3), torch.randn(6, 3), torch.tensor([2, 0])
    targets = torch.cat([torch.eye(3)[y], sinkhorn(0.1 * other[2:])])
    expected = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(swapped_loss(logits, other, y, sinkhorn), expected)
    other.requires_grad_()
    assert not swapped_loss(logits, other, y, sinkhorn).requires_grad  # targets are constants


def test_the_best_head_is_the_one_of_least_recent_loss_and_it_counts() -> None:
    training = toy.training("uno")
    network, objective = training.network, training.objective
    head = network.head
    assert isinstance(head, MultiHead)
    seen = toy.batch(training)
    objective.losses(network, network, seen, 0.0)
    assert int(head.best) == int(objective.running.argmin())  # type: ignore[union-attr, operator]
    z = torch.randn(5, head.in_features)
    network.eval()
    for best in range(4):
        head.best.fill_(best)
        expected = torch.cat([head.known(z), head.novel[best](z)], dim=1)
        assert torch.equal(head(z), expected)
    with torch.no_grad():  # a head that loses by far is never the best
        objective.running.copy_(torch.tensor([9.0, 9.0, -9.0, 9.0]))  # type: ignore[union-attr, operator]
    network.train()
    objective.losses(network, network, seen, 0.5)
    assert int(head.best) == 2

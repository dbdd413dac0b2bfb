"""ORCA: the margin, the partners, the uncertainty."""

import pytest
import torch
import torch.nn.functional as F

import toy
from openldn.methods.orca import ORCA, margin_loss, partners
from openldn.nets.classifier import infer


def test_the_margin_asks_less_of_an_uncertain_network() -> None:
    """It is added to the true logit, not subtracted."""
    torch.manual_seed(0)
    logits, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    losses = [float(margin_loss(logits, y, torch.tensor(u))) for u in (0.0, 0.1, 0.5)]
    assert losses[0] > losses[1] > losses[2]
    by_hand = logits.clone()
    by_hand[torch.arange(6), y] += 10 * 0.1
    assert losses[1] == pytest.approx(float(F.cross_entropy(by_hand, y)))


def test_partners_are_of_the_class_or_nearest() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [1.0, 0.05], [0.1, 1.0]])
    y = torch.tensor([0, 1, 0])
    for seed in range(5):
        torch.manual_seed(seed)
        m = partners(z, y).tolist()
        assert m[0] == 2
        assert m[2] == 0
        assert m[1] == 1  # alone in its class
        assert m[3] == 0  # a labelled image may be the nearest
        assert m[4] == 1


def test_uncertainty_is_measured_on_unlabelled_images_and_is_at_most_a_half() -> None:
    training = toy.training("orca", batch=40)
    objective, network, problem = training.objective, training.network, training.problem
    assert isinstance(objective, ORCA)
    images = problem.images[problem.unlabelled]
    with torch.no_grad():  # all images are near the first prototype
        network.head.weight[0] = infer(network, images).z.mean(dim=0)  # type: ignore[union-attr, index, operator]
    training.begin(None)  # the first measurement
    p = infer(network, images).logits.softmax(dim=1)
    expected = 1 - sum(max(row) for row in p.tolist()) / len(p)
    assert 0 < expected < 0.5
    assert objective.diagnostics()["uncertainty"] == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():
        network.head.weight.fill_(1.0)  # type: ignore[union-attr, operator]
    objective.refresh(network, 0.5)
    assert objective.diagnostics()["uncertainty"] == 0.5  # of six equal classes it would be 5/6

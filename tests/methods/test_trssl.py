"""TRSSL: hardened pseudo-labels, mixup, temperatures."""

import torch

import toy
from openldn.data.batches import Batch
from openldn.maths.losses import mixup, sinkhorn
from openldn.methods.trssl import TRSSL, hardened


def test_only_confident_novel_targets_are_hardened() -> None:
    targets = torch.tensor([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    expected = torch.tensor([[0.0, 0.0, 1.0], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    assert torch.equal(hardened(targets, n_known=1), expected)


def test_trssl_mixes_images_targets_and_temperatures_alike() -> None:
    training = toy.training("trssl", batch=40)
    objective, problem, l = training.objective, training.problem, 2  # noqa: E741
    assert isinstance(objective, TRSSL)
    torch.manual_seed(0)
    x, u1, u2 = torch.randn(l, 6), torch.randn(20, 6), torch.randn(20, 6)
    rows = problem.unlabelled[:20]
    objective.temperatures[rows] = torch.linspace(0.1, 1.0, 20)
    x_, u1_, u2_ = map(toy.as_images, (x, u1, u2))
    batch = Batch((x_,), torch.tensor([0, 2]), (u1_, u2_), rows)
    torch.manual_seed(3)
    found = objective.losses(toy.Echo(), toy.Echo(), batch, 0.5)  # type: ignore[arg-type]
    torch.manual_seed(3)
    # A cosine head's logits are cosines over 0.1: Sinkhorn sees cosines, and each view learns the other's.
    t1, t2 = hardened(sinkhorn(0.1 * u2), 3), hardened(sinkhorn(0.1 * u1), 3)
    own = objective.temperatures[rows]
    images, targets, temperatures = mixup(
        0.75,
        torch.cat([x, u1, u2]),
        torch.cat([torch.eye(6)[[0, 2]], t1, t2]),
        torch.cat([torch.full((l,), 0.1), own, own]),
        own=False,
    )
    each = -(targets * (0.1 * images / temperatures[:, None]).log_softmax(dim=1)).sum(dim=1)
    torch.testing.assert_close(found["labelled"], each[:l].sum() / 42)
    torch.testing.assert_close(found["unlabelled"], each[l:].sum() / 42)


def test_temperatures_follow_uncertainty() -> None:
    training = toy.training("trssl", batch=40)
    objective, problem = training.objective, training.problem
    assert isinstance(objective, TRSSL)
    training.begin(None)
    assert (objective.temperatures == 0.1).all()
    objective.refresh(training.model, 0.5)
    unlabelled = objective.temperatures[problem.unlabelled]
    assert unlabelled.max() == 1  # of the least certain
    assert unlabelled.min() >= 0.1
    assert unlabelled.std() > 0
    assert (objective.temperatures[problem.labelled] == 0.1).all()

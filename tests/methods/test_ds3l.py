"""DS3L: weights of unlabelled images; `training/test_bilevel_step.py` has their exact gradient."""

import torch
from torch import nn

import toy
from openldn.methods.ds3l import DS3L, Weighted, predictions, weight_score, weighted_mean
from openldn.nets.classifier import Outputs


def test_weights_depend_on_confidence_not_on_the_class() -> None:
    torch.manual_seed(0)
    head = Weighted(5, n_outputs=4, n_known=3)
    p = torch.rand(6, 3).softmax(dim=1)
    assert head.weight_logit(p).std() < 1e-6  # at the start all are equal
    nn.init.normal_(head.weigh[-1].weight)  # type: ignore[arg-type]
    torch.testing.assert_close(head.weight_logit(p[:, [2, 0, 1]]), head.weight_logit(p))
    assert head.weight_logit(p).std() > 1e-3


def test_the_last_output_is_the_weight() -> None:
    torch.manual_seed(0)
    head, z = Weighted(5, n_outputs=4, n_known=3), torch.randn(6, 5)
    nn.init.normal_(head.weigh[-1].weight)  # type: ignore[arg-type]
    logits = head(z)
    torch.testing.assert_close(logits[:, -1:], head.weight_logit(logits[:, :-1].softmax(dim=1)))
    assert torch.equal(weight_score(Outputs(z, logits), {}), logits[:, -1])


def test_differences_of_views_and_their_weighted_mean_against_a_loop() -> None:
    torch.manual_seed(0)
    logits, w = torch.randn(8, 3, requires_grad=True), torch.randn(4)
    p, difference = predictions(logits, 4)
    total, weights = 0.0, 0.0
    for j in range(4):
        one, other = logits[j].softmax(dim=0), logits[4 + j].softmax(dim=0)
        each = float(((one - other) ** 2).detach().mean())
        total, weights = total + float(w[j].sigmoid()) * each, weights + float(w[j].sigmoid())
        torch.testing.assert_close(p[j], one)
        torch.testing.assert_close(difference[j].item(), each)
    torch.testing.assert_close(weighted_mean(w, difference).item(), total / weights)
    torch.testing.assert_close(weighted_mean(w[:, None], difference).item(), total / weights)
    (slope,) = torch.autograd.grad(difference.sum(), logits)
    assert float(slope[:4].abs().max()) == 0  # the first prediction is a constant target
    assert float(slope[4:].abs().max()) > 0


def test_the_weight_network_is_left_to_its_own_optimiser() -> None:
    """Between its updates nothing moves it, not even the network's optimiser, which holds it too."""
    training = toy.training("ds3l", omega_every=10**9)
    head, objective = training.network.head, training.objective
    assert isinstance(head, Weighted)
    assert isinstance(objective, DS3L)
    seen, moved = toy.batch(training), []
    for _ in range(2):
        before = [p.clone() for p in head.weigh.parameters()]
        losses = objective.losses(training.network, training.network, seen, 0.5)
        training.optimiser.zero_grad()
        torch.stack([*losses.values()]).sum().backward()
        training.optimiser.step(0.1)
        pairs = zip(before, head.weigh.parameters(), strict=True)
        moved.append(any(not torch.equal(a, b) for a, b in pairs))
    assert moved == [True, False]  # the first step is one of its updates


def test_the_update_of_weights_comes_back_with_the_state() -> None:
    other = toy.training("ds3l").objective
    assert isinstance(other, DS3L)
    training = toy.training("ds3l")
    training.objective.losses(training.network, training.network, toy.batch(training), 0.5)
    other.load_state_dict(training.objective.state_dict())
    assert other.n_steps == 1
    assert other.outer.optimiser.steps == 1
    assert any(float(m.abs().max()) > 0 for m in other.outer.optimiser.m)

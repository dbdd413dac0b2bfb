"""Stage 1 of OpenLDN: pair targets, what is logged, and what a step costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import toy
from openldn.methods.openldn import Discover
from openldn.nets.cost import Passes
from openldn.training.loop import Training


def discover(training: Training) -> Discover:
    assert isinstance(training.objective, Discover)
    return training.objective


def test_pair_targets_against_loops_over_pairs() -> None:
    objective = discover(toy.training("openldn"))
    torch.manual_seed(0)
    z, p, y = torch.randn(7, 5), (3 * torch.randn(7, 6)).softmax(dim=1), torch.tensor([0, 1, 0])

    def cos(a: Tensor, b: Tensor) -> float:
        return float(a @ b / a.norm() / b.norm())

    pairs = [(cos(p[i], p[j]), cos(z[i], z[j])) for i in range(7) for j in range(7)]

    def cross_entropy(predicted: float, same: bool) -> float:
        predicted = min(max(predicted, 1e-6), 1 - 1e-6)
        return -math.log(predicted if same else 1 - predicted)

    def agreement(i: int) -> float:
        others = [j for j in range(7) if j != i and (i >= 3 or (j < 3 and y[i] == y[j]))] or [i]
        return -math.log(float(p[i] @ p[max(others, key=lambda j: cos(z[i], z[j]))]))

    expected = {
        "apart": np.mean([predicted**2 for predicted, _ in pairs]),
        "soft-cosine": np.mean([(predicted - max(like, 0)) ** 2 for predicted, like in pairs]),
        "hard-cosine": np.mean([cross_entropy(predicted, like > 0.2) for predicted, like in pairs]),
        "nearest": np.mean([agreement(i) for i in range(7)]),
    }
    for target, loss in expected.items():
        objective.settings = replace(objective.settings, target=target, cosine_threshold=0.2)
        assert float(objective.pair(z, p, y, False)) == pytest.approx(float(loss), rel=1e-4), target


def test_the_learned_target_is_the_similarity_networks() -> None:
    """Detached features get no gradient through it, attached ones do."""
    training = toy.training("openldn")
    objective, seen = discover(training), toy.batch(training)
    z, logits = training.network(torch.cat([*seen.x, *seen.u[:1]]))
    n, p = len(z), logits.softmax(dim=1).detach()
    s, total = objective.outer.omega(z).detach(), 0.0
    for i in range(n):
        for j in range(n):
            total += float(p[i] @ p[j] / p[i].norm() / p[j].norm() - s[i, j]) ** 2
    attached = objective.pair(z, p, seen.y, attach=True)
    assert attached.item() == pytest.approx(total / n**2, rel=1e-4)
    assert float(torch.autograd.grad(attached, z, retain_graph=True)[0].norm()) > 0
    detached = objective.pair(z, p, seen.y, attach=False)
    assert not detached.requires_grad
    assert detached.item() == pytest.approx(attached.item())


@pytest.mark.parametrize("attach", [True, False])
def test_cosine_targets_reach_the_features_only_if_attached(attach: bool) -> None:
    objective = discover(toy.training("openldn", target="soft-cosine"))
    z, p = torch.randn(7, 5, requires_grad=True), torch.randn(7, 6).softmax(dim=1)
    assert objective.pair(z, p, torch.tensor([0, 1, 0]), attach).requires_grad is attach


@pytest.mark.parametrize(
    ("switch", "gone"), [({"pair": False}, {"pair"}), ({"entropy": False}, {"entropy"}), ({}, set())]
)
def test_terms_can_be_switched_off(switch: dict[str, bool], gone: set[str]) -> None:
    training = toy.training("openldn", **switch)
    losses = discover(training).losses(training.network, training.network, toy.batch(training), 0.0)
    assert losses.keys() == {"ce", "pseudo", "pair", "entropy"} - gone
    assert discover(training).bilevel is ("pair" not in gone)


@pytest.mark.parametrize(
    ("target", "pair", "improved"),
    [("learned", True, True), ("learned", False, False), ("apart", True, False)],
)
def test_the_similarity_network_learns_only_where_it_is_used(target: str, pair: bool, improved: bool) -> None:
    training = toy.training("openldn", target=target, pair=pair, order="omega-first")
    objective = discover(training)
    before = [p.clone() for p in objective.outer.omega.parameters()]
    objective.losses(training.network, training.network, toy.batch(training), 0.0)
    changed = [not torch.equal(a, b) for a, b in zip(before, objective.outer.omega.parameters(), strict=True)]
    assert any(changed) is improved
    assert ("omega_gradient" in objective.diagnostics()) is improved


def test_a_collapsed_similarity_network_is_visible_in_diagnostics() -> None:
    training = toy.training("openldn")
    objective, seen = discover(training), toy.batch(training)
    objective.losses(training.network, training.network, seen, 0.0)
    assert objective.diagnostics()["similarity_spread"] > 1e-4
    with torch.no_grad():
        for w in objective.outer.omega.parameters():
            w.zero_()
    objective.losses(training.network, training.network, seen, 0.1)  # a step at which Ω is not updated
    logged = objective.diagnostics()
    assert logged["similarity_spread"] < 1e-6
    assert logged["similarity_mean"] == pytest.approx(0.5)
    assert logged["similarity_auc"] == 0.5


def test_the_share_of_pseudo_labels_is_logged() -> None:
    for tau, share in ((0.0, 1.0), (1.0, 0.0)):
        training = toy.training("openldn", tau=tau)
        losses = discover(training).losses(training.network, training.network, toy.batch(training), 0.0)
        assert discover(training).diagnostics()["pseudo_labelled"] == share
        assert (losses["pseudo"].item() > 0) is bool(share)


@pytest.mark.parametrize("rows", ["all", "few"])
@pytest.mark.parametrize("order", ["omega-first", "theta-first"])
def test_passes_of_a_step(rows: str, order: str) -> None:
    """Forward 1, backward 2; along a direction 2 more than forward. Ω is updated at every fourth step."""
    training = toy.training("openldn", omega_rows=rows, order=order)
    seen, (l, u, _) = toy.batch(training), training.composition  # noqa: E741
    costs = []
    for step in range(5):
        with Passes() as passes:
            losses = training.objective.losses(training.network, training.network, seen, step / 10)
            torch.stack([*losses.values()]).sum().backward()
            training.objective.after_step(training.network, seen, step / 10)
        costs.append(passes.total)
    learned = l + 2 * u
    judged, along = (learned, learned) if rows == "all" else (l, l + min(l, u))
    update = 3 * (judged + along) + (2 * learned if order == "omega-first" else 0)  # a virtual step, too
    assert costs == [3 * learned + update, *[3 * learned] * 3, 3 * learned + update]

"""Steps against torch's own Adam, and against singular values found the plain way."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from openldn.training.optimisers import SGD, Adam, Muon, discriminative_rates, optimiser, orthogonalised


def test_adam_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.zeros(5))] for _ in range(2))
    one, two = Adam(ours), torch.optim.Adam(theirs)
    for step in range(20):
        lr = 0.1 / (step + 1)
        two.param_groups[0]["lr"] = lr
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step(lr)
        two.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adam_with_rates_is_torchs_with_parameter_groups() -> None:
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(4, 3)) for _ in range(4)] for _ in range(2))
    ours[1].requires_grad_(False)
    rates = [1.0, 5.0, 0.1, 0.02]
    one = Adam(ours, rates)
    two = torch.optim.Adam([{"params": [p]} for p in theirs])
    for step in range(20):
        lr = 0.1 / (step + 1)
        for group, rate in zip(two.param_groups, rates, strict=True):
            group["lr"] = rate * lr
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if k != 1 and (k, step) != (2, 0):  # one is frozen, another has no gradient at first
                a.grad = torch.randn_like(a)
                b.grad = a.grad.clone()
        one.step(lr)
        two.step()
    assert bool((ours[1] == 1).all())
    for k in (0, 3):  # torch counts the steps of each parameter on its own
        torch.testing.assert_close(ours[k], theirs[k], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ours[0], ours[3], atol=1e-2)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_torchs(nesterov: bool) -> None:
    """With an L2 penalty of matrices alone, and a rate of its own for one of them."""
    torch.manual_seed(0)
    ours, theirs = (
        [nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(2, 2))]
        for _ in range(2)
    )
    one = SGD(ours, [1.0, 1.0, 0.5], l2=0.1, nesterov=nesterov)
    groups = [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in theirs]
    two = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=nesterov)
    for step in range(20):
        lr = 0.1 / (step + 1)
        for group, rate in zip(two.param_groups, one.rates, strict=True):
            group["lr"] = rate * lr
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        if step == 10:  # a copy goes on in the same way
            state = copy.deepcopy(one.state_dict())
            one = SGD(ours, [1.0, 1.0, 0.5], l2=0.1, nesterov=nesterov)
            one.load_state_dict(state)
        one.step(lr)
        two.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    one.zero_grad()
    before = ours[0].clone()
    one.step(1.0)  # no gradients
    assert torch.equal(ours[0], before)


def test_early_layers_learn_slower() -> None:
    """Geometrically, from the first parameter to the last; those of the head at the full rate."""
    body, head = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(5))), nn.Linear(2, 2)
    slower = discriminative_rates(body, last=0.2, first=0.02)
    rates = [slower[p] for p in body.parameters()]
    assert rates[0] == pytest.approx(0.02)
    assert rates[-1] == pytest.approx(0.2)
    assert [b / a for a, b in pairwise(rates)] == pytest.approx([10**0.25] * 4)
    made = optimiser("adam", nn.ModuleList([body, head]), slower)
    assert isinstance(made, Adam)
    assert made.rates == [*rates, 1.0, 1.0]


def test_parameters_without_gradient_or_frozen_stay() -> None:
    free, frozen, unused = (nn.Parameter(torch.ones(2), requires_grad=k != 1) for k in range(3))
    optimiser = Adam([free, frozen, unused])
    free.grad = torch.ones(2)
    optimiser.step(0.1)
    assert bool((free < 1).all())
    assert bool((frozen == 1).all())
    assert bool((unused == 1).all())
    optimiser.zero_grad()
    assert free.grad is None
    optimiser.step(0.1)  # nothing to do is no error


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (6, 6), (1, 9)])
def test_orthogonalised_keeps_singular_vectors_and_evens_out_singular_values(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(1)
    u, s, vt = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    s = torch.linspace(1, 0.2, len(s), dtype=torch.float64)
    made = orthogonalised(u @ torch.diag(s) @ vt, steps=5)
    sizes = u.T @ made @ vt.T  # diagonal, if the directions are the same
    torch.testing.assert_close(sizes, torch.diag(sizes.diagonal()), rtol=0, atol=1e-9)
    assert bool(((sizes.diagonal() > 0.6) & (sizes.diagonal() < 1.3)).all())
    assert not orthogonalised(torch.zeros(shape)).isnan().any()


def test_muon_scales_filter_banks_and_leaves_other_parameters_to_adam() -> None:
    torch.manual_seed(2)
    made = nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 3))
    frozen = nn.Conv2d(3, 2, 1).requires_grad_(False)
    network = nn.Sequential(frozen, *made)
    optimiser = Muon(network)
    assert [w.shape for w in optimiser.filters] == [(8, 2, 3, 3)]
    assert [p.ndim for p in optimiser.adam.params] == [1, 1, 2, 1]
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    network(torch.randn(4, 3, 4, 4)).square().sum().backward()
    grad = network[1].weight.grad.clone()
    optimiser.step(0.001)
    w = before["1.weight"]
    expected = w * (8**0.5 / w.norm()) - 0.06 * orthogonalised(1.6 * grad.flatten(1)).view_as(w)
    torch.testing.assert_close(network[1].weight, expected)
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("0."), name


def test_muon_follows_momentum() -> None:
    network = nn.Conv2d(1, 2, 2, bias=False)
    optimiser = Muon(network, momentum=0.5)
    for grad in (torch.full((2, 1, 2, 2), 1.0), torch.full((2, 1, 2, 2), 3.0)):
        network.weight.grad = grad
        optimiser.step(0.0)
    assert bool((optimiser.b[0] == 3.5).all())


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_an_optimiser_goes_on_from_its_state(name: str) -> None:
    """Three steps, and one more by another optimiser that got its state, are four steps."""

    def steps(network: nn.Module, made: Adam | Muon, numbers: range) -> None:
        for k in numbers:
            made.zero_grad()
            network(torch.full((2, 1, 4, 4), float(k + 1))).square().sum().backward()
            made.step(0.01)

    torch.manual_seed(3)
    first = nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 2))
    second = copy.deepcopy(first)
    whole = optimiser(name, first)
    steps(first, whole, range(4))
    part = optimiser(name, second)
    steps(second, part, range(3))
    other = optimiser(name, second)
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    steps(second, other, range(3, 4))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert isinstance(whole, Muon if name == "muon" else Adam)

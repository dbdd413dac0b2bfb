"""The moving average of a network against a loop."""

import pytest
import torch
from torch import Tensor, nn

import toy
from openldn.nets.classifier import Classifier
from openldn.training.moving_average import MovingAverage


def tiny() -> Classifier:
    """A small network with BatchNorm, whose running statistics have already moved."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    network = toy.classifier(nn.Sequential(*layers, nn.Flatten()), 3, channels=2)
    for _ in range(3):
        network(torch.rand(5, 2, 8, 8))
    return network


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def unchanged(network: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("horizon", [0.5, 1.0, 4.0, 100.0])
def test_moving_average_against_a_loop(horizon: float) -> None:
    """The plain mean of all states while they are few; then each new one counts for 1/horizon."""
    network = tiny().train()
    average = MovingAverage(network)
    past: list[dict[str, Tensor]] = []
    expected: dict[str, Tensor] = {}
    for step in range(8):
        with torch.no_grad():
            for p in network.parameters():
                p.add_(torch.randn_like(p))
        network(torch.rand(5, 2, 8, 8) * (step + 1))  # moves BatchNorm's statistics
        now = state(network)
        past.append(now)
        average.update(network, step, horizon)
        assert unchanged(network, now)
        for name, value in now.items():
            if not value.is_floating_point():
                expected[name] = value
            elif step + 1 <= max(horizon, 1):
                expected[name] = sum(one[name].double() for one in past) / len(past)
            else:
                h = max(horizon, 1)
                expected[name] = expected[name] * (1 - 1 / h) + value.double() / h
        for name, value in average.network.state_dict().items():
            assert torch.allclose(value.double(), expected[name].double(), rtol=1e-4, atol=1e-5), (step, name)
    assert int(average.network.state_dict()["backbone.1.num_batches_tracked"]) == 3 + 8
    assert not torch.equal(past[0]["backbone.1.running_mean"], past[-1]["backbone.1.running_mean"])


def test_the_average_is_a_network_of_its_own() -> None:
    network = tiny().train()
    average = MovingAverage(network)
    assert not average.network.training
    assert not any(p.requires_grad for p in average.network.parameters())
    assert network.training
    assert all(p.requires_grad for p in network.parameters())
    before = state(average.network)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1)
    assert unchanged(average.network, before)

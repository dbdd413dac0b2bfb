"""Derivatives along a direction against torch's own, and against finite differences."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from openldn.maths.forward_mode import Tape, directional
from openldn.nets.classifier import running_statistics_frozen


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)], id="bias and stride"),
        pytest.param([nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.ReLU()], id="groups"),
        pytest.param([nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)], id="norm"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Tanh()], id="norm in evaluation"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2).requires_grad_(False)], id="frozen weights"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2)], id="other layers"),
    ],
)
def test_forward_mode_equals_torchs_own(body: list[nn.Module]) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(*body).double()
    x = torch.randn(5, 3, 9, 9, dtype=torch.float64)
    theta = {name: p for name, p in network.named_parameters() if p.requires_grad}
    v = {name: torch.randn_like(p) for name, p in theta.items()}

    def f(params):
        return (functional_call(network, dict(params), (x,)),)

    with running_statistics_frozen(network):
        with torch.no_grad():
            u, u_dot = torch.func.jvp(f, ({k: p.detach() for k, p in theta.items()},), (v,))
        values, slopes = directional(f, theta, v)
    torch.testing.assert_close(values, u, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes, u_dot, rtol=1e-10, atol=1e-10)


def test_a_tape_saves_convolutions_and_changes_nothing() -> None:
    """Random layers included: dropout masks are those of the taped pass, and the generator does not move."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 4, 3), nn.Dropout(), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False)]
    network = nn.Sequential(*layers, nn.Dropout2d()).double()
    x = torch.randn(5, 3, 9, 9, dtype=torch.float64)
    theta = dict(network.named_parameters())
    v = {name: torch.randn_like(p) for name, p in theta.items()}

    def f(params):
        return (functional_call(network, dict(params), (x,)),)

    def after(step):
        torch.manual_seed(5)
        return f({name: p.detach() + step * v[name] for name, p in theta.items()})[0]

    with running_statistics_frozen(network):
        torch.manual_seed(5)
        with Tape() as tape:
            expected = f(theta)[0]
        assert [y.shape[1] for y in tape.convolved] == [4, 5]
        state = torch.get_rng_state()
        (value,), (slope,) = directional(f, theta, v, tape)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(value, expected)
        torch.testing.assert_close(slope, (after(1e-6) - after(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-6)
        # without the tape the masks are others
        assert not torch.equal(directional(f, theta, v)[0][0], expected)
        # the recorded convolutions are what is used
        tape.convolved[-1].add_(1.0)
        assert not torch.equal(directional(f, theta, v, tape)[0][0], expected)

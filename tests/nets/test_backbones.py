"""Backbones, their stems, and what they cost."""

import pytest
import torch
from torch import Tensor, nn

from openldn.errors import UserError
from openldn.nets.backbones import BACKBONES, Basic, Bottleneck, SmallNet, build


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 32, 64])
@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_give_features(name: str, size: int, channels: int) -> None:
    backbone = build(name, channels, size)
    with torch.no_grad():
        z = backbone(torch.rand(2, channels, size, size))
    small = 64 if size < 16 else 128
    widths = {"small": small, "medium": 2 * small, "resnet18": 512, "resnet50": 2048}
    widths |= {f"{name}-pooled": widths[name] for name in ("resnet18", "resnet50")}
    assert z.shape == (2, widths.get(name, channels * size**2))
    assert bool(z.isfinite().all())
    assert not torch.equal(z[0], z[1])


def before_the_first_block(size: int) -> tuple[int, ...]:
    backbone = build("resnet18", 3, size)
    seen = []
    first = next(m for m in backbone.modules() if isinstance(m, Basic))
    first.register_forward_pre_hook(lambda module, inputs: seen.append(tuple(inputs[0].shape)))
    with torch.no_grad():
        z = backbone(torch.rand(2, 3, size, size))
    assert z.shape == (2, 512)
    return seen[0]


@pytest.mark.parametrize(("size", "inner"), [(32, 32), (64, 32), (224, 56)])
def test_stems_keep_halve_and_quarter_the_resolution(size: int, inner: int) -> None:
    assert before_the_first_block(size) == (2, 64, inner, inner)


def multiply_adds(backbone: nn.Module, size: int) -> int:
    """Of convolutions, counted by hand: multiply-adds of an output pixel times the number of them."""
    total = []

    def count(module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        total.append(module.weight.numel() * output.shape[2] * output.shape[3])

    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    with torch.no_grad():
        backbone(torch.rand(2, 3, size, size))
    return sum(total)


def test_the_small_net_costs_what_its_docstring_says() -> None:
    small = multiply_adds(SmallNet(3, 32), 32)
    assert round(small / 1e6) == 33
    assert round(multiply_adds(build("resnet18", 3, 32), 32) / small) == 17
    for size, n in [(8, 5), (15, 5), (16, 7), (32, 7)]:
        assert sum(isinstance(m, nn.Conv2d) for m in SmallNet(3, size).modules()) == n


@pytest.mark.parametrize("channels", [1, 3])
def test_the_small_net_starts_with_whitening_of_patches(channels: int) -> None:
    """Its first half of filters gives uncorrelated values of unit variance on the images it was fitted to."""
    g = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(torch.randn(200, channels, 8, 8, generator=g), 16, mode="bilinear")
    net = SmallNet(channels, 16)
    net.fit_whitening(x, eps=0.0)
    values = net.whiten(x)
    first, second = values.chunk(2, dim=1)
    torch.testing.assert_close(first, -second)
    rows = first.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(
        rows @ rows.T / rows.shape[1], torch.eye(len(rows)).double(), rtol=0, atol=2e-3
    )
    assert not net.whiten.weight.requires_grad
    net.fit_whitening(torch.zeros(5, channels, 16, 16))  # identical images
    assert bool(net.whiten.weight.isfinite().all())


@pytest.mark.parametrize("block", [Basic, Bottleneck])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_add_their_shortcut(block: type[Basic | Bottleneck], stride: int) -> None:
    made = block(8, 8, stride).eval()
    x = torch.rand(2, 8, 6, 6)
    with torch.no_grad():
        assert made(x).shape == (2, 8 * block.expansion, 6 // stride, 6 // stride)
        nn.init.zeros_(made.residual[-1].weight)  # no residual: the shortcut is all there is
        assert torch.equal(made(x), made.shortcut(x).relu())
    alike = stride == 1 and block.expansion == 1
    assert isinstance(made.shortcut, nn.Identity) == alike


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(UserError, match="small, medium, resnet18, resnet50"):
        build("vgg", 3, 32)

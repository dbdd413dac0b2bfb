"""Backbones: images (n, c, h, w) -> features (n, d).

The stems follow the paper, which has 32, 64 and 224 pixels: up to 48 a 3x3 convolution at full resolution, up
to 96 the same and a max-pool, above that the usual 7x7 convolution at half resolution and a max-pool.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from openldn.errors import UserError

Shortcuts = Literal["projection", "pooled"]


def builder(name: str) -> Callable[[int, int], nn.Module]:
    """The function that builds a backbone of that name, given channels and pixels."""
    if name not in BACKBONES:
        raise UserError(f"there is no backbone {name!r}; choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name]


def build(name: str, channels: int, size: int) -> nn.Module:
    """A new backbone by name, for square images."""
    return builder(name)(channels, size)


class SmallNet(nn.Module):
    """Whitening of 2x2 patches, then blocks of two 3x3 convolutions; for tiny images.

    It follows Jordan's networks for CIFAR-10 (2024) in what makes them learn fast: fixed whitening filters
    with a learned bias, pooling before normalisation, convolutions that start as the identity. Three blocks,
    two below 16 pixels. At 32 pixels a forward pass is 33 million multiply-adds; ResNet-18 has 17 times as
    many. `wide` multiplies the channels, and wide² the time.
    """

    def __init__(self, channels: int, size: int, wide: int = 1):
        super().__init__()
        self.whiten = nn.Conv2d(channels, 2 * 4 * channels, kernel_size=2)
        self.whiten.weight.requires_grad_(False)
        widths = [wide * width for width in ((32, 64) if size < 16 else (32, 128, 128))]
        blocks = list[nn.Module]()
        for width_in, width in zip((self.whiten.out_channels, *widths), widths, strict=False):
            blocks += [_identity(width_in, width), nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.ReLU()]
            blocks += [_identity(width, width), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers = nn.Sequential(nn.ReLU(), *blocks)
        self.last = len(blocks) // len(widths)  # number of layers of the last stage

    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(self.layers(self.whiten(x)), dim=(2, 3))

    @torch.no_grad()
    def fit_whitening(self, x: Tensor, eps: float = 5e-4) -> None:
        """Sets the filters by some images: principal directions of their patches, scaled to unit variance."""
        patches = nn.functional.unfold(x.double(), 2).transpose(1, 2).flatten(0, 1)  # (n, 4c)
        variance, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variance.clamp_min(0) + eps).sqrt()).T
        self.whiten.weight.copy_(torch.cat([filters, -filters]).view_as(self.whiten.weight))
        nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]


class ResNet(nn.Module):
    """A residual network (He et al., 2016); features are pooled, d wide.

    Shortcuts are 1x1 convolutions, and weights start as Kaiming-normal. With `pooled`, as in stage 1 of the
    authors' code, shortcuts have no parameters, and weights start as torch makes them.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        block: "type[Basic | Bottleneck]",
        depths: tuple[int, ...],
        pooled: bool = False,
    ):
        super().__init__()
        if size <= 48:
            stem: list[nn.Module] = [_conv_bn_relu(channels, 64)]
        elif size <= 96:
            stem = [_conv_bn_relu(channels, 64), nn.MaxPool2d(3, 2, 1)]
        else:
            stem = [_conv_bn_relu(channels, 64, kernel=7, stride=2), nn.MaxPool2d(3, 2, 1)]
        width, blocks = 64, list[nn.Module]()
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(width, 64 * 2**stage, stride, pooled))
                width = 64 * 2**stage * block.expansion
        self.layers = nn.Sequential(*stem, *blocks)
        self.last = depths[-1]  # number of layers of the last stage
        for m in self.modules():
            if isinstance(m, nn.Conv2d) and not pooled:
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(self.layers(x), dim=(2, 3))


class Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int, pooled: bool = False):
        super().__init__()
        self.residual = nn.Sequential(
            _conv_bn_relu(width_in, width, stride=stride),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = _shortcut(width_in, width, stride, pooled)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int, pooled: bool = False):
        super().__init__()
        self.residual = nn.Sequential(
            _conv_bn_relu(width_in, width, kernel=1),
            _conv_bn_relu(width, width, stride=stride),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = _shortcut(width_in, 4 * width, stride, pooled)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


def _conv_bn_relu(width_in: int, width: int, *, kernel: int = 3, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width_in, width, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


def _identity(width_in: int, width: int) -> nn.Module:
    """A 3x3 convolution that starts as the identity on its first channels."""
    made = nn.Conv2d(width_in, width, 3, padding=1, bias=False)
    nn.init.dirac_(made.weight.detach()[:width_in])
    return made


class Pooled(nn.Module):
    """A shortcut without parameters: average pooling, and channels of zeros."""

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.stride, self.added = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(x, self.stride, ceil_mode=True) if self.stride > 1 else x
        return nn.functional.pad(x, (0, 0, 0, 0, 0, self.added))


def _shortcut(width_in: int, width: int, stride: int, pooled: bool) -> nn.Module:
    if stride == 1 and width_in == width:
        return nn.Identity()
    if pooled:
        return Pooled(width_in, width, stride)
    return nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))


class Adapter(nn.Module):
    """On features (n, d) of a frozen network: an MLP with one hidden layer around a shortcut.

    It starts as the identity.
    """

    def __init__(self, d: int, hidden: int = 512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))
        nn.init.zeros_(self.layers[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[2].bias)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        return z + self.layers(z)  # type: ignore[no-any-return]


class Input(nn.Flatten):
    """No network at all: features are the input, pixels or features of a frozen network."""

    def __init__(self, channels: int, size: int):
        super().__init__()


def on_features(name: str, d: int) -> nn.Module:
    """A new network on features of a frozen one: `none`, or else an adapter."""
    return Input(d, 1) if name == "none" else Adapter(d)


BACKBONES: dict[str, Callable[[int, int], nn.Module]] = {
    "small": SmallNet,
    "medium": partial(SmallNet, wide=2),
    "resnet18": partial(ResNet, block=Basic, depths=(2, 2, 2, 2)),
    "resnet50": partial(ResNet, block=Bottleneck, depths=(3, 4, 6, 3)),
    "resnet18-pooled": partial(ResNet, block=Basic, depths=(2, 2, 2, 2), pooled=True),
    "resnet50-pooled": partial(ResNet, block=Bottleneck, depths=(3, 4, 6, 3), pooled=True),
    "none": Input,
}


def variant(name: str, pooled: bool) -> str:
    """The name of the network with pooled shortcuts, if they are asked for and it has any."""
    return f"{name}-pooled" if pooled and f"{name}-pooled" in BACKBONES else name

"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite variant has ReLU6 and no squeeze-and-excitation).

Strided convolutions pad as TensorFlow does, where its weights were trained: if the padding is odd, the extra
line is at the bottom and at the right.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

# Per stage: kernel, stride, expansion, output channels, blocks.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
D = 1280


class EfficientNetLite0(nn.Module):
    """RGB images, values -1 to 1 -> features (n, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        width, blocks = 32, list[nn.Module]()
        for kernel, stride, expansion, width_out, depth in STAGES:
            for i in range(depth):
                blocks.append(Block(width, width_out, kernel, stride if i == 0 else 1, expansion))
                width = width_out
        self.layers = nn.Sequential(Unit(3, 32, 3, 2), *blocks, Unit(width, D, 1))
        self.last = 1 + STAGES[-1][-1] + STAGES[-2][-1]  # number of layers of the last stage

    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(self.layers(x), dim=(2, 3))


class Block(nn.Module):
    """An inverted residual: expand by a 1x1 convolution, depthwise convolution, project by a 1x1 one."""

    def __init__(self, width_in: int, width: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = expansion * width_in
        units = [Unit(width_in, wide, 1)] if expansion > 1 else []
        units += [Unit(wide, wide, kernel, stride, depthwise=True), Unit(wide, width, 1, linear=True)]
        self.residual = nn.Sequential(*units)
        self.shortcut = stride == 1 and width_in == width

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + x if self.shortcut else self.residual(x)  # type: ignore[no-any-return]


class Unit(nn.Module):
    """Convolution, BatchNorm and, unless `linear`, ReLU6."""

    def __init__(
        self,
        width_in: int,
        width: int,
        kernel: int,
        stride: int = 1,
        *,
        depthwise: bool = False,
        linear: bool = False,
    ):
        super().__init__()
        groups = width if depthwise else 1
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(width_in, width, kernel, stride, padding, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        if self.conv.stride == (2, 2):
            x = pad_for_stride_2(x, self.conv.kernel_size[0])
        x = self.norm(self.conv(x))
        return x if self.linear else F.relu6(x)


def pad_for_stride_2(x: Tensor, kernel: int) -> Tensor:
    """Zeros around an image so that ceil(size / 2) windows cover it; the odd line is after, not before."""
    sides = list[int]()
    for size in (x.shape[3], x.shape[2]):
        total = max(0, kernel - 2 + size % 2)
        sides += [total // 2, total - total // 2]
    return F.pad(x, sides)


def folded(net: EfficientNetLite0) -> EfficientNetLite0:
    """A copy for evaluation that is faster: every BatchNorm is part of the convolution before it."""
    net = copy.deepcopy(net).eval()
    for unit in net.modules():
        if isinstance(unit, Unit) and isinstance(unit.norm, nn.BatchNorm2d):
            unit.conv = fuse_conv_bn_eval(unit.conv, unit.norm)
            unit.norm = nn.Identity()
    return net

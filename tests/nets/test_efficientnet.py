"""EfficientNet-Lite0: its shape, its padding, and folding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.nets.classifier import last_stage
from openldn.nets.efficientnet import STAGES, EfficientNetLite0, Unit, folded, pad_for_stride_2


def with_statistics(net: nn.Module) -> nn.Module:
    """BatchNorm layers as after training: means, variances, scales and shifts are not the initial ones."""
    g = torch.Generator().manual_seed(0)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            for t in (m.running_mean, m.bias.data):
                t.copy_(0.1 * torch.randn(t.shape, generator=g))
            for t in (m.running_var, m.weight.data):
                t.copy_(0.5 + torch.rand(t.shape, generator=g))
    return net.eval()


def test_it_is_as_large_as_published() -> None:
    """4.65 million parameters with the classifier of a thousand classes; 1,280 features; 7 x 7 at the end."""
    with torch.device("meta"):
        net = EfficientNetLite0()
        parameters = sum(p.numel() for p in net.parameters())
        assert parameters + 1280 * 1000 + 1000 == 4_652_008
        assert net(torch.zeros(2, 3, 224, 224)).shape == (2, 1280)
        assert net.layers(torch.zeros(2, 3, 224, 224)).shape == (2, 1280, 7, 7)


def test_the_last_stage_is_what_works_at_the_lowest_resolution() -> None:
    with torch.device("meta"):
        net = EfficientNetLite0()
        stages = last_stage(net)
        assert stages is not None
        before = stages[0](torch.zeros(1, 3, 224, 224))
        assert before.shape == (1, 112, 14, 14)
        assert stages[1](before).shape == (1, 1280, 7, 7)
    assert len(net.layers) == 2 + sum(stage[-1] for stage in STAGES)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [(8, 8), (7, 7), (7, 10)])
def test_strided_convolutions_are_centred_as_in_tensorflow(kernel: int, size: tuple[int, int]) -> None:
    """Output i is of the window that starts at 2 i - before; before is half of the padding, rounded down."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 1, *size, generator=g), torch.randn(1, 1, kernel, kernel, generator=g)
    found = F.conv2d(pad_for_stride_2(x, kernel), weight, stride=2)

    def value(i: int, j: int) -> Tensor:
        total = torch.zeros(())
        outputs = [-(-s // 2) for s in size]
        before = [max(0, (o - 1) * 2 + kernel - s) // 2 for o, s in zip(outputs, size)]
        for a in range(kernel):
            for b in range(kernel):
                r, c = 2 * i - before[0] + a, 2 * j - before[1] + b
                if 0 <= r < size[0] and 0 <= c < size[1]:
                    total = total + weight[0, 0, a, b] * x[0, 0, r, c]
        return total

    h, w = (-(-s // 2) for s in size)
    expected = torch.stack([torch.stack([value(i, j) for j in range(w)]) for i in range(h)])
    torch.testing.assert_close(found[0, 0], expected, rtol=0, atol=1e-5)


def test_blocks_have_a_shortcut_where_shapes_agree() -> None:
    net = with_statistics(EfficientNetLite0())
    repeated = [i for i, stage in enumerate(STAGES) for _ in range(stage[-1])]
    blocks = [*net.layers][1:-1]
    assert len(blocks) == len(repeated)
    for i, block in enumerate(blocks):
        assert block.shortcut == (i > 0 and repeated[i] == repeated[i - 1])
    last = blocks[2]
    assert last.shortcut
    nn.init.zeros_(last.residual[-1].norm.weight)
    nn.init.zeros_(last.residual[-1].norm.bias)
    x = torch.randn(1, 24, 8, 8)
    with torch.no_grad():
        assert torch.equal(last(x), x)


@pytest.mark.parametrize("size", [32, 45])
def test_folding_changes_nothing_but_the_speed(size: int) -> None:
    net = with_statistics(EfficientNetLite0())
    before = {name: t.clone() for name, t in net.state_dict().items()}
    fast = folded(net)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fast.modules())
    assert sum(isinstance(m, Unit) for m in net.modules()) == 49
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())

"""Backbones and their stems, the classifier, its precision, averages of networks, BatchNorm's statistics."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from openldn import device
from openldn.errors import UserError
from openldn.nets import classifier
from openldn.nets.backbones import BACKBONES, Basic, Bottleneck, SmallNet, build
from openldn.nets.classifier import Classifier, in_full, infer, pixel_statistics, statistics_frozen
from openldn.nets.ema import MovingAverage


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they give at these sizes, on a busy machine many times over."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(channels: int = 2, n_classes: int = 3, dropout: float = 0.0) -> Classifier:
    """A small network with BatchNorm, whose statistics have already moved."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(channels, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    mean, std = torch.tensor([0.3, 0.6])[:channels], torch.tensor([0.1, 0.2])[:channels]
    network = Classifier(backbone, n_classes, mean, std, 8)
    for _ in range(3):
        network(torch.rand(5, channels, 8, 8))
    return network


def images(n: int, channels: int = 2, size: int = 8, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), generator=g, dtype=torch.uint8)


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def unchanged(network: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


# --------------------------------------------------------------------------------------- backbones


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 32, 64])
@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_give_features(name: str, size: int, channels: int) -> None:
    backbone = build(name, channels, size)
    with torch.no_grad():
        z = backbone(torch.rand(2, channels, size, size))
    assert z.shape == (2, backbone.out_features)
    small = 64 if size < 16 else 128
    widths = {"small": small, "medium": 2 * small, "resnet18": 512, "resnet50": 2048}
    assert backbone.out_features == widths.get(name, channels * size**2)
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
    """By hand for each convolution: what each output pixel costs, times how many there are."""
    total = []

    def count(module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        total.append(module.weight.numel() * output.shape[2] * output.shape[3])

    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    with torch.no_grad():
        backbone(torch.rand(2, 3, size, size))
    return sum(total)


def test_the_small_net_is_as_cheap_as_it_says() -> None:
    small = multiply_adds(SmallNet(3, 32), 32)
    assert round(small / 1e6) == 33
    assert round(multiply_adds(build("resnet18", 3, 32), 32) / small) == 17
    for size, n in [(8, 5), (15, 5), (16, 7), (32, 7)]:
        assert sum(isinstance(m, nn.Conv2d) for m in SmallNet(3, size).modules()) == n


@pytest.mark.parametrize("channels", [1, 3])
def test_the_small_net_begins_by_whitening_patches(channels: int) -> None:
    """Of the images it has looked at: its first half of filters gives uncorrelated values of one size."""
    g = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(torch.randn(200, channels, 8, 8, generator=g), 16, mode="bilinear")
    net = SmallNet(channels, 16)
    net.look_at(x, eps=0.0)
    values = net.whiten(x)
    first, second = values.chunk(2, dim=1)
    torch.testing.assert_close(first, -second)
    rows = first.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(
        rows @ rows.T / rows.shape[1], torch.eye(len(rows)).double(), rtol=0, atol=2e-3
    )
    assert not net.whiten.weight.requires_grad
    net.look_at(torch.zeros(5, channels, 16, 16))  # images that are all alike
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


# -------------------------------------------------------------------------------------- classifier


def test_classifier_normalises_pixels_and_gives_features_and_logits() -> None:
    network = tiny().eval()
    x = torch.rand(4, 2, 8, 8)
    normal = torch.stack([(x[:, 0] - 0.3) / 0.1, (x[:, 1] - 0.6) / 0.2], dim=1)
    with torch.no_grad():
        z, logits = network(x)
        assert torch.allclose(z, network.backbone(normal), atol=1e-6)
        assert torch.allclose(logits, z @ network.head.weight.T + network.head.bias, atol=1e-6)
    assert z.shape == (4, 4)
    assert logits.shape == (4, 3)


class Gives(nn.Module):
    """A backbone that gives something odd."""

    def __init__(self, what):
        super().__init__()
        self.what, self.weight = what, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.what(x)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda x: x, r"\(2, 3, 8, 8\)"),
        (lambda x: x.mean((1, 2, 3)), r"\(2,\)"),
        (lambda x: x.view(-1, 8), r"\(48, 8\)"),
        (lambda x: (x.flatten(1), x), "tuple"),
    ],
)
def test_classifier_refuses_a_backbone_without_features(what, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Classifier(Gives(what), 4, torch.zeros(3), torch.ones(3), 8)


@pytest.mark.parametrize("training", [True, False])
def test_classifier_asks_for_the_width_without_leaving_traces(training: bool) -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 5)).train(training)
    before = state(backbone)
    network = Classifier(backbone, 4, torch.zeros(3), torch.ones(3), 8)
    assert network.head.in_features == 5
    assert network.head.out_features == 4
    assert unchanged(backbone, before)
    assert backbone.training is training


@pytest.mark.parametrize(("n", "channels"), [(5, 1), (7, 3), (5000, 2)])
def test_pixel_statistics_against_numpy(n: int, channels: int) -> None:
    x = images(n, channels, 4)
    x[:, 0] //= 3
    mean, std = pixel_statistics(x)
    values = x.numpy().astype(np.float64) / 255
    assert mean.tolist() == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-6)
    assert std.tolist() == pytest.approx(values.std((0, 2, 3)).tolist(), rel=1e-6)
    assert mean.dtype == std.dtype == torch.float32


def test_a_channel_of_one_value_still_has_a_spread_to_divide_by() -> None:
    mean, std = pixel_statistics(torch.full((4, 1, 8, 8), 200, dtype=torch.uint8))
    assert float(mean) == pytest.approx(200 / 255)
    assert float(std) == pytest.approx(1 / 255)


# ------------------------------------------------------------------------------------------- infer


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chunk", [3, 7, 512])
def test_infer_is_a_plain_forward_in_evaluation_mode(
    training: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier, "pieces", lambda images, values: images.split(chunk))
    network, x = tiny(dropout=0.5), images(7)
    with torch.no_grad():
        expected = copy.deepcopy(network).eval()(x.float() / 255)
    network.train(training)
    before, given = state(network), x.clone()
    z, logits, _ = infer(network, x)
    assert torch.allclose(z, expected.z, atol=1e-6)
    assert torch.allclose(logits, expected.logits, atol=1e-6)
    assert not logits.requires_grad
    assert all(m.training is training for m in network.modules())
    assert unchanged(network, before)
    assert torch.equal(x, given)


def test_a_mirrored_network_says_the_mean_of_both_views() -> None:
    network, x = tiny(), images(7)
    plain, mirror = infer(network, x), infer(network, x.flip(3))
    assert not torch.allclose(plain.logits, mirror.logits, atol=1e-4)  # else there is nothing to average
    network.mirrored = True
    both = infer(network, x)
    for a, b, c in zip(plain[:2], mirror[:2], both[:2], strict=True):
        assert torch.allclose((a + b) / 2, c, atol=1e-6)


# --------------------------------------------------------------------------------------- BatchNorm


def test_frozen_statistics_stay_while_the_batchs_own_are_used() -> None:
    network, x = tiny().train(), torch.rand(6, 2, 8, 8)
    before = state(network)
    with statistics_frozen(network):
        frozen = network(x).logits
    assert unchanged(network, before)
    usual = network(x).logits
    assert torch.equal(frozen, usual)
    assert not torch.allclose(network.eval()(x).logits, usual, atol=1e-3)
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == [f"backbone.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")]


def test_statistics_thaw_after_an_error_and_only_where_they_were_kept() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="on purpose"), statistics_frozen(network):
        raise RuntimeError("on purpose")
    assert [m.track_running_stats for m in network[:2]] == [True, False]


# ---------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("horizon", [0.5, 1.0, 4.0, 100.0])
def test_moving_average_against_a_loop(horizon: float) -> None:
    """The plain mean of all states while they are few; then each new one counts for 1/horizon."""
    network = tiny().train()
    average = MovingAverage(network, horizon)
    past: list[dict[str, Tensor]] = []
    expected: dict[str, Tensor] = {}
    for step in range(8):
        with torch.no_grad():
            for p in network.parameters():
                p.add_(torch.randn_like(p))
        network(torch.rand(5, 2, 8, 8) * (step + 1))  # moves BatchNorm's statistics
        now = state(network)
        past.append(now)
        average.update(network, step)
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
    average = MovingAverage(network, 10)
    assert not average.network.training
    assert not any(p.requires_grad for p in average.network.parameters())
    assert network.training
    assert all(p.requires_grad for p in network.parameters())
    before = state(average.network)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1)
    assert unchanged(average.network, before)


# ------------------------------------------------------------------------------------------ precision


def test_bfloat16_is_nearly_the_same_and_stays_inside() -> None:
    network, x = tiny(), torch.rand(6, 2, 8, 8)
    full = network(x)
    network.halved = True
    half = network(x)
    assert not torch.equal(half.z, full.z)
    assert half.z.dtype == half.logits.dtype == torch.float32
    assert torch.allclose(half.logits, full.logits, atol=0.05)
    half.logits.sum().backward()
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}
    with in_full(network):
        assert torch.equal(network(x).z, full.z)
    assert torch.equal(network(x).z, half.z)


@pytest.mark.parametrize(("half", "expected"), [(2.0, "bfloat16"), (1.1, "float32"), (0.01, "float32")])
def test_precision_is_what_was_measured_to_be_faster(
    half: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "bfloat16_gain", lambda: half)
    assert device.precision(torch.device("cpu")) == expected
    assert device.precision(torch.device("mps")) == "float32"


def test_precision_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or two runs with one seed could differ."""
    found = device.bfloat16_gain()
    assert found > 0
    monkeypatch.setattr(device.time, "process_time", lambda: 0.0)
    assert device.bfloat16_gain() == found


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_early_features_are_those_before_the_last_stage(name: str) -> None:
    network = Classifier(build(name, 3, 16), 4, torch.zeros(3), torch.ones(3), 16)
    x = images(5, channels=3, size=16)
    network.mirrored = True
    found = infer(network, x).early
    body, views = network.backbone.eval(), (x.float() / 255, x.float().flip(3) / 255)
    with torch.no_grad():
        first = [body.whiten(view) if name == "small" else view for view in views]
        expected = [body.layers[: -body.last](view).mean(dim=(2, 3)) for view in first]
    assert found is not None
    torch.testing.assert_close(found, (expected[0] + expected[1]) / 2, atol=1e-4, rtol=1e-4)
    assert not any(m._forward_hooks for m in network.modules())

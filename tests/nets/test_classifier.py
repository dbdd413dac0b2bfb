"""The classifier: normalised pixels, inference, running statistics, mixed precision, resizing."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toy
from openldn.errors import UserError
from openldn.nets import classifier
from openldn.nets.backbones import build
from openldn.nets.classifier import (
    Classifier,
    full_precision,
    infer,
    n_features,
    running_statistics_frozen,
    statistics,
)
from openldn.nets.heads import Linear


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
    mean, std = (torch.tensor(v)[:channels].view(-1, 1, 1) for v in ([0.3, 0.6], [0.1, 0.2]))
    network = Classifier(backbone, Linear(4, n_classes), mean, std)
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
def test_a_backbone_without_features_is_refused(what, says: str) -> None:
    with pytest.raises(UserError, match=says):
        n_features(Gives(what), channels=3, size=8)


@pytest.mark.parametrize("training", [True, False])
def test_finding_the_number_of_features_leaves_no_trace(training: bool) -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 5)).train(training)
    before = state(backbone)
    assert n_features(backbone, channels=3, size=8) == 5
    assert unchanged(backbone, before)
    assert backbone.training is training


@pytest.mark.parametrize(("n", "channels"), [(5, 1), (7, 3), (5000, 2)])
def test_statistics_against_numpy(n: int, channels: int) -> None:
    x = images(n, channels, 4)
    x[:, 0] //= 3
    mean, std = statistics(x)
    values = x.numpy().astype(np.float64) / 255
    assert mean.shape == std.shape == (channels, 1, 1)
    assert mean.flatten().tolist() == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-6)
    assert std.flatten().tolist() == pytest.approx(values.std((0, 2, 3)).tolist(), rel=1e-6)
    assert mean.dtype == std.dtype == torch.float32


def test_a_constant_channel_has_a_standard_deviation_to_divide_by() -> None:
    mean, std = statistics(torch.full((4, 1, 8, 8), 200, dtype=torch.uint8))
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


def test_flip_augmentation_averages_over_both_views() -> None:
    network, x = tiny(), images(7)
    plain, flipped = infer(network, x), infer(network, x.flip(3))
    assert not torch.allclose(plain.logits, flipped.logits, atol=1e-4)  # else there is nothing to average
    network.flip_tta = True
    both = infer(network, x)
    for a, b, c in zip(plain[:2], flipped[:2], both[:2], strict=True):
        assert torch.allclose((a + b) / 2, c, atol=1e-6)


# --------------------------------------------------------------------------------------- BatchNorm


def test_frozen_running_statistics_stay_while_batch_statistics_are_used() -> None:
    network, x = tiny().train(), torch.rand(6, 2, 8, 8)
    before = state(network)
    with running_statistics_frozen(network):
        frozen = network(x).logits
    assert unchanged(network, before)
    usual = network(x).logits
    assert torch.equal(frozen, usual)
    assert not torch.allclose(network.eval()(x).logits, usual, atol=1e-3)
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == [f"backbone.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")]


def test_running_statistics_are_tracked_again_after_an_error() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="on purpose"), running_statistics_frozen(network):
        raise RuntimeError("on purpose")
    assert [m.track_running_stats for m in network[:2]] == [True, False]


def test_frozen_norms_use_their_running_statistics_in_training_too() -> None:
    network, x = tiny(), torch.rand(6, 2, 8, 8)
    expected = network.eval()(x).logits
    network.norm_frozen = True
    network.train()
    assert network.training
    assert network.backbone[0].training
    before = state(network)
    found = network(x).logits
    torch.testing.assert_close(found, expected)
    assert unchanged(network, before)  # running statistics
    found.square().sum().backward()  # scale and shift learn all the same
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.backbone[1].parameters())
    with classifier.evaluating(network):
        assert not any(m.training for m in network.modules())
    assert [m.training for m in network.backbone[:2]] == [True, False]
    network.norm_frozen = False
    assert network.train().backbone[1].training


# ------------------------------------------------------------------------------- features for images


def test_statistics_of_features_keep_the_proportions_of_distances() -> None:
    """One deviation for all, of the first view."""
    z = torch.randn(50, 2, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5, 0.1, 2]) + 3
    mean, std = statistics(z)
    first = z[:, 0].double().numpy()
    np.testing.assert_allclose(mean, first.mean(axis=0), rtol=1e-5)
    assert std.tolist() == pytest.approx([math.sqrt(first.var(axis=0).mean())] * 4, rel=1e-5)
    assert statistics(torch.ones(5, 1, 3))[1].min() > 0


def test_outputs_on_features_are_the_mean_over_stored_views() -> None:
    torch.manual_seed(0)
    z = torch.randn(9, 3, 5)
    body = nn.Sequential(nn.Linear(5, 6), nn.ReLU())
    network = Classifier(body, Linear(6, 2), torch.full((5,), 0.5), torch.full((5,), 2.0))
    network.flip_tta = True  # of images alone
    found = infer(network, z)
    with torch.no_grad():
        each = [body((z[:, k] - 0.5) / 2) for k in range(3)]
        logits = [network.head(one) for one in each]
    torch.testing.assert_close(found.z, sum(each) / 3)
    torch.testing.assert_close(found.logits, sum(logits) / 3)
    assert found.early is None


# --------------------------------------------------------- mixed precision, resizing, early features


def test_mixed_precision_is_nearly_the_same_and_stays_in_the_backbone() -> None:
    network, x = tiny(), torch.rand(6, 2, 8, 8)
    full = network(x)
    network.mixed_precision = True
    half = network(x)
    assert not torch.equal(half.z, full.z)
    assert half.z.dtype == half.logits.dtype == torch.float32
    assert torch.allclose(half.logits, full.logits, atol=0.05)
    half.logits.sum().backward()
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}
    with full_precision(network):
        assert torch.equal(network(x).z, full.z)
    assert torch.equal(network(x).z, half.z)


def test_images_are_downsized_to_the_training_size() -> None:
    class Sees(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.shape = x.shape
            return x.mean(dim=(2, 3))

    network = toy.classifier(Sees(), 2, size=32)
    x = torch.full((2, 3, 32, 32), 0.25)
    for size in (None, 16, 32):
        network.training_size = size
        assert torch.allclose(network(x).z, torch.tensor(0.25))
        assert network.backbone.shape == (2, 3, size or 32, size or 32)


def test_images_that_are_enlarged_come_in_smaller_pieces() -> None:
    """Caches are small: it is the number of pixels that the network sees that counts."""
    seen = list[tuple[int, ...]]()

    class Sees(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            return x.mean(dim=(2, 3))

    network = toy.classifier(Sees(), 2, size=32)
    x = torch.randint(0, 256, (1500, 3, 32, 32), dtype=torch.uint8)
    for size, most in ((None, 682), (32, 682), (128, 42)):
        seen.clear()
        network.input_size = size
        assert len(infer(network, x).z) == 1500
        assert max(shape[0] for shape in seen) == most
        assert sum(shape[0] for shape in seen) == 1500


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_early_features_are_those_of_the_second_to_last_stage(name: str) -> None:
    network = toy.classifier(build(name, 3, 16), 4, size=16)
    x = images(5, channels=3, size=16)
    network.flip_tta = True
    found = infer(network, x).early
    body, views = network.backbone.eval(), (x.float() / 255, x.float().flip(3) / 255)
    with torch.no_grad():
        first = [body.whiten(view) if name == "small" else view for view in views]
        expected = [body.layers[: -body.last](view).mean(dim=(2, 3)) for view in first]
    assert found is not None
    torch.testing.assert_close(found, (expected[0] + expected[1]) / 2, atol=1e-4, rtol=1e-4)
    assert not any(m._forward_hooks for m in network.modules())

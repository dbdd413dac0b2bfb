"""Frozen networks as encoders: against a direct pass on images that are normalised by hand."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.features import SideBySide
from openldn.errors import UserError
from openldn.nets import encoder as module
from openldn.nets import pretrained
from openldn.nets.encoder import Custom, Encoder, encoder
from openldn.nets.pretrained import LITE0, find

CPU = torch.device("cpu")


def images(n: int = 5, channels: int = 3, size: int = 8, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), generator=g).to(torch.uint8)


def network(channels: int = 3, d: int = 6) -> nn.Module:
    """With BatchNorm and dropout, which must be in evaluation mode; in training mode as it is given."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(channels, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, d),
    )
    for _ in range(3):  # its statistics have moved
        made(torch.rand(5, channels, 8, 8))
    return made


def made(*sources: Any, flip: bool = True, precision: Any = "float32") -> Encoder:
    return Encoder(sources, flip=flip, on=CPU, precision=precision)


def normalised(x: Tensor) -> Tensor:
    """By the mean and deviation of each channel, in numpy."""
    values = x.numpy().astype(np.float64) / 255
    for c in range(values.shape[1]):
        values[:, c] = (values[:, c] - values[:, c].mean()) / values[:, c].std()
    return torch.from_numpy(values).float()


def everything(found: Any) -> Tensor:
    return found[torch.arange(len(found))]


# ------------------------------------------------------------------------------------- a user's module


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", [True, False])
def test_features_are_those_of_a_direct_pass(own_cache: Path, channels: int, flip: bool) -> None:
    x, given = images(20, channels), network(channels)
    before = {name: t.clone() for name, t in given.state_dict().items()}
    own = made(Custom.of(given, x), flip=flip)
    found = own(x)
    direct = network(channels).eval()
    with torch.no_grad():
        views = [direct(normalised(x))] + [direct(normalised(x).flip(3))] * flip
    assert found.shape == (20, 1 + flip, 6)
    torch.testing.assert_close(found, torch.stack(views, dim=1), atol=2e-3, rtol=2e-3)  # of float16
    assert torch.equal(everything(own.features(x)), found)  # stored or not
    assert given.training
    assert all(torch.equal(t, before[name]) for name, t in given.state_dict().items())


def test_images_of_another_size_are_resized() -> None:
    x = images(size=8)
    own = made(Custom.of(network(), x), flip=False)
    large = images(size=24, seed=1)
    small = F.interpolate(large.float(), (8, 8), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in own.sources[0][1:3])  # type: ignore[index]
    with torch.no_grad():
        direct = network().eval()((small / 255 - mean) / std)
    torch.testing.assert_close(own(large)[:, 0], direct, atol=2e-3, rtol=2e-3)


def test_bfloat16_is_nearly_the_same_and_stored_apart(own_cache: Path) -> None:
    x, given = images(), network()
    full, half = (made(Custom.of(given, x), precision=p) for p in ("float32", "bfloat16"))
    assert not torch.equal(half(x), full(x))
    torch.testing.assert_close(half(x), full(x), atol=0.05, rtol=0.05)
    full.features(x)
    assert torch.equal(everything(half.features(x)), half(x))


def test_a_module_is_known_by_its_weights_and_its_input() -> None:
    x, given = images(), network()
    digest = Custom.of(given, x).digest
    assert Custom.of(network(), x).digest == digest
    assert Custom.of(given, images(seed=1)).digest != digest  # another normalisation
    with torch.no_grad():
        given[6].bias[0] += 1e-3
    assert Custom.of(given, x).digest != digest
    pooled = network()
    pooled[4] = nn.AdaptiveMaxPool2d(2)  # without weights, but another function
    assert Custom.of(pooled, x).digest != digest
    running = network()
    running[1].running_mean[0] += 1
    assert Custom.of(running, x).digest != digest


class Gives(nn.Module):
    """A backbone that gives something odd."""

    def __init__(self, what: Any):
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Any:
        return self.what(x)


def broken(x: Tensor) -> Tensor:
    raise RuntimeError("size mismatch")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda x: x, r"features \(n, d\); this one gives \(2, 3, 8, 8\)"),
        (lambda x: x.mean((1, 2, 3)), r"this one gives \(2,\)"),
        (lambda x: x.reshape(-1, 8), r"this one gives \(48, 8\)"),
        (lambda x: (x.flatten(1), x), "this one gives tuple"),
        (lambda x: x.flatten(1) * math.nan, "features that are not finite.*; check its weights"),
        (lambda x: x.flatten(1) / 0, "features that are not finite"),
        (broken, r"cannot take images of 8 x 8 pixels \(RuntimeError: size mismatch\); give one"),
    ],
)
def test_a_backbone_that_cannot_be_used_is_refused_in_a_sentence(
    own_cache: Path, what: Any, says: str
) -> None:
    x = images()
    own = made(Custom.of(Gives(what), x))
    for use in (own, own.features):
        with pytest.raises(UserError, match=says) as caught:
            use(x)
        assert "\n" not in str(caught.value)


def test_features_too_large_for_the_store_are_refused(own_cache: Path) -> None:
    """They are kept in float16, which ends at 65,504."""
    x = images()
    own = made(Custom.of(Gives(lambda x: x.flatten(1)[:, :4] * 1e5), x))
    for use in (own, own.features):
        with pytest.raises(UserError, match="not finite, or above 65,504"):
            use(x)


# ------------------------------------------------------------------------------------------ pretrained


@pytest.fixture(scope="module")
def lite0() -> pretrained.Pretrained:
    return find(LITE0)


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_enlarged_for_a_pretrained_network(lite0: Any, channels: int) -> None:
    """Grey ones have three equal channels. The reference: the network as it was published, not folded."""
    x = images(3, channels, size=8)
    source = lite0.for_images_of(8)
    assert source.size == 40
    found = made(source)(x)
    rgb = x.float().repeat(1, 3 // channels, 1, 1) / 255
    large = F.interpolate(rgb, (40, 40), mode="bilinear", antialias=True) * 2 - 1
    with torch.no_grad():
        direct = lite0.module()(torch.cat([large, large.flip(3)]))
    torch.testing.assert_close(found, direct.view(2, 3, -1).transpose(0, 1), atol=5e-3, rtol=5e-3)


def test_several_networks_stand_side_by_side(own_cache: Path, lite0: Any) -> None:
    x = images(4)
    sources = Custom.of(network(), x), lite0.for_images_of(8)
    both, (a, b) = made(*sources), (made(source) for source in sources)
    expected = torch.cat([F.normalize(one(x), dim=2) for one in (a, b)], dim=2)
    torch.testing.assert_close(both(x), expected)
    found = both.features(x)
    assert isinstance(found, SideBySide)
    assert found.shape == (4, 2, 6 + 1280)
    torch.testing.assert_close(everything(found), expected)


def test_no_network_is_built_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fast_inference", lambda _: pytest.fail("built"))
    assert made(Custom.of(network(), images())).record[0]["name"] == "custom"


# -------------------------------------------------------------------------------------- what is recorded


def again(record: Any, own: nn.Module | None = None) -> Encoder:
    return encoder(record, flip=True, on=CPU, precision="float32", own=own)


def test_a_recorded_encoder_comes_back(lite0: Any) -> None:
    x = images(4)
    first = made(Custom.of(network(), x), lite0.for_images_of(8))
    second = again(first.record, network())
    assert second.record == first.record
    assert torch.equal(second(x), first(x))


def test_a_users_module_has_to_be_given_again() -> None:
    record = made(Custom.of(network(), images())).record
    with pytest.raises(UserError, match="backbone of its owner's own; give it"):
        again(record)


def test_another_module_of_a_user_is_refused() -> None:
    record = made(Custom.of(network(), images())).record
    other = network()
    with torch.no_grad():
        other[0].weight[0] += 0.1
    with pytest.raises(UserError, match="the backbone is not the one that this run was trained with; give"):
        again(record, other)


def test_other_weights_of_the_same_name_are_refused(monkeypatch: pytest.MonkeyPatch, lite0: Any) -> None:
    record = made(lite0).record
    changed = dataclasses.replace(lite0, digest="0" * 64)
    monkeypatch.setattr(module, "find", lambda name: changed)
    with pytest.raises(UserError, match=f"the weights of {LITE0} are not those .*; bring them back"):
        again(record)

"""Features on disk: computed once, found by content, recovered after a crash; and views of them."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.data import features as module
from openldn.data.draws import keys_of
from openldn.data.features import Features, Recipe, SideBySide, features
from openldn.data.pixels import Part, fingerprints
from openldn.data.row_store import RowStore
from openldn.errors import UserError

V, D = 2, 5


class Counting:
    """Simple features, and a record of how many images were computed."""

    def __init__(self, stop_after: int = 10**9):
        self.n, self.stop_after = 0, stop_after

    def __call__(self, images: Tensor) -> Tensor:
        if self.n >= self.stop_after:
            raise KeyboardInterrupt
        self.n += len(images)
        return expected(images)


def expected(images: Tensor) -> Tensor:
    z = images.float().flatten(1)[:, :D] / 16  # exact in float16
    return torch.stack([z, z + 1], dim=1)


def recipe(compute: Counting, key: str = "a") -> Recipe:
    return Recipe(key, V, D, compute, batch=4)


def images(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, 3, 4, 4), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def everything(found: Features | SideBySide) -> Tensor:
    return found[torch.arange(len(found))]


def test_they_are_computed_once_and_found_by_content(own_cache: Path) -> None:
    x, compute = images(20), Counting()
    made = features(x, recipe(compute))
    assert made.shape == (20, V, D)
    assert torch.equal(everything(made), expected(x))
    assert compute.n == 20
    some = torch.tensor([7, 3, 3])
    again = features(Part(x, some), recipe(compute))
    assert torch.equal(everything(again), expected(x[some]))
    assert compute.n == 20
    changed = x.clone()
    changed[4] += 1
    assert torch.equal(everything(features(changed, recipe(compute))), expected(changed))
    assert compute.n == 21
    features(x, recipe(compute, key="another network"))
    assert compute.n == 41


def test_copies_of_an_image_are_computed_once(own_cache: Path) -> None:
    x, compute = images(6), Counting()
    x[4] = x[1]
    assert torch.equal(everything(features(x, recipe(compute))), expected(x))
    assert compute.n == 5


def test_an_interrupted_computation_goes_on(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 8)
    x, first, second = images(40), Counting(stop_after=20), Counting()
    with pytest.raises(KeyboardInterrupt):
        features(x, recipe(first))
    assert torch.equal(everything(features(x, recipe(second))), expected(x))
    assert second.n == 40 - 16


@pytest.mark.parametrize("damage", ["zeros", "shorter", "torn record"])
def test_what_a_power_failure_left_is_not_trusted(own_cache: Path, damage: str) -> None:
    x = images(20)
    features(x, recipe(Counting()))
    (file,) = own_cache.glob("*/features")
    file.with_name("trusted").unlink()
    row = 2 * V * D
    if damage == "zeros":
        data = bytearray(file.read_bytes())
        data[3 * row : 5 * row] = bytes(2 * row)
        file.write_bytes(data)
    elif damage == "shorter":
        with file.open("rb+") as f:
            f.truncate(10 * row + 3)
    else:
        index = file.with_name("index")
        index.write_bytes(index.read_bytes()[:-5])
    compute = Counting()
    assert torch.equal(everything(features(x, recipe(compute))), expected(x))
    assert compute.n == {"zeros": 2, "shorter": 10, "torn record": 1}[damage]


def test_no_room_is_an_error_that_says_what_to_do(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.RowStore, "has_room", lambda self, n: False)
    with pytest.raises(UserError, match="OPENLDN_CACHE"):
        features(images(3), recipe(Counting()))


def test_an_index_that_cannot_be_written_is_no_harm_to_this_run(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are there, but a later run does not find them and computes them again."""
    x, usual = images(6), Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if (self.name, mode) == ("index", "ab"):
            raise OSError(errno.ENOSPC, "no space left on device")
        return usual(self, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        assert torch.equal(everything(features(x, recipe(Counting()))), expected(x))
    compute = Counting()
    assert torch.equal(everything(features(x, recipe(compute))), expected(x))
    assert compute.n == 6


def test_a_full_disk_is_an_error_that_says_what_to_do(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RowStore, rows: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(RowStore, "append", full)
    with pytest.raises(UserError, match=r"the disk is full, .*OPENLDN_CACHE"):
        features(images(3), recipe(Counting()))


def test_progress_ends_at_the_number_of_missing_images(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 8)
    seen = list[Sequence[object]]()
    features(images(20), recipe(Counting()), lambda *what: seen.append(what))
    assert seen == [("features", 8, 20), ("features", 16, 20), ("features", 20, 20)]


def test_fingerprints_of_features_are_those_of_their_images(own_cache: Path) -> None:
    x = images(9)
    made = features(x, recipe(Counting()))
    some = torch.tensor([5, 2])
    assert np.array_equal(fingerprints(Part(made, some)), fingerprints(x[some]))


def test_several_networks_stand_side_by_side_with_equal_weight(own_cache: Path) -> None:
    x = images(9)
    a, b = features(x, recipe(Counting())), features(x, recipe(Counting(), key="b"))
    both = SideBySide([a, b])
    assert both.shape == (9, V, 2 * D)
    z = everything(both)
    for part, own in zip(z.split(D, dim=2), (a, b), strict=True):
        raw = everything(own)
        assert torch.allclose(part, raw / raw.norm(dim=2, keepdim=True))


def test_views_choose_a_stored_view_and_drop_some_features() -> None:
    n, v, d = 400, 3, 50
    z = 1 + torch.arange(n * v * d, dtype=torch.float32).view(n, v, d)
    keys = keys_of(1, np.arange(n))
    weak, strong, other = module.views(z, ("weak", "strong", "strong"), keys)
    chosen = (weak[:, None] == z).all(dim=2)
    assert chosen.sum(dim=1).eq(1).all()
    assert chosen.float().mean(dim=0).tolist() == pytest.approx([1 / v] * v, abs=0.1)
    kept = strong != 0
    assert float(kept.float().mean()) == pytest.approx(1 - module.DROPPED, abs=0.01)
    near = (z * 1.25)[:, :, None, :].eq(strong[:, None, None, :]) | ~kept[:, None, None, :]
    assert near.all(dim=3).any(dim=1).all()  # the kept ones are of one stored view, scaled up
    assert not torch.equal(strong, other)
    part = module.views(z[100:200], ("weak", "strong"), keys[100:200])
    assert torch.equal(part[0], weak[100:200])
    assert torch.equal(part[1], strong[100:200])

"""The store of decoded images: made once, finished when interrupted, checked before it is trusted."""

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from openldn.data import image_files, pixels, reading, row_store, store
from openldn.data.pixels import Images
from openldn.errors import OpenLDNWarning, UserError

pytestmark = pytest.mark.usefixtures("own_cache")


def write(folder: Path, n: int, size: int = 8, seed: int = 0) -> list[Path]:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    paths = [folder / f"{i:04}.png" for i in range(n)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(path)
    return paths


def everything(images: Images) -> np.ndarray:
    return images[torch.arange(len(images))].numpy()


def decode(paths: list[Path], root: str = "a", size: int | None = None, **how: Any) -> Images:
    """All of them."""
    images, skipped = store.decode(paths, root=root, size=size, **how)
    assert not skipped
    return images


def by_pillow(paths: list[Path]) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in paths])


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are decoded, in this process."""
    seen: list[str] = []
    plain = image_files._decode

    def noted(file: str, out: np.ndarray, squash: bool):
        seen.append(Path(file).name)
        return plain(file, out, squash)

    monkeypatch.setattr(image_files, "_decode", noted)
    return seen


def test_holds_what_the_files_hold_and_is_made_once(tmp_path: Path, decodings: list[str]) -> None:
    paths = write(tmp_path / "a", 10)
    first = decode(paths)
    assert first.shape == (10, 3, 8, 8)
    assert np.array_equal(everything(first), by_pillow(paths))
    assert len(decodings) == 10
    again = decode(paths)
    assert np.array_equal(everything(again), by_pillow(paths))
    assert len(decodings) == 10
    assert isinstance(again, pixels.Stored)


def test_by_worker_processes_too(tmp_path: Path) -> None:
    """More than is worth doing right here."""
    paths = write(tmp_path / "a", 300)
    paths[77].write_bytes(b"no image")
    seen = []
    made, skipped = store.decode(paths, root="a", size=None, watch=lambda *told: seen.append(told))
    good = [path for i, path in enumerate(paths) if i != 77]
    assert np.array_equal(everything(made), by_pillow(good))
    assert list(skipped) == [77]
    assert [told for told in seen if told[0] == "decoding"][-1] == ("decoding", 299, 299)


def test_a_changed_file_is_decoded_again_and_only_that(tmp_path: Path, decodings: list[str]) -> None:
    paths = write(tmp_path / "a", 10)
    decode(paths)
    decodings.clear()
    Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(paths[4])
    os.utime(paths[4], ns=(1, time.time_ns() + 10**9))
    made = decode(paths)
    assert decodings == ["0004.png"]
    assert np.array_equal(everything(made), by_pillow(paths))


def test_files_may_come_and_go(tmp_path: Path, decodings: list[str]) -> None:
    paths = write(tmp_path / "a", 10)
    decode(paths[:8])
    decodings.clear()
    shuffled = [paths[i] for i in (9, 3, 3, 0, 8, 5)]  # one of them twice
    made = decode(shuffled)
    assert sorted(decodings) == ["0008.png", "0009.png"]
    assert np.array_equal(everything(made), by_pillow(shuffled))


def test_sizes_and_roots_have_stores_of_their_own(tmp_path: Path) -> None:
    paths = write(tmp_path / "a", 4, size=40)
    for size in (16, 32):
        assert decode(paths, size=size).shape == (4, 3, size, size)
    assert decode(paths, size=16, channels=1).shape == (4, 1, 16, 16)
    other = write(tmp_path / "b", 4, size=40, seed=1)
    one, two = (everything(decode(p, root=str(p[0].parent), size=40)) for p in (paths, other))
    assert not np.array_equal(one, two)


def test_a_size_that_a_few_headers_do_not_tell(tmp_path: Path) -> None:
    """Most are small and grey, but not quite all: what was decoded by the first guess is not used."""
    paths = write(tmp_path / "a", 430, size=8)
    for path in paths[:1] + paths[2:]:  # the second one is not among those that are looked at first
        Image.open(path).convert("L").save(path)
    made = decode(paths)
    assert made.shape == (430, 3, 8, 8)
    expected = [np.broadcast_to(np.asarray(Image.open(path)).T, (3, 8, 8)) for path in paths[2:]]
    assert np.array_equal(everything(made)[2:].transpose(0, 1, 3, 2), np.stack(expected))


def test_headers_that_are_gone_are_found_again(tmp_path: Path, own_cache: Path) -> None:
    """As when a process was killed between two tables: more images than are looked at first."""
    paths = write(tmp_path / "a", 430)
    decode(paths)
    (file,) = own_cache.glob("*/headers")
    file.unlink()
    assert np.array_equal(everything(decode(paths)), by_pillow(paths))


def test_nothing_readable_among_those_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SAMPLE", 2)
    paths = write(tmp_path / "a", 30)
    for path in paths:
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match="of 30 images cannot be read"):
        decode(paths)


def test_what_was_half_made_is_finished(
    tmp_path: Path, decodings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path / "a", 200)
    monkeypatch.setattr(store, "AT_ONCE", 192 * 20)
    add, calls = row_store.Table.add, []

    def dies(self: row_store.Table, records: list) -> None:
        add(self, records)
        calls.append(1)
        if self.dtype == row_store.RECORD and len(calls) > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(row_store.Table, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        decode(paths)
    monkeypatch.setattr(row_store.Table, "add", add)
    decodings.clear()
    made = decode(paths)
    assert 0 < len(decodings) < 200
    assert np.array_equal(everything(made), by_pillow(paths))


@pytest.mark.parametrize("damage", ["zeros", "torn record", "shorter", "gone", "no index"])
def test_what_was_half_made_is_not_trusted(tmp_path: Path, own_cache: Path, damage: str) -> None:
    """As after a power failure: records without their pixels."""
    paths = write(tmp_path / "a", 20)
    decode(paths)
    (file,) = own_cache.glob("*/8x3/pixels")
    index = file.with_name("index")
    file.with_name("trusted").unlink()
    match damage:
        case "zeros":
            data = bytearray(file.read_bytes())
            data[5 * 192 : 9 * 192] = bytes(4 * 192)
            file.write_bytes(data)
        case "torn record":
            index.write_bytes(index.read_bytes()[:-7])
        case "shorter":
            os.truncate(file, 10 * 192)
        case "gone":
            file.unlink()
        case "no index":
            index.unlink()
    made = decode(paths)
    assert np.array_equal(everything(made), by_pillow(paths))
    again = decode(paths)
    assert np.array_equal(everything(again), by_pillow(paths))


def test_a_trusted_store_whose_pixels_were_cut_is_mended(tmp_path: Path, own_cache: Path) -> None:
    paths = write(tmp_path / "a", 20)
    decode(paths)
    (file,) = own_cache.glob("*/8x3/pixels")
    os.truncate(file, 10 * 192)
    assert np.array_equal(everything(decode(paths)), by_pillow(paths))


def test_without_room_images_are_decoded_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    paths = write(tmp_path / "a", 12)
    stored = decode(paths, root="stored")
    full = shutil._ntuple_diskusage(10**9, 10**9, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.warns(OpenLDNWarning, match="room"):
        made = decode(paths)
    assert isinstance(made, pixels.OnTheFly)
    assert made.shape == (12, 3, 8, 8)
    rows = torch.tensor([7, 0, 7, 11])
    made.expect(rows)
    assert np.array_equal(made[rows].numpy(), by_pillow([paths[i] for i in rows]))
    assert np.array_equal(everything(made), by_pillow(paths))
    # A run may be begun without room and resumed with it: both have the same fingerprints.
    assert np.array_equal(pixels.fingerprints(made), pixels.fingerprints(stored))
    paths[3].unlink()
    with pytest.raises(UserError, match=r"0003\.png could be read before"):
        everything(made)
    sizes = {path.name: path.stat().st_size for path in own_cache.rglob("pixels")}
    assert min(sizes.values()) == 0


def test_without_room_for_more_and_then_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path / "a", 12)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
        with pytest.warns(OpenLDNWarning, match="room"):
            decode(paths)
    made = decode(paths)
    assert isinstance(made, pixels.Stored)
    assert np.array_equal(everything(made), by_pillow(paths))


def test_many_unreadable_files_stop_it(tmp_path: Path) -> None:
    paths = write(tmp_path / "a", 20)
    for path in paths[:2]:
        path.write_bytes(b"")
    assert store.decode(paths, root="a", size=None)[1] == {0: "it is empty", 1: "it is empty"}
    paths[2].write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"3 of 20 images cannot be read, such as .*0000\.png \(it is empty\)"
    ):
        decode(paths)


def test_a_file_with_a_good_header_and_bad_pixels_is_skipped(tmp_path: Path) -> None:
    paths = write(tmp_path / "a", 20, size=30)
    paths[5].write_bytes(paths[5].read_bytes()[:500])
    made, skipped = store.decode(paths, root="a", size=16)
    assert list(skipped) == [5]
    assert len(made) == 19
    Image.open(paths[0]).save(paths[5])  # repaired
    os.utime(paths[5], ns=(1, time.time_ns() + 10**9))
    assert len(decode(paths, size=16)) == 20


def test_a_home_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = write(tmp_path / "a", 3)
    assert np.array_equal(everything(decode(paths)), by_pillow(paths))


def test_part_and_pieces_are_rows_of_the_whole() -> None:
    whole = torch.arange(10 * 3 * 2 * 2, dtype=torch.uint8).view(10, 3, 2, 2)
    part = pixels.Part(pixels.Part(whole, torch.tensor([9, 7, 5, 3])), torch.tensor([3, 0, 2]))
    assert part.shape == (3, 3, 2, 2)
    assert torch.equal(part[torch.arange(3)], whole[[3, 9, 5]])
    assert torch.equal(torch.cat([*pixels.pieces(part, 24)]), whole[[3, 9, 5]])
    assert [len(piece) for piece in pixels.pieces(whole, 36)] == [3, 3, 3, 1]
    assert [len(piece) for piece in pixels.pieces(whole, 1)] == [1] * 10
    assert [len(piece) for piece in pixels.pieces(whole[:0])] == [0]
    assert np.array_equal(pixels.fingerprints(part), pixels.fingerprints(whole[[3, 9, 5]]))


def test_relative_paths_mean_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes live on in the folder that they were started in."""
    folders = {name: write(tmp_path / name, store.SAMPLE + 10, seed=k) for k, name in enumerate("ab")}
    for name, paths in folders.items():
        monkeypatch.chdir(tmp_path / name)
        relative = [Path(path.name) for path in paths]
        made = decode(relative, root=name)
        assert np.array_equal(everything(made), by_pillow(paths))
        (new,) = reading.new_images(relative, size=8, channels=3)
        assert np.array_equal(new.images.numpy(), by_pillow(paths))


def test_no_rows_on_the_fly() -> None:
    none = pixels.OnTheFly(["a.png"], np.zeros(1, pixels.PRINT), (3, 8, 8))[torch.empty(0, dtype=torch.int64)]
    assert none.shape == (0, 3, 8, 8)
    assert none.dtype == torch.uint8


def test_a_disk_that_is_full_to_the_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what is known of the files can be written down, and yet they are read."""
    paths, opened = write(tmp_path / "a", 12), Path.open

    def no_room(self: Path, mode: str = "r", *rest: object, **named: object):
        if mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *rest, **named)

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    monkeypatch.setattr(Path, "open", no_room)
    with pytest.warns(OpenLDNWarning, match="room"):
        made = decode(paths)
    assert np.array_equal(everything(made), by_pillow(paths))


def test_a_whole_store_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    paths = write(tmp_path / "a", 12)
    decode(paths)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert isinstance(decode(paths), pixels.Stored)
    assert not recwarn.list

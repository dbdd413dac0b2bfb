"""The user's own images, as they come: broken, mixed, oddly named, linked, duplicated; splits and labels."""

import json
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image

from openldn.data import image_files, pixels, reading
from openldn.data import split as splits
from openldn.errors import OpenLDNWarning, UserError
from openldn.options import Options


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, seed: int = 0, size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(size, size, seed=seed)).save(path)
    return path


def read(source: Path, labels: Path | None = None, **options: object) -> reading.Given:
    options = {"novel": 1, **options}
    chosen = Options(**options)  # type: ignore[arg-type]
    split = None if chosen.split is None else Path(chosen.split)
    return reading.read(reading.describe(source, labels, chosen), chosen, split=split)


# ---------------------------------------------------------------------------------------------- formats


def formats() -> dict[str, Image.Image]:
    colour = [Image.fromarray(noise(40, 50, 3, seed=i)) for i in range(8)]
    return {
        "1.jpg": colour[0],
        "2.JPEG": Image.fromarray(noise(40, 50)),
        "3.png": Image.fromarray(noise(40, 50, 4)),
        "4.webp": colour[1],
        "5.bmp": colour[2],
        "6.tif": Image.fromarray(noise(40, 50, seed=9).astype(np.uint16) * 257),
        "7.gif": colour[3].quantize(16),
        "8.TIFF": colour[4].convert("CMYK"),
        "9.jpg": colour[5].convert("CMYK"),
        "10.png": colour[6].convert("1"),
        "11.png": colour[7].quantize(16),
        "12.png": Image.fromarray(noise(40, 50, 2)),
    }


def test_every_format_is_read(tmp_path: Path) -> None:
    for name, image in formats().items():
        path = tmp_path / ("a" if name < "3" else "b" if name < "6" else "unlabelled") / name
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    given = read(tmp_path)
    assert len(given.problem.names) == len(formats())
    assert given.problem.images.shape == (12, 3, 32, 32)
    assert given.skipped == ()


def save_heic(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = pillow_heif.from_bytes("RGB", (16, 16), noise(16, 16, 3, seed=seed).tobytes())
    made.save(path, quality=-1, chroma=444, matrix_coefficients=0)
    return path


def write_photographs(folder: Path, n_png: int, n_heic: int) -> None:
    for i in range(n_png):
        save(folder / ("a", "b", "unlabelled")[i % 3] / f"{i}.png", seed=i, size=16)
    for i in range(n_heic):
        save_heic(folder / ("a", "b", "unlabelled")[i % 3] / f"{i}.heic", seed=100 + i)


def test_heic_among_others(tmp_path: Path) -> None:
    write_photographs(tmp_path, 6, 6)
    given = read(tmp_path)
    assert given.skipped == ()
    problem = given.problem
    read_pixels = problem.images[torch.arange(12)].permute(0, 2, 3, 1).numpy()
    for i in range(6):
        row = problem.names.index(f"{('a', 'b', 'unlabelled')[i % 3]}/{i}.heic")
        assert np.array_equal(read_pixels[row], noise(16, 16, 3, seed=100 + i))


def test_heic_by_worker_processes(tmp_path: Path) -> None:
    """More than is worth decoding in this process."""
    first = [save_heic(tmp_path / f"{i}.heic", seed=i).read_bytes() for i in range(3)]
    files = [tmp_path / f"{i}.heic" for i in range(pixels.FEW + 1)]
    for i, file in enumerate(files):
        file.write_bytes(first[i % 3])
    images, skipped = pixels.decode([*map(str, files)], 16, 3)
    assert skipped == {}
    expected = np.stack([noise(16, 16, 3, seed=i % 3) for i in range(len(files))])
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), expected)


def test_without_a_decoder_heic_is_left_out_and_the_remedy_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photographs(tmp_path, 18, 2)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    said = r"2 of 20 images cannot be read.*pip install openldn\[heif\].*skipped\.csv lists them"
    with pytest.warns(OpenLDNWarning, match=said) as warned:
        given = read(tmp_path)
    assert len(warned) == 1
    assert given.skipped == (("a/0.heic", image_files.NEEDS_HEIF), ("b/1.heic", image_files.NEEDS_HEIF))
    assert len(given.problem.names) == 18


@pytest.mark.parametrize("n_png", [0, 17])
def test_without_a_decoder_for_many_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_png: int
) -> None:
    write_photographs(tmp_path, n_png, 3)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    wrong = rf"3 of {n_png + 3} images are in HEIC format, which needs a decoder"
    with pytest.raises(UserError, match=rf"{wrong}; install it: pip install openldn\[heif\]$"):
        read(tmp_path)


# ------------------------------------------------------------------------------- formats that are not read


def write_with_others(folder: Path) -> tuple[str, ...]:
    """Images and, as half of all files, others that look like images; the names of these."""
    write_photographs(folder, 6, 0)
    others = ("a/0.CR2", "a/3.dng", "b/1.svg", "raws/1.nef", "unlabelled/2.jxl", "loose.psd")
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(16, 16)).save(folder / name, format="TIFF")
    save(folder / "a" / ".hidden.png").rename(folder / "a" / ".hidden.nef")
    (folder / "notes.txt").touch()
    return tuple(sorted(others))


def test_formats_that_are_not_read_are_listed(tmp_path: Path) -> None:
    """However many there are: cameras write each photograph twice. They make no class."""
    others = write_with_others(tmp_path)
    with pytest.warns(OpenLDNWarning) as warned:
        given = read(tmp_path)
    (message,) = (str(one.message) for one in warned)
    assert message.startswith(
        "6 of 12 images cannot be read and are left out, such as a/0.CR2 (its format is not"
    )
    assert message.endswith("; skipped.csv lists them")
    assert given.skipped == tuple((name, image_files.NOT_READ) for name in others)
    assert given.problem.classes == ("a", "b")
    assert len(given.problem.names) == len(given.kept) == 6


def test_formats_that_are_not_read_may_have_labels(tmp_path: Path) -> None:
    write_with_others(tmp_path / "photos")
    table = tmp_path / "labels.csv"
    table.write_text("image,label\na/0.png,x\n a/0.CR2,x\nb/1.png,y\nloose.psd,z\n")
    with pytest.warns(OpenLDNWarning, match="6 of 12 images"):
        given = read(tmp_path / "photos", table)
    assert given.problem.classes == ("x", "y")
    table.write_text("image,label\na/0.png,x\na/1.CR2,x\nb/1.png,y\n")
    with pytest.raises(UserError, match=r"names 1 images that are not in the folder \(such as 'a/1\.CR2'\)"):
        read(tmp_path / "photos", table)


def test_nothing_but_formats_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.dng").touch()
    said = r"there are no images that can be read \(a/1\.dng: its format is not read: .*\) in "
    with pytest.raises(UserError, match=said + r".*; it takes jpg, .*, avif, heic, heif, hif$"):
        read(tmp_path)
    with pytest.raises(UserError, match=said + ".*; give an image or a folder of images$"):
        reading.new_images(tmp_path, size=8, channels=3)


def test_new_images_in_formats_that_are_not_read_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = write_with_others(tmp_path)
    monkeypatch.setattr(reading, "AT_ONCE", 4)
    first, second = reading.new_images(tmp_path, size=16, channels=1)
    assert first.skipped == tuple((name, image_files.NOT_READ) for name in others)
    assert second.skipped == ()
    assert len(first.names) + len(second.names) == 6


# ----------------------------------------------------------------------------------------- what is broken


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


def spoil(folder: Path) -> dict[str, str]:
    """Files that no pixels can be had from, and a word of the reason."""
    whole = save(folder / "whole.png", seed=77, size=40).read_bytes()
    bad = {
        "text.png": (b"This is no image.", "not an image"),
        "empty.jpg": (b"", "empty"),
        "cut.png": (whole[: len(whole) // 2], ""),
        "bomb.png": (bomb(), "too many"),
    }
    for name, (data, _) in bad.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "pipe.png")
    (folder / "nowhere.png").symlink_to(folder / "gone.png")
    (folder / "itself.png").symlink_to(folder / "itself.png")
    others = {"pipe.png": "not a file", "nowhere.png": "not there", "itself.png": ""}
    return {name: word for name, (_, word) in bad.items()} | others


def test_what_cannot_be_read_is_left_out_and_listed(tmp_path: Path) -> None:
    for i in range(80):
        save(tmp_path / ("a", "b", "unlabelled")[i % 3] / f"{i}.png", seed=i)
    bad = spoil(tmp_path / "unlabelled")
    with pytest.warns(OpenLDNWarning, match=f"{len(bad)} of 88 images cannot be read.*skipped.csv"):
        given = read(tmp_path)
    assert len(given.problem.names) == len(given.problem.images) == 81
    reasons = {name.removeprefix("unlabelled/"): reason for name, reason in given.skipped}
    assert reasons.keys() == bad.keys()
    assert all(word in reasons[name] for name, word in bad.items())


# --------------------------------------------------------------------------------------- names and links


def test_odd_names_and_links(tmp_path: Path) -> None:
    data = tmp_path / "photos"
    names = [
        "a/with space.png",
        "a/two\nlines.PNG",
        "b/say \"hi\" 'so'.png",
        "b/鍵 ключ مفتاح.Png",
        "b/-rf.png",
    ]
    for i, name in enumerate(names):
        save(data / name, seed=i)
    save(data / "a" / ".hidden.png")
    (data / "a" / "Thumbs.db").write_bytes(b"x")
    (data / ".DS_Store").write_bytes(b"x")
    (data / "a" / "loop").symlink_to(data)  # a folder that holds itself
    for i in range(4):
        save(tmp_path / "elsewhere" / f"{i}.png", seed=50 + i)
    (data / "unlabelled").symlink_to(tmp_path / "elsewhere")  # a folder that lies elsewhere
    given = read(data)
    assert set(given.problem.names) == {*names, *(f"unlabelled/{i}.png" for i in range(4))}
    assert len(given.problem.unlabelled) == 4


def test_many_files_in_one_folder(tmp_path: Path) -> None:
    data = save(tmp_path / "unlabelled" / "0.png").read_bytes()
    for i in range(3000):
        (tmp_path / "unlabelled" / f"{i}.png").write_bytes(data)
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", seed=ord(name))
    with pytest.warns(OpenLDNWarning, match="2999 of 3002 images are exact copies"):
        assert len(read(tmp_path).problem.names) == 3002


# -------------------------------------------------------------------------------------------- duplicates


def test_copies_are_counted_and_contradictions_named(tmp_path: Path) -> None:
    for i, name in enumerate(["a/1.png", "a/2.png", "b/1.png", "unlabelled/1.png"]):
        save(tmp_path / name, seed=i)
    save(tmp_path / "b" / "copy.png", seed=0)
    save(tmp_path / "unlabelled" / "copy.bmp", seed=3)
    with pytest.warns(OpenLDNWarning) as said:
        read(tmp_path)
    messages = [str(w.message) for w in said]
    assert any("2 of 6 images are exact copies" in m for m in messages)
    assert any("1 images have another label" in m and "b/copy.png: a and b" in m for m in messages)


def test_without_copies_nothing_is_said(tmp_path: Path) -> None:
    for i, name in enumerate(["a/1.png", "b/1.png", "unlabelled/1.png"]):
        save(tmp_path / name, seed=i)
    read(tmp_path)  # warnings are errors here


# -------------------------------------------------------------------------------------- tables and splits


def test_a_table_alone(tmp_path: Path) -> None:
    """Paths relative to the file or absolute; labels as ever."""
    inside = [save(tmp_path / "table" / "img" / f"{i}.png", seed=i) for i in range(2)]
    outside = [save(tmp_path / "far" / f"{i}.png", seed=10 + i) for i in range(2)]
    table = tmp_path / "table" / "all.csv"
    names = ["img/0.png", str(outside[0]), "img/1.png", "../far/1.png"]
    labels = ["cat", "dog", "", "-1"]
    lines = ["image,label", *(f"{n},{y}" for n, y in zip(names, labels, strict=True))]
    table.write_text("\n".join(lines))
    problem = read(table).problem
    assert problem.names == tuple(names)
    assert problem.classes == ("cat", "dog")
    assert problem.labels.tolist() == [0, 1, -1, -1]
    pixels = problem.images[torch.arange(4)].numpy()
    expected = [np.asarray(Image.open(p)) for p in (inside[0], outside[0], inside[1], outside[1])]
    assert np.array_equal(pixels[:, 0], np.stack(expected))


def test_a_label_file_may_have_absolute_paths(tmp_path: Path) -> None:
    paths = [save(tmp_path / "photos" / f"{i}.png", seed=i) for i in range(4)]
    labels = tmp_path / "labels.csv"
    labels.write_text(f"image,label\n{paths[0]},x\n1.png,y\n")
    assert read(tmp_path / "photos", labels).problem.labels.tolist() == [0, 1, -1, -1]


def test_a_table_takes_no_labels_and_must_name_something(tmp_path: Path) -> None:
    table = tmp_path / "all.csv"
    table.write_text("image,label\n")
    with pytest.raises(UserError, match="names no image"):
        read(table)
    with pytest.raises(UserError, match="leave out --labels"):
        read(table, table)


def test_a_split_of_ones_own_images(tmp_path: Path) -> None:
    for i in range(6):
        save(tmp_path / "photos" / f"{i}.png", seed=i)
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"labelled": {"x": ["0.png"], "y": ["1.png"]}, "unlabelled": ["2.png"]}))
    assert read(tmp_path / "photos", split=str(split)).problem.labels.tolist() == [0, 1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"labelled": [], "unlabelled": []}',
        '{"labelled": {"x": ["a", "a"]}, "unlabelled": []}',
    ],
)
def test_a_split_that_is_none(tmp_path: Path, text: str) -> None:
    split = tmp_path / "split.json"
    split.write_text(text)
    with pytest.raises(UserError, match=r"split\.json"):
        read(Path("digits"), split=str(split), novel=None)


@pytest.mark.parametrize(
    "labelled", [{"0": ["digits/train/99999"]}, {"9": ["digits/train/1"]}, {"zebra": ["digits/train/1"]}]
)
def test_a_split_of_something_else(tmp_path: Path, labelled: dict[str, list[str]]) -> None:
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"labelled": labelled, "unlabelled": []}))
    with pytest.raises(UserError, match="no such image or no such known class"):
        read(Path("digits"), split=str(split), novel=None)


def test_names_that_begin_or_end_with_a_space(tmp_path: Path) -> None:
    for i, name in enumerate((" 0.png", "1.png", "2.png", "3.png")):
        save(tmp_path / "photos" / name, seed=i)
    table = tmp_path / "labels.csv"
    table.write_text('image,label\n" 0.png",a\n1.png , b\n')
    problem = read(tmp_path / "photos", table).problem
    assert {problem.names[i]: problem.classes[problem.labels[i]] for i in problem.labelled} == {
        " 0.png": "a",
        "1.png": "b",
    }
    table.write_text("image,label\n1.png,a\n ./1.png ,b\n")
    with pytest.raises(UserError, match=r"'1\.png' is labelled 'a' and 'b'"):
        read(tmp_path / "photos", table)
    alone = tmp_path / "photos/all.csv"
    alone.write_text('image,label\n" 0.png",a\n1.png ,b\n2.png,\n')
    assert read(alone).problem.names == (" 0.png", "1.png", "2.png")


def test_labels_by_absolute_paths_through_a_link(tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / "photos" / f"{i}.png", seed=i)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    table = tmp_path / "labels.csv"
    table.write_text(f"image,label\n{tmp_path / 'link' / '0.png'},a\n{tmp_path / 'photos' / '1.png'},b\n")
    for folder in ("link", "photos"):
        assert len(read(tmp_path / folder, table).problem.labelled) == 2
    table.write_text(f"image,label\n{tmp_path / 'link' / '0.png'},a\n0.png,b\n")
    with pytest.raises(UserError, match=r"'0\.png' is labelled 'a' and 'b'"):
        read(tmp_path / "photos", table)


@pytest.mark.parametrize(("made_with", "given_to"), [({"known": 0.3}, {}), ({"images": 500}, {})])
def test_a_split_is_given_back_whole_or_not_at_all(
    tmp_path: Path, made_with: dict[str, float], given_to: dict[str, float]
) -> None:
    split = tmp_path / "split.json"
    first = read(Path("digits"), novel=None, **made_with).problem
    split.write_text(json.dumps(splits.record(first)))
    with pytest.raises(UserError, match="use the --known and --images it was made with"):
        read(Path("digits"), split=str(split), novel=None, **given_to)
    again = read(Path("digits"), split=str(split), novel=None, seed=5, **made_with).problem
    assert torch.equal(first.labels, again.labels)


def test_a_named_set_takes_no_labels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits has labels of its own; leave out --labels"):
        reading.describe("digits", tmp_path / "labels.csv", Options())

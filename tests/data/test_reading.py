"""What is read of arrays, digits, CIFAR-10 and folders, against what was written."""

import csv
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from openldn.data import reading, sources, store, text_files
from openldn.data import split as splits
from openldn.data.problem import Problem, encode
from openldn.data.sources import arrays, digits, folder
from openldn.errors import UserError
from openldn.options import Options

Pixels = NDArray[np.uint8]


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(pixels: Pixels, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def by_name(problem: Problem) -> dict[str, Pixels]:
    """The pixels of each image as they were written: (h, w) or (h, w, 3)."""
    pixels = problem.images[torch.arange(len(problem.images))]
    rows = pixels.permute(0, 2, 3, 1).squeeze(3).numpy()
    return dict(zip(problem.names, rows, strict=True))


def read_folder(
    folder: Path, labels: Path | None, *, n_novel: int, flip: bool = True, size: int | None = None
) -> Problem:
    source = {"kind": "folder", "path": str(folder), "labels": None if labels is None else str(labels)}
    options = Options(novel=n_novel, flip=flip, size=size, preset="paper")
    return reading.read(source, options).problem


def read_arrays(X: Any, y: Any, **how: Any) -> Problem:
    return reading.read_arrays(X, y, n_novel=1, flip=True, **how).problem


def label_of(problem: Problem) -> dict[str, str | int | None]:
    classes: list[str | int | None] = [*problem.classes, None]
    return {name: classes[i] for name, i in zip(problem.names, problem.labels.tolist(), strict=True)}


# ------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 8, 1), (5, 8, 8, 3)])
@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, list])
def test_arrays_keep_every_pixel(shape: tuple[int, ...], form: Any) -> None:
    X = noise(*shape)
    problem = read_arrays(form(X.copy()), [0, 1, -1, -1, -1])
    channels = shape[3] if len(shape) == 4 else 1
    assert problem.images.shape == (5, channels, 8, 8)
    assert problem.images.dtype == torch.uint8
    full = X.reshape(5, 8, 8, channels)
    for i in range(5):
        for c in range(channels):
            assert np.array_equal(problem.images[i, c].numpy(), full[i, :, :, c])
    assert problem.names == ("0", "1", "2", "3", "4")


def test_arrays_may_be_views_or_read_only() -> None:
    X = noise(10, 8, 8)
    X.setflags(write=False)
    pixels = arrays.read_images(X[::-2, :, ::-1])
    assert np.array_equal(pixels[:, 0].numpy(), X[::-2, :, ::-1])


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 8, 8, 1), (4, 8, 8, 3)])
def test_arrays_are_neither_changed_nor_aliased(shape: tuple[int, ...]) -> None:
    X, y = noise(*shape), np.array([3, -1, 5, -1])
    X_before, y_before = X.copy(), y.copy()
    problem = read_arrays(X, y)
    problem.images.zero_()
    problem.labels.zero_()
    assert np.array_equal(X, X_before)
    assert np.array_equal(y, y_before)
    problem = read_arrays(X, y)
    X[:], y[:] = 0, 0
    assert int(problem.images.max()) > 0
    assert problem.labels.tolist() == [0, -1, 1, -1]


@pytest.mark.parametrize(
    "form",
    [
        lambda paths: [str(p) for p in paths],
        lambda paths: paths,
        lambda paths: tuple(paths),
        lambda paths: [str(paths[0]), *paths[1:]],
        lambda paths: np.array([str(p) for p in paths]),
        lambda paths: np.array(paths, dtype=object),
    ],
    ids=["str", "Path", "tuple", "both", "array of str", "array of Path"],
)
def test_arrays_may_be_paths(tmp_path: Path, form: Any) -> None:
    X = noise(3, 8, 8, 3)
    paths = [save(x, tmp_path / f"{i}.png") for i, x in enumerate(X)]
    problem = read_arrays(form(paths), ["a", "b", ""])
    assert problem.names == tuple(map(str, paths))
    assert np.array_equal(np.stack([*by_name(problem).values()]), X)


@pytest.mark.parametrize(
    ("y", "ids", "classes"),
    [
        ([10, -1, 9, 10], [1, -1, 0, 1], (9, 10)),
        ((10, -1, 9, 10), [1, -1, 0, 1], (9, 10)),
        (np.array([10, -1, 9, 10]), [1, -1, 0, 1], (9, 10)),
        (np.array([10, -1, 9, 10], np.int8), [1, -1, 0, 1], (9, 10)),
        (np.array([10, -1, 9, 10], object), [1, -1, 0, 1], (9, 10)),
        ([np.int64(10), -1, np.int32(9), 10], [1, -1, 0, 1], (9, 10)),
        (np.array([2, 1, 0, 2], np.uint8), [2, 1, 0, 2], (0, 1, 2)),
        (["dog", "", "cat", None], [1, -1, 0, -1], ("cat", "dog")),
        (["10", "9", "", None], [0, 1, -1, -1], ("10", "9")),
        ([None, None, None, "b"], [-1, -1, -1, 0], ("b",)),
        (np.array(["dog", "", "cat", ""]), [1, -1, 0, -1], ("cat", "dog")),
        (np.array(["dog", "", "cat", None], object), [1, -1, 0, -1], ("cat", "dog")),
        ([np.str_("dog"), "", "cat", "é"], [1, -1, 0, 2], ("cat", "dog", "é")),
    ],
)
def test_labels(y: Any, ids: list[int], classes: tuple[str | int, ...]) -> None:
    labels, found = encode(arrays.read_labels(y))
    assert labels.dtype == torch.int64
    assert labels.tolist() == ids
    assert found == classes
    assert {type(name) for name in found} <= {str, int}


# ------------------------------------------------------------------------------------------- digits


def test_digits() -> None:
    whole, data = sources.read_named("digits", None), load_digits()
    assert len(whole.train.pixels) + len(whole.test.pixels) == len(data.target) == 1797
    assert whole.flip is False
    assert whole.classes == tuple(range(10))
    assert (int(whole.train.pixels.min()), int(whole.train.pixels.max())) == (0, 255)
    test = np.zeros(1797, bool)
    for k in range(10):
        of_class = [i for i in range(1797) if data.target[i] == k]
        test[[of_class[j] for j in range(len(of_class)) if j % 5 == 0]] = True
    for pixels, labels, rows in (
        (whole.train.pixels, whole.train.labels, ~test),
        (whole.test.pixels, whole.test.labels, test),
    ):
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (rows.sum(), 1, 8, 8)
        assert np.array_equal(labels, data.target[rows])
        assert np.abs(pixels[:, 0].numpy() - data.images[rows] * 255 / 16).max() <= 0.5
    seen = {image.numpy().tobytes() for image in whole.train.pixels}
    assert not any(image.numpy().tobytes() in seen for image in whole.test.pixels)


# ------------------------------------------------------------------------------------------ cifar10


def write_cifar10(home: Path, n: int = 4) -> tuple[Pixels, list[int], Pixels, list[int]]:
    """A miniature in the publisher's layout: a label byte, then red, green and blue planes row by row."""
    at = home / "cifar-10-batches-bin"
    at.mkdir(parents=True)
    pixels, labels = noise(6 * n, 32, 32, 3), [i % 10 for i in range(6 * n)]
    for part, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        with (at / name).open("wb") as f:
            for i in range(part * n, (part + 1) * n):
                f.write(bytes([labels[i]]))
                for colour in range(3):
                    for row in range(32):
                        f.write(bytes(pixels[i, row, column, colour] for column in range(32)))
    return pixels[: 5 * n], labels[: 5 * n], pixels[5 * n :], labels[5 * n :]


@pytest.mark.parametrize("below", ["cifar10", "."])
@pytest.mark.parametrize("told", ["data_dir", "environment"])
def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, told: str) -> None:
    pixels, labels, test_pixels, test_labels = write_cifar10(tmp_path / below)
    if told == "environment":
        monkeypatch.setenv("OPENLDN_DATA", str(tmp_path))
    else:
        monkeypatch.setenv("OPENLDN_DATA", str(tmp_path / "elsewhere"))
    whole = sources.read_named("cifar10", tmp_path if told == "data_dir" else None)
    assert np.array_equal(whole.train.pixels.permute(0, 2, 3, 1).numpy(), pixels)
    assert np.array_equal(whole.test.pixels.permute(0, 2, 3, 1).numpy(), test_pixels)
    assert whole.train.labels.tolist() == labels
    assert whole.test.labels.tolist() == test_labels
    assert whole.classes[0] == "airplane"
    assert whole.classes[9] == "truck"
    assert len(whole.classes) == 10
    assert whole.flip is True
    assert sources.find("cifar10", tmp_path) == tmp_path / below


def test_cifar10_is_sought_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENLDN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pixels, *_ = write_cifar10(tmp_path / "openldn" / "cifar10")
    assert len(sources.read_named("cifar10", None).train) == len(pixels)


@pytest.mark.parametrize("name", ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "label", "folder"])
def test_cifar10_that_is_damaged(tmp_path: Path, name: str, damage: str) -> None:
    write_cifar10(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / name
    data = bytearray(file.read_bytes())
    if damage in ("missing", "folder"):
        file.unlink()
    if damage == "truncated":
        file.write_bytes(data[:-1])
    if damage == "empty":
        file.write_bytes(b"")
    if damage == "label":
        data[3073] = 10
        file.write_bytes(data)
    if damage == "folder":
        file.mkdir()
    with pytest.raises(UserError) as e:
        sources.read_named("cifar10", tmp_path)
    message = str(e.value)
    assert name in message
    assert str(file.parent) in message
    assert "cifar-10-binary.tar.gz" in message
    if damage == "missing":
        assert "--data-dir" in message
        assert sources.find("cifar10", tmp_path) is None
    if damage == "label":
        assert "label 10" in message


# ------------------------------------------------------------------------------ folders: what is what


@pytest.mark.parametrize("unlabelled", ["unlabelled", "unlabeled", "Unlabelled", "UNLABELED"])
def test_class_folders(tmp_path: Path, unlabelled: str) -> None:
    names = ["dog/1.png", "dog/2.png", "cat/a/b/1.png", "cat/2.png", f"{unlabelled}/1.png"]
    names += [f"{unlabelled}/cat/2.png", "ключ 鍵/1.png"]
    written = {name: noise(8, 8, seed=i) for i, name in enumerate(names)}
    for name, pixels in written.items():
        save(pixels, tmp_path / name)
    problem = read_folder(tmp_path, None, n_novel=2, flip=False)
    assert problem.classes == ("cat", "dog", "ключ 鍵")
    assert problem.n_novel == 2
    assert problem.flip is False
    assert label_of(problem) == {
        name: None if name.startswith(unlabelled) else name.split("/")[0] for name in names
    }
    read = by_name(problem)
    assert all(np.array_equal(read[name], written[name]) for name in names)


def test_other_files_are_left_out(tmp_path: Path) -> None:
    at = tmp_path / ".hidden above"
    suffixes = ["PNG", "Jpg", "JPEG", "webp", "BMP", "tif", "TIFF", "gif"]
    kept = [save(noise(8, 8, seed=i), at / "a" / f"{i}.{suffix}") for i, suffix in enumerate(suffixes)]
    for hidden in ("a/.1.png", ".git/1.png", "a/.thumbnails/b/1.png"):
        save(noise(8, 8), at / hidden)
    (at / "a" / "notes.txt").write_text("none of these is an image")
    (at / "a" / "noend").write_text("none of these is an image")
    (at / "a" / "folder.png").mkdir()
    save(noise(8, 8, seed=99), at / "unlabelled" / "1.png")
    problem = read_folder(at, None, n_novel=1)
    assert problem.names == (*(f"a/{path.name}" for path in kept), "unlabelled/1.png")


LABELS = {"a.png": "cat", "b.png": "dog", "c.png": "", "e.png": "cat"}  # of a to e: d has no row
CSV = {
    "plain": b"image,label\na.png,cat\nb.png,dog\nc.png,\ne.png,cat\n",
    "no last newline": b"image,label\na.png,cat\nb.png,dog\nc.png,\ne.png,cat",
    "byte order mark": b"\xef\xbb\xbfimage,label\na.png,cat\nb.png,dog\nc.png,\ne.png,cat\n",
    "CRLF": b"image,label\r\na.png,cat\r\nb.png,dog\r\nc.png,\r\ne.png,cat\r\n",
    "spaces": b" image , label\n a.png, cat \nb.png\t,dog\nc.png,  \n  e.png,cat\n",
    "upper case": b"Image,LABEL\na.png,cat\nb.png,dog\nc.png,\ne.png,cat\n",
    "quotes": b'"image","label"\n"a.png","cat"\n"b.png","dog"\n"c.png",""\n"e.png","cat"\n',
    "more columns": b"n,label,image,by\n1,cat,a.png,me\n2,dog,b.png,me\n3,,c.png,\n4,cat,e.png,you\n",
    "short rows": b"image,label\na.png,cat\nb.png,dog\nc.png\ne.png,cat\n",
    "empty rows": b"image,label\n\na.png,cat\n,\nb.png,dog\nc.png,\n , \ne.png,cat\n\n",
    "empty fields": b"image,label\na.png,cat,,\nb.png,dog\nc.png,\ne.png,cat,\n",
    "dot slash": b"image,label\n./a.png,cat\nb.png,dog\n./c.png,\ne.png,cat\n",
    "repeated rows": b"image,label\na.png,cat\na.png,cat\nb.png,dog\nc.png,\ne.png,cat\n./a.png,cat\n",
}


@pytest.mark.parametrize("form", CSV)
def test_label_file(tmp_path: Path, form: str) -> None:
    for i, name in enumerate("abcde"):
        save(noise(8, 8, seed=i), tmp_path / "photos" / f"{name}.png")
    (tmp_path / "labels.csv").write_bytes(CSV[form])
    problem = read_folder(tmp_path / "photos", tmp_path / "labels.csv", n_novel=1)
    assert problem.classes == ("cat", "dog")
    assert label_of(problem) == {f"{name}.png": LABELS.get(f"{name}.png") or None for name in "abcde"}
    assert all(
        np.array_equal(by_name(problem)[f"{name}.png"], noise(8, 8, seed=i)) for i, name in enumerate("abcde")
    )


def test_label_file_with_difficult_names(tmp_path: Path) -> None:
    """Quoted as the csv module does it; class folders mean nothing once there is a label file."""
    names = ["a,b.png", "two\nlines.png", 'say "hi".png', "Überfall.png", "鍵/ключ مفتاح.png", "cat/1.png"]
    for i, name in enumerate(names):
        save(noise(8, 8, seed=i), tmp_path / "photos" / name)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([("image", "label"), *((name, f"{i % 2}, «é»\n") for i, name in enumerate(names[:-1]))])
    (tmp_path / "labels.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
    problem = read_folder(tmp_path / "photos", tmp_path / "labels.csv", n_novel=1)
    assert problem.classes == ("0, «é»", "1, «é»")
    expected = {name: f"{i % 2}, «é»" for i, name in enumerate(names[:-1])}
    assert label_of(problem) == {**expected, "cat/1.png": None}


def test_size_may_be_told(tmp_path: Path) -> None:
    for i, name in enumerate(["a/1.png", "b/1.png", "unlabelled/1.png"]):
        save(noise(20 + i, 30), tmp_path / name)
    assert read_folder(tmp_path, None, n_novel=1, size=16).images.shape == (3, 1, 16, 16)
    for size in (0, -4, 7, 100_000):
        with pytest.raises(UserError, match=f"{size} pixels"):
            read_folder(tmp_path, None, n_novel=1, size=size)


def test_a_name_that_no_csv_file_can_hold(tmp_path: Path) -> None:
    """Better now than when the predictions are to be written."""
    for name in ("a/1.png", "b/1.png", "unlabelled/\udcff.png"):
        try:
            save(noise(8, 8), tmp_path / name)
        except (OSError, UnicodeEncodeError):
            pytest.skip("this file system has no such names")
    with pytest.raises(UserError, match="rename") as e:
        read_folder(tmp_path, None, n_novel=1)
    assert "udcff" in str(e.value)


def test_of_arrays_that_are_not_square_the_centre_is_taken() -> None:
    X = np.arange(2 * 10 * 14, dtype=np.uint8).reshape(2, 10, 14)
    pixels = arrays.read_images(X)
    assert (pixels[:, 0].numpy() == X[:, :, 2:12]).all()
    pixels = arrays.read_images(X.transpose(0, 2, 1))
    assert (pixels[:, 0].numpy() == X.transpose(0, 2, 1)[:, 2:12]).all()


# ------------------------------------------------------------------------------------------ data sources


def test_what_cannot_be_a_data_source(tmp_path: Path) -> None:
    image, other = save(noise(8, 8), tmp_path / "cat.JPG"), tmp_path / "notes.txt"
    other.touch()
    for data, labels, words in (
        (image, None, "cat.JPG is an image, not a folder; give a folder of images"),
        (other, None, "notes.txt is a file, not a folder"),
        (tmp_path / "none", None, "there is no folder .*none', nor a data set of that name"),
        ("a\0b", None, "remove the NUL character"),
        (tmp_path, "a\0b", "remove the NUL character"),
    ):
        with pytest.raises(UserError, match=words):
            reading.describe(data, labels, Options())
    with pytest.raises(UserError, match="--images does not apply to a folder; leave it out"):
        reading.describe(tmp_path, None, Options(images=5))


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "folder", "large", "none"])
def test_labels_and_splits_are_regular_files_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Others would block, or be read until memory ends."""
    monkeypatch.setattr(text_files, "MOST_BYTES", 1000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("image,label\n" * 100)
    save(noise(8, 8), tmp_path / "photos" / "1.png")
    file = tmp_path / name
    for read in (folder.read_labels, splits.read):
        with pytest.raises(UserError, match=re.escape(str(file))):
            read(file)


def test_labels_with_a_nul_character_are_refused(tmp_path: Path) -> None:
    """numpy would take "a" and "a\0" for one."""
    for name in "abc":
        save(noise(8, 8, seed=ord(name)), tmp_path / "photos" / f"{name}.png")
    (tmp_path / "labels.csv").write_bytes(b"image,label\na.png,x\nb.png,x\0\n")
    with pytest.raises(UserError, match=r"the label 'x\\x00' has a NUL character"):
        read_folder(tmp_path / "photos", tmp_path / "labels.csv", n_novel=1)
    with pytest.raises(UserError, match="NUL"):
        read_arrays(noise(3, 8, 8), ["x", "x\0", ""])


@pytest.mark.parametrize("label", [-2, 2**53, 2**63 - 1])
def test_integer_labels_out_of_range(label: int) -> None:
    with pytest.raises(UserError, match=f"the label {label} is negative or too large"):
        read_arrays(noise(3, 8, 8), [0, label, -1])


def test_arrays_are_not_resized_but_files_are(tmp_path: Path) -> None:
    X = noise(3, 12, 12, 3)
    assert read_arrays(X, [0, 1, -1], size=12).images.shape == (3, 3, 12, 12)
    with pytest.raises(UserError, match="the images have 12 pixels, but 16 pixels are needed; resize them"):
        read_arrays(X, [0, 1, -1], size=16)
    paths = [save(x, tmp_path / f"{i}.png") for i, x in enumerate(X)]
    assert read_arrays(paths, [0, 1, -1], size=16).images.shape == (3, 3, 16, 16)


# -------------------------------------------------------------------------------------------- new images


def photos(tmp_path: Path) -> tuple[list[Path], Pixels]:
    """A dozen images in folders, and their pixels."""
    X = noise(12, 8, 8, 3)
    return [save(x, tmp_path / "photos" / f"{i % 3}" / f"{i:02}.png") for i, x in enumerate(X)], X


def test_new_images_are_read_as_training_images_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, X = photos(tmp_path)
    bad = tmp_path / "photos" / "0" / "bad.png"
    bad.write_text("no image")
    monkeypatch.setattr(reading, "AT_ONCE", 5)
    names = [f"{i % 3}/{i:02}.png" for i in range(12)]
    for given, expected in (
        (tmp_path / "photos", sorted(names)),
        (str(tmp_path / "photos"), sorted(names)),
        ([*paths, bad], [*map(str, paths)]),
    ):
        parts = [*reading.new_images(given, size=8, channels=3)]
        assert [len(part.names) + len(part.skipped) for part in parts] == [5, 5, 3]
        assert [name for part in parts for name in part.names] == expected
        ((name, reason),) = (pair for part in parts for pair in part.skipped)
        assert name.endswith("0/bad.png")
        assert "not an image" in reason
        pixels = torch.cat([part.images for part in parts]).permute(0, 2, 3, 1).numpy()
        assert np.array_equal(pixels, X[[int(name[-6:-4]) for name in expected]])


def test_a_new_image_alone_and_new_images_in_an_array(tmp_path: Path) -> None:
    (path, *_), X = photos(tmp_path)
    (part,) = reading.new_images(path, size=8, channels=3)
    assert part.names == (str(path),)
    assert np.array_equal(part.images[0].permute(1, 2, 0).numpy(), X[0])
    (part,) = reading.new_images(X, size=8, channels=3)
    assert part.names == tuple(map(str, range(12)))
    assert np.array_equal(part.images.permute(0, 2, 3, 1).numpy(), X)


def test_new_images_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_text("no image")
    for given, words in (
        (tmp_path / "none", "there is nothing at"),
        ("a\0b", "there is nothing at"),
        (tmp_path / "empty", "there are no images in"),
        (noise(2, 9, 9, 3), "the images have 9 pixels, but 8 pixels are needed"),
        (noise(2, 8, 8), "trained on colour images, but these are grey"),
        ([], "there are no images"),
    ):
        with pytest.raises(UserError, match=words):  # at once, not when they are asked for
            reading.new_images(given, size=8, channels=3)
    for given in (tmp_path / "bad.png", [tmp_path / "bad.png"] * 3):
        with pytest.raises(
            UserError, match=r"bad\.png cannot be read \(it is not an image.*give an image or"
        ):
            [*reading.new_images(given, size=8, channels=3)]
    monkeypatch.setattr(reading, "AT_ONCE", 2)
    for i in range(5):
        (tmp_path / "empty" / f"{i}.png").write_text("no image")
    parts = reading.new_images(tmp_path / "empty", size=8, channels=3)
    assert [len(next(parts).skipped) for _ in range(2)] == [2, 2]
    with pytest.raises(UserError, match=rf"{tmp_path}/empty/4\.png cannot be read"):
        next(parts)


# ------------------------------------------------------------------------------------------------- about


@pytest.mark.parametrize(
    "chosen",
    [{}, {"images": 200}, {"known": 0.3}, {"labelled": 0.1, "seed": 4}, {"images": 73, "known": 0.8}],
    ids=str,
)
def test_about_is_what_reading_gives(chosen: dict[str, Any]) -> None:
    options = Options(**chosen)
    source = reading.describe("digits", None, options)
    n_images, novel_share = reading.about(source, options)
    given = reading.read(source, options)
    assert n_images == len(given.problem.images)
    train = digits.read(Path()).train
    truth = dict(zip(train.names, train.labels.tolist(), strict=True))
    classes = [truth[given.problem.names[i]] for i in given.problem.unlabelled.tolist()]
    assert novel_share == pytest.approx(np.mean([k >= given.problem.n_known for k in classes]))


def test_about_opens_no_image(tmp_path: Path) -> None:
    """Also of photographs `images` counts, and of one's own images there is no truth."""
    for k in range(4):
        for i in range(10):
            for part in ("small-train", "small-validation"):
                (tmp_path / f"named/{part}/{k}").mkdir(parents=True, exist_ok=True)
                (tmp_path / f"named/{part}/{k}/{i}.jpg").touch()
    options = Options(images=20, labelled=0.4, data_dir=str(tmp_path / "named"))
    about = reading.about(reading.describe("herbarium19", None, options), options)
    assert about == (20, pytest.approx(10 / 16))
    (tmp_path / "own/a").mkdir(parents=True)
    (tmp_path / "own/a/1.png").touch()
    assert reading.about(reading.describe(tmp_path / "own", None, Options()), Options()) == (1, None)


# ------------------------------------------------------------------------------------------------- cache


def test_the_cache_is_where_it_has_always_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("other systems have other places")
    for name in ("OPENLDN_CACHE", "OPENLDN_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache() == tmp_path / ".cache/openldn/store"
    assert sources.home(None) == tmp_path / ".cache/openldn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache() == tmp_path / "xdg/openldn/store"
    assert sources.home(None) == tmp_path / "xdg/openldn"
    monkeypatch.setenv("OPENLDN_CACHE", "here")
    monkeypatch.setenv("OPENLDN_DATA", "there")
    assert (store.cache(), sources.home(None), sources.home("told")) == (
        Path("here"),
        Path("there"),
        Path("told"),
    )

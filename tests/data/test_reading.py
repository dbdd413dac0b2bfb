"""What the readers make of arrays, digits, CIFAR-10 and folders, against what was written."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from openldn.config import Options
from openldn.data import images, reading, sources
from openldn.data.problem import Problem
from openldn.data.sources import arrays
from openldn.errors import UserError

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


def chosen(paths: list[Path]) -> tuple[int, int]:
    return images.choose_size([images.header(path) for path in paths])


def label_of(problem: Problem) -> dict[str, str | int | None]:
    classes: list[str | int | None] = [*problem.classes, None]
    return {name: classes[i] for name, i in zip(problem.names, problem.labels.tolist(), strict=True)}


# ------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 8, 1), (5, 8, 8, 3)])
@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, list])
def test_arrays_keep_every_pixel(shape: tuple[int, ...], form: Any) -> None:
    X = noise(*shape)
    problem = arrays.read(form(X.copy()), [0, 1, -1, -1, -1], n_novel=2).problem
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
    pixels, _ = arrays.read_images(X[::-2, :, ::-1])
    assert np.array_equal(pixels[:, 0].numpy(), X[::-2, :, ::-1])


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 8, 8, 1), (4, 8, 8, 3)])
def test_arrays_are_neither_changed_nor_aliased(shape: tuple[int, ...]) -> None:
    X, y = noise(*shape), np.array([3, -1, 5, -1])
    X_before, y_before = X.copy(), y.copy()
    problem = arrays.read(X, y, n_novel=1).problem
    problem.images.zero_()
    problem.labels.zero_()
    assert np.array_equal(X, X_before)
    assert np.array_equal(y, y_before)
    problem = arrays.read(X, y, n_novel=1).problem
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
    problem = arrays.read(form(paths), ["a", "b", ""], n_novel=1).problem
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
    labels, found = arrays.read_labels(y)
    assert labels.dtype == torch.int64
    assert labels.tolist() == ids
    assert found == classes
    assert {type(name) for name in found} <= {str, int}


# ------------------------------------------------------------------------------------------- digits


def test_digits() -> None:
    whole, data = sources.read_named("digits", None), load_digits()
    assert len(whole.images) + len(whole.test_images) == len(data.target) == 1797
    assert whole.flip is False
    assert whole.classes == tuple(range(10))
    assert (int(whole.images.min()), int(whole.images.max())) == (0, 255)
    test = np.zeros(1797, bool)
    for k in range(10):
        of_class = [i for i in range(1797) if data.target[i] == k]
        test[[of_class[j] for j in range(len(of_class)) if j % 5 == 0]] = True
    for pixels, labels, rows in (
        (whole.images, whole.labels, ~test),
        (whole.test_images, whole.test_labels, test),
    ):
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (rows.sum(), 1, 8, 8)
        assert np.array_equal(labels, data.target[rows])
        assert np.abs(pixels[:, 0].numpy() - data.images[rows] * 255 / 16).max() <= 0.5
    seen = {image.numpy().tobytes() for image in whole.images}
    assert not any(image.numpy().tobytes() in seen for image in whole.test_images)


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
    assert np.array_equal(whole.images.permute(0, 2, 3, 1).numpy(), pixels)
    assert np.array_equal(whole.test_images.permute(0, 2, 3, 1).numpy(), test_pixels)
    assert whole.labels.tolist() == labels
    assert whole.test_labels.tolist() == test_labels
    assert whole.classes[0] == "airplane"
    assert whole.classes[9] == "truck"
    assert len(whole.classes) == 10
    assert whole.flip is True
    assert sources.find("cifar10", tmp_path) == tmp_path / below


def test_cifar10_is_sought_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENLDN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pixels, *_ = write_cifar10(tmp_path / "openldn" / "cifar10")
    assert len(sources.read_named("cifar10", None).images) == len(pixels)


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


# --------------------------------------------------------------------------- folders: what is seen

TURNED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].T,
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", TURNED)
def test_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    pixels, exif = noise(8, 8), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "1.png", exif=exif)
    assert np.array_equal(images.read(tmp_path / "1.png", 8, 1)[0], TURNED[orientation](pixels))


def seen(image: Image.Image, path: Path, channels: int, **how: Any) -> NDArray[np.int64]:
    """What is read of an image that was written.  (h, w, c)"""
    image.save(path, **how)
    size = image.size[0]
    return images.read(path, size, channels).transpose(1, 2, 0).astype(np.int64)


def over_white(colour: Pixels, alpha: Pixels) -> NDArray[np.float64]:
    share = alpha[..., None] / 255
    return share * colour + (1 - share) * 255


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_transparent_colour_lies_over_white(tmp_path: Path, suffix: str) -> None:
    pixels = noise(8, 8, 4)
    pixels[0, :, 3], pixels[1, :, 3] = 0, 255
    read = seen(Image.fromarray(pixels), tmp_path / f"1.{suffix}", 3)
    assert np.abs(read - over_white(pixels[..., :3], pixels[..., 3])).max() <= 1
    assert (read[0] == 255).all()
    assert np.array_equal(read[1], pixels[1, :, :3])


def test_transparent_grey_lies_over_white_and_is_grey(tmp_path: Path) -> None:
    pixels = noise(8, 8, 2)
    read = seen(Image.frombytes("LA", (8, 8), pixels.tobytes()), tmp_path / "1.png", 1)
    assert np.abs(read - over_white(pixels[..., :1], pixels[..., 1])).max() <= 1
    assert chosen([tmp_path / "1.png"]) == (8, 1)


def test_palette(tmp_path: Path) -> None:
    colours, places = noise(16, 3), noise(8, 8) % 16
    image = Image.frombytes("P", (8, 8), places.tobytes())
    image.putpalette(colours.tobytes())
    read = seen(image, tmp_path / "1.png", 3)
    assert np.array_equal(read, colours[places])
    assert chosen([tmp_path / "1.png"]) == (8, 3)
    read = seen(image, tmp_path / "2.png", 3, transparency=int(places[2, 3]))
    clear = places == places[2, 3]
    assert (read[clear] == 255).all()
    assert np.array_equal(read[~clear], colours[places][~clear])


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    pixels = noise(8, 8) > 127
    read = seen(Image.fromarray(pixels), tmp_path / "1.png", 1)
    assert np.array_equal(read[..., 0], np.where(pixels, 255, 0))
    assert chosen([tmp_path / "1.png"]) == (8, 1)


def test_grey_stays_as_it_is_and_is_equal_in_all_colours(tmp_path: Path) -> None:
    pixels = noise(8, 8)
    assert np.array_equal(seen(Image.fromarray(pixels), tmp_path / "1.png", 1)[..., 0], pixels)
    read = seen(Image.fromarray(pixels), tmp_path / "2.png", 3)
    assert all(np.array_equal(read[..., c], pixels) for c in range(3))


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled(tmp_path: Path, suffix: str, channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (8, 8)).astype(np.uint16)
    values[0, 0], values[0, 1] = 0, 65535
    read = seen(Image.fromarray(values), tmp_path / f"1.{suffix}", channels)
    assert np.abs(read - values[..., None] / 65535 * 255).max() <= 0.5
    assert chosen([tmp_path / f"1.{suffix}"]) == (8, 1)


def test_numbers_without_a_scale_are_refused(tmp_path: Path) -> None:
    """Nobody can tell what white is in them; clipped, they would be black or white all over."""
    for pixels in (np.ones((8, 8), np.float32), np.full((8, 8), 100_000, np.int32)):
        Image.fromarray(pixels).save(tmp_path / "1.tif")
        with pytest.raises(images.Unreadable, match="8"):
            images.read(tmp_path / "1.tif", 8, 1)


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([(8, 8)] * 3, 8),
        ([(28, 28)] * 3, 28),
        ([(64, 64)] * 3, 64),
        ([(7, 7)] * 3, 32),
        ([(65, 65)] * 3, 64),
        ([(20, 20), (20, 20), (24, 24)], 32),
        ([(20, 24)] * 3, 32),
        ([(40, 30), (60, 70), (60, 70)], 64),
        ([(100, 500), (90, 90), (120, 91)], 96),
        ([(120, 150), (1, 1), (400, 300)], 128),
        ([(300, 200)] * 3, 224),
        ([(500, 900)] * 3, 224),
    ],
)
def test_size(tmp_path: Path, shapes: list[tuple[int, int]], size: int) -> None:
    paths = [save(noise(*shape), tmp_path / f"{i}.png") for i, shape in enumerate(shapes)]
    assert chosen(paths) == (size, 1)
    (pixels,) = arrays.in_parts(paths, *chosen(paths))
    assert pixels.shape == (len(paths), 1, size, size)


def test_size_may_be_told(tmp_path: Path) -> None:
    for i, name in enumerate(["a/1.png", "b/1.png", "unlabelled/1.png"]):
        save(noise(20 + i, 30), tmp_path / name)
    assert read_folder(tmp_path, None, n_novel=1, size=16).images.shape == (3, 1, 16, 16)
    for size in (0, -4, 7, 100_000):
        with pytest.raises(UserError, match=f"{size} pixels"):
            read_folder(tmp_path, None, n_novel=1, size=size)


@pytest.mark.parametrize("lying", [True, False])
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_the_centre_is_cut_out_and_nothing_is_squashed(tmp_path: Path, lying: bool, scale: int) -> None:
    """A frame of 200 at both ends goes; a disc in the middle stays one."""
    y, x = np.mgrid[: 32 * scale, : 64 * scale] + 0.5
    disc = (x - 32 * scale) ** 2 + (y - 16 * scale) ** 2 < (12 * scale) ** 2
    pixels = np.where(disc, 100, 0).astype(np.uint8)
    pixels[:, : 16 * scale] = pixels[:, 48 * scale :] = 200
    path = save(pixels if lying else pixels.T.copy(), tmp_path / "1.png")
    read = images.read(path, 32, 1)[0]
    if scale == 1:
        assert np.array_equal(read, pixels[:, 16:48])
    assert read.max() < 150
    inside = read > 50
    assert inside.any(axis=0).sum() == inside.any(axis=1).sum() == 24
    assert abs(int(inside.sum()) - np.pi * 12**2) < 12


def test_grey_only_if_all_are_grey(tmp_path: Path) -> None:
    """One colour image among hundreds counts, wherever it is."""
    paths = [save(noise(8, 8), tmp_path / f"{i:03}.png") for i in range(401)]
    assert chosen(paths) == (8, 1)
    save(noise(8, 8, 3), paths[1])
    assert chosen(paths) == (8, 3)


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
    pixels, _ = arrays.read_images(X)
    assert (pixels[:, 0].numpy() == X[:, :, 2:12]).all()
    pixels, _ = arrays.read_images(X.transpose(0, 2, 1))
    assert (pixels[:, 0].numpy() == X.transpose(0, 2, 1)[:, 2:12]).all()

"""Decoded image files against what was written, and the files that are found."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from openldn.data import image_files
from openldn.data.image_files import Decoded
from openldn.errors import UserError

Pixels = NDArray[np.uint8]


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(pixels: Pixels, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def decoded(path: Path, size: int, channels: int) -> Pixels:
    """One image.  (size, size, c)"""
    (one,) = image_files.decode([str(path)], size, channels)
    assert isinstance(one, Decoded), one
    return np.frombuffer(one.pixels, np.uint8).reshape(size, size, channels)


def chosen(paths: list[Path]) -> tuple[int, int]:
    headers = image_files.headers([str(path) for path in paths])
    assert not any(isinstance(header, str) for header in headers)
    return image_files.choose_size(headers)


# ------------------------------------------------------------------------------------------- decoding

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
    assert np.array_equal(decoded(tmp_path / "1.png", 8, 1)[..., 0], TURNED[orientation](pixels))


def seen(image: Image.Image, path: Path, channels: int, **how: Any) -> NDArray[np.int64]:
    """What is read of an image that was written.  (h, w, c)"""
    image.save(path, **how)
    size = image.size[0]
    return decoded(path, size, channels).astype(np.int64)


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
        (reason,) = image_files.decode([str(tmp_path / "1.tif")], 8, 1)
        assert isinstance(reason, str)
        assert "8" in reason


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
    made = image_files.decode([*map(str, paths)], *chosen(paths))
    assert [len(one.pixels) for one in made] == [size * size] * len(paths)


@pytest.mark.parametrize("lying", [True, False])
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_the_centre_is_cut_out_and_nothing_is_squashed(tmp_path: Path, lying: bool, scale: int) -> None:
    """A frame of 200 at both ends goes; a disc in the middle stays one."""
    y, x = np.mgrid[: 32 * scale, : 64 * scale] + 0.5
    disc = (x - 32 * scale) ** 2 + (y - 16 * scale) ** 2 < (12 * scale) ** 2
    pixels = np.where(disc, 100, 0).astype(np.uint8)
    pixels[:, : 16 * scale] = pixels[:, 48 * scale :] = 200
    path = save(pixels if lying else pixels.T.copy(), tmp_path / "1.png")
    read = decoded(path, 32, 1)[..., 0]
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


def test_of_an_animation_the_first_frame_is_read(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((8, 8), v, np.uint8)) for v in (10, 200, 90)]
    frames[0].save(tmp_path / "1.gif", save_all=True, append_images=frames[1:])
    assert (decoded(tmp_path / "1.gif", 8, 1) == 10).all()


def test_of_a_photograph_with_several_pictures_the_first_is_read(tmp_path: Path) -> None:
    """As some cameras and telephones write them (MPO); the file is called .jpg."""
    frames = [Image.fromarray(np.full((16, 16, 3), v, np.uint8)) for v in (10, 200)]
    frames[0].save(tmp_path / "1.mpo", save_all=True, append_images=frames[1:])
    (tmp_path / "1.mpo").rename(tmp_path / "1.jpg")
    with Image.open(tmp_path / "1.jpg") as image:
        assert image.format == "MPO"
    assert (decoded(tmp_path / "1.jpg", 8, 3) == 10).all()


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 32 32
%%EndComments
0 0 32 32 rectfill
%%EOF
"""


def test_no_program_is_started_to_decode_a_file(tmp_path: Path) -> None:
    """Pillow has Ghostscript decode EPS, whatever the file is called."""
    gs = tmp_path / "bin" / "gs"
    gs.parent.mkdir()
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    gs.chmod(0o755)
    (tmp_path / "1.png").write_bytes(EPS)
    env = {**os.environ, "PATH": f"{gs.parent}:{os.environ['PATH']}"}

    def run(code: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "1.png")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout

    said = run(
        "import sys; from openldn.data import image_files; print(image_files.decode(sys.argv[1:], 8, 3))"
    )
    assert "it is not an image in JPEG, PNG, WebP, BMP, TIFF or GIF format" in said
    assert not (tmp_path / "started").exists()
    run("import sys, PIL.Image\ntry: PIL.Image.open(sys.argv[1]).load()\nexcept Exception: pass")
    assert (tmp_path / "started").exists()  # so the file would have started it


# ----------------------------------------------------------------------------------------- finding files


def test_folders_may_be_nested_deeply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper than the recursion limit."""
    depth, limit = 300, sys.getrecursionlimit()
    monkeypatch.chdir(tmp_path)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    Path("1.png").touch()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        found = image_files.find(tmp_path)
    finally:
        sys.setrecursionlimit(limit)
    assert found == ["d/" * depth + "1.png"]


def test_a_linked_folder_is_found_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert image_files.find(tmp_path) == ["a/1.png", "b/1.png"]


def test_folders_that_are_linked_to_one_another_do_not_fan_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways through a dozen of them are a billion."""
    monkeypatch.setattr(image_files, "MOST_LINKS", 100)
    folders = [tmp_path / f"{i}" for i in range(12)]
    for folder in folders:
        folder.mkdir()
        (folder / "1.png").touch()
    for folder in folders:
        for other in folders:
            (folder / f"to {other.name}").symlink_to(other)
    with pytest.raises(UserError, match="is linked from more than 100 places"):
        image_files.find(tmp_path)

"""Decoded image files against what was written, and the files that are found."""

import inspect
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps, features

from openldn.data import image_files
from openldn.data.image_files import Decoded
from openldn.errors import OpenLDNWarning, UserError

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


# --------------------------------------------------------------------------------- what telephones make

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this build of Pillow has no AVIF")
EXACT = {"quality": -1, "chroma": 444, "matrix_coefficients": 0}


def save_heic(pixels: NDArray[Any], path: Path, mode: str = "", **how: Any) -> Path:
    """Without loss."""
    mode = mode or {2: "L", 3: "RGB"}.get(pixels.ndim, "") or "RGB"
    made = pillow_heif.from_bytes(mode, pixels.shape[1::-1], pixels.tobytes())
    made.save(path, **({"quality": -1} if mode in ("L", "I;16") else EXACT), **how)
    return path


def save_avif(pixels: Pixels, path: Path, **how: Any) -> Path:
    """Almost without loss."""
    Image.fromarray(pixels).save(path, quality=100, subsampling="4:4:4", speed=10, **how)
    return path


def smooth(*shape: int) -> Pixels:
    """Corners of different brightness, which any compression keeps."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    grey = 20 + 60 * (y >= shape[0] // 2) + 120 * (x >= shape[1] // 2)
    return (
        np.broadcast_to(grey[..., None], shape).astype(np.uint8) if len(shape) == 3 else grey.astype(np.uint8)
    )


def difference(read: NDArray[Any], written: NDArray[Any]) -> float:
    return float(np.abs(read.astype(float) - written).max())


def test_heic(tmp_path: Path) -> None:
    colour, grey = noise(16, 16, 3), noise(16, 16)
    assert np.array_equal(decoded(save_heic(colour, tmp_path / "1.heic"), 16, 3), colour)
    assert np.array_equal(decoded(save_heic(grey, tmp_path / "2.HEIF"), 16, 1)[..., 0], grey)
    assert chosen([tmp_path / "1.heic"]) == (16, 3)
    assert chosen([tmp_path / "2.HEIF"]) == (16, 1)


@needs_avif
def test_avif(tmp_path: Path) -> None:
    colour = noise(16, 16, 3)
    assert difference(decoded(save_avif(colour, tmp_path / "1.avif"), 16, 3), colour) <= 4
    assert chosen([tmp_path / "1.avif"]) == (16, 3)


def test_the_first_bytes_tell_the_format_and_not_the_name(tmp_path: Path) -> None:
    """Telephones and their users rename HEIC files to .jpg, and JPEG files to .heic."""
    colour = noise(16, 16, 3)
    assert np.array_equal(decoded(save_heic(colour, tmp_path / "1.jpg"), 16, 3), colour)
    save(colour, tmp_path / "2.png").rename(tmp_path / "2.heic")
    assert np.array_equal(decoded(tmp_path / "2.heic", 16, 3), colour)


def test_jpeg_under_other_names(tmp_path: Path) -> None:
    Image.fromarray(smooth(16, 16)).save(tmp_path / "1.jpg", quality=100)
    for name in ("2.jfif", "3.JPE", "4.mpo"):
        (tmp_path / name).write_bytes((tmp_path / "1.jpg").read_bytes())
        assert difference(decoded(tmp_path / name, 16, 1)[..., 0], smooth(16, 16)) <= 3
    assert image_files.find(tmp_path).images == ["1.jpg", "2.jfif", "3.JPE", "4.mpo"]


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("suffix", ["heic", pytest.param("avif", marks=needs_avif)])
def test_orientation_is_applied_once(tmp_path: Path, orientation: int, suffix: str) -> None:
    """HEIC decoders turn an image themselves; decoders of AVIF only tell how."""
    pixels, exif, path = smooth(32, 64), Image.Exif(), tmp_path / f"1.{suffix}"
    exif[0x0112] = orientation
    if suffix == "heic":
        save_heic(pixels, path, exif=exif.tobytes())
        assert (b"irot" in path.read_bytes() or b"imir" in path.read_bytes()) == (orientation > 1)
    else:
        save_avif(pixels, path, exif=exif)
    upright = TURNED[orientation](pixels)
    (header,) = image_files.headers([str(path)])
    assert isinstance(header, image_files.Header)
    assert (header.height, header.width) == upright.shape
    side = slice(16, 48)
    centre = upright[:, side] if orientation < 5 else upright[side]
    assert difference(decoded(path, 32, 1)[..., 0], centre) <= 4


def test_ten_bits_are_scaled(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (16, 16, 3)).astype("<u2")
    values[0, 0], values[0, 1] = 0, 65535
    save_heic(values, tmp_path / "1.heic", "RGB;16")
    save_heic(values[..., 0].copy(), tmp_path / "2.heic", "I;16")
    for name, channels in (("1.heic", 3), ("2.heic", 1)):
        assert pillow_heif.open_heif(tmp_path / name, convert_hdr_to_8bit=False).info["bit_depth"] == 10
        read = decoded(tmp_path / name, 16, channels)
        assert difference(read, values[..., :channels] / 65535 * 255) <= 1
        assert (read[0, 0] == 0).all()
        assert (read[0, 1] == 255).all()
        assert chosen([tmp_path / name]) == (16, channels)


@pytest.mark.parametrize("suffix", ["heic", pytest.param("avif", marks=needs_avif)])
def test_transparent_photographs_lie_over_white(tmp_path: Path, suffix: str) -> None:
    pixels = np.concatenate([smooth(16, 16, 3), noise(16, 16, 1)], axis=2)
    path = tmp_path / f"1.{suffix}"
    if suffix == "heic":
        save_heic(pixels, path, "RGBA")
    else:
        save_avif(pixels, path)
    expected = over_white(pixels[..., :3], pixels[..., 3])
    assert difference(decoded(path, 16, 3), expected) <= (1 if suffix == "heic" else 5)


def test_of_several_heic_pictures_the_primary_one_is_read(tmp_path: Path) -> None:
    made = pillow_heif.HeifFile()
    for value in (10, 200, 90):
        made.add_frombytes("RGB", (16, 16), np.full((16, 16, 3), value, np.uint8).tobytes())
    made.save(tmp_path / "1.heic", primary_index=1, **EXACT)
    assert (decoded(tmp_path / "1.heic", 16, 3) == 200).all()


def test_of_a_heic_file_the_thumbnail_is_not_read(tmp_path: Path) -> None:
    pixels = noise(128, 128, 3)
    path = save_heic(pixels, tmp_path / "1.heic", thumbnails=[64])
    assert pillow_heif.open_heif(path).info["thumbnails"]
    expected = ImageOps.fit(Image.fromarray(pixels), (16, 16), Image.Resampling.BICUBIC)
    assert np.array_equal(decoded(path, 16, 3), np.asarray(expected))


def claim(path: Path, width: int, height: int) -> Path:
    """Changes the size that a HEIC or AVIF file says its image has."""
    data = bytearray(path.read_bytes())
    at = data.index(b"ispe") + 8  # after the name, version and flags
    data[at : at + 8] = struct.pack(">II", width, height)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", ["heic", pytest.param("avif", marks=needs_avif)])
@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (10_001, 10_000)])
def test_bombs_are_not_decoded(tmp_path: Path, suffix: str, width: int, height: int) -> None:
    pixels, path = noise(64, 64, 3), tmp_path / f"1.{suffix}"
    claim(save_heic(pixels, path) if suffix == "heic" else save_avif(pixels, path), width, height)
    for (reason,) in (image_files.headers([str(path)]), image_files.decode([str(path)], 8, 3)):
        assert isinstance(reason, str)
        if width < 60_000:  # more than decoders refuse themselves
            assert reason == "it has 10001 x 10000 pixels, too many: shrink it"


def test_a_heic_file_that_hides_its_size_is_refused(tmp_path: Path) -> None:
    path = claim(save_heic(smooth(1024, 1024, 3), tmp_path / "1.heic"), 8, 8)
    (reason,) = image_files.decode([str(path)], 8, 3)
    assert isinstance(reason, str)


def test_damaged_heic_files_are_refused(tmp_path: Path) -> None:
    data = save_heic(noise(64, 64, 3), tmp_path / "1.heic").read_bytes()
    for n in (11, 12, 100, len(data) // 2, len(data) - 5):
        (tmp_path / "2.heic").write_bytes(data[:n])
        (reason,) = image_files.decode([str(tmp_path / "2.heic")], 8, 3)
        assert isinstance(reason, str)
        assert reason


def test_heic_is_not_read_by_others_afterwards(tmp_path: Path) -> None:
    """Which formats Pillow opens elsewhere in the process is the user's choice."""
    path = save_heic(noise(16, 16, 3), tmp_path / "1.heic")
    decoded(path, 16, 3)
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(path)


def test_without_a_decoder_the_reason_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heic = str(save_heic(noise(16, 16, 3), tmp_path / "1.heic"))
    assert image_files.count_without_decoder([heic, heic.upper(), "1.png"]) == 0
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    assert image_files.count_without_decoder([heic, heic.upper(), "1.png"]) == 2
    for (reason,) in (image_files.headers([heic]), image_files.decode([heic], 8, 3)):
        assert isinstance(reason, str)
        assert "HEIC" in reason
        assert "pip install openldn[heif]" in reason


@needs_avif
def test_without_avif_the_reason_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    avif = str(save_avif(noise(16, 16, 3), tmp_path / "1.avif"))
    monkeypatch.setattr("PIL.AvifImagePlugin.SUPPORTED", False)
    monkeypatch.setattr(features, "check", lambda feature: feature != "avif")
    (reason,) = image_files.decode([avif], 8, 3)
    assert isinstance(reason, str)
    assert "AVIF" in reason
    assert "pip install --upgrade pillow" in reason


def test_no_torch_for_heic(tmp_path: Path) -> None:
    """Worker processes start quickly, and read HEIC."""
    save_heic(noise(16, 16, 3), tmp_path / "1.heic")
    code = (
        "import sys; from openldn.data import image_files; "
        "print(type(image_files.decode(sys.argv[1:], 8, 3)[0]).__name__, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "1.heic")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == ["Decoded", "False"]


def test_each_reason_with_a_remedy_has_a_warning_of_its_own() -> None:
    skipped = [("1.png", "it is empty"), ("2.heic", image_files.NEEDS_HEIF), ("3.cr2", image_files.NOT_READ)]
    skipped += [("4.heic", image_files.NEEDS_HEIF), ("5.png", "it is not there")]
    with pytest.warns(OpenLDNWarning) as said:
        image_files.warn_of_unreadable(skipped, 50, "s.csv")
    messages = sorted(str(one.message) for one in said)
    assert [message.split(" and are")[0] for message in messages] == [
        "1 of 50 images cannot be read",
        "2 of 50 images cannot be read",
        "2 of 50 images cannot be read",
    ]
    assert "3.cr2 (its format is not read" in messages[0]
    assert "1.png (it is empty)" in messages[1]
    assert "2.heic" in messages[2]
    assert "pip install openldn[heif]" in messages[2]
    assert all(message.endswith("; s.csv lists them") for message in messages)


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
    assert "it is not an image in JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF or HEIC format" in said
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
    assert found.images == ["d/" * depth + "1.png"]


def test_a_linked_folder_is_found_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert image_files.find(tmp_path).images == ["a/1.png", "b/1.png"]


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


def test_what_looks_like_an_image_and_is_not_read(tmp_path: Path) -> None:
    read = ["a/1.jpg", "a/2.HEIC", "b/3.Avif", "b/4.jfif", "b/5.hif"]
    not_read = ["a/1.CR2", "a/2.dng", "b/3.svg", "b/4.jxl", "b/5.heics", "c/6.PSD", "c/7.eps", "c/8.tga"]
    neither = [
        "a/1.txt",
        "a/1.mov",
        "b/3.pdf",
        "b/raw",
        "c/labels.csv",
        "c/.9.nef",
        ".d/1.svg",
        "c/xmp.cr2.xmp",
    ]
    for name in read + not_read + neither:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "e.svg").mkdir()
    assert image_files.find(tmp_path) == (read, not_read)
    assert not {*image_files.SUFFIXES} & {*image_files.OTHER_SUFFIXES}

"""Image files to pixels. Knows nothing of torch, so that worker processes start soon."""

import hashlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from openldn.errors import OpenLDNWarning, UserError

T = TypeVar("T")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SIZES = (32, 64, 96, 128, 224)
SMALLEST, LARGEST = 8, 1024  # pixels that images may be brought to
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes without colour
PRINT = 16  # bytes of a fingerprint
MAX_PIXELS = 100_000_000  # what a photograph may have; more is taken for a decompression bomb


class Unreadable(Exception):
    """A file that no pixels can be had from; its text is the reason."""


class Header(NamedTuple):
    """What can be known of an image without decoding it."""

    width: int
    height: int
    grey: bool


def find(folder: Path) -> list[str]:
    """The image files below a folder by their names in it, in order; hidden ones are left out.

    Names and not paths, which take longer to make than files to find.
    """
    return sorted(_walk(str(folder), "", frozenset()))


def _walk(folder: str, below: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Links are followed, but not into a folder that we are in already."""
    try:
        status = os.stat(folder)
        entries = list(os.scandir(folder))
    except OSError as e:
        raise UserError(f"{folder} cannot be read ({e.strerror}); check who may read it") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            deeper = entry.is_dir()
        except OSError:  # a link that leads to itself
            deeper = False
        if deeper:
            yield from _walk(entry.path, f"{below}{entry.name}/", above | {here})
        elif entry.name.lower().endswith(SUFFIXES):  # a broken link too: it will be named as unreadable
            yield below + entry.name


def shown(name: str | Path) -> str:
    """A file's name as it can be printed and written, whatever bytes it consists of."""
    return str(name).encode(errors="backslashreplace").decode()


def header(path: Path) -> Header:
    """The size and kind of an image, after it has been turned upright."""
    with _opened(path) as image:
        return _header(image)


def _header(image: Image.Image) -> Header:
    width, height = image.size[::-1] if _orientation(image) in (5, 6, 7, 8) else image.size
    return Header(width, height, image.mode in GREY)


def _orientation(image: Image.Image) -> int:
    """How a camera was held, from 1 (upright) to 8."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged metadata can raise anything, and the picture is there all the same
        return 1


def choose_size(headers: Sequence[Header], largest: int = 224) -> tuple[int, int]:
    """Pixels and channels that suit the images.

    Small square images that are all alike (8 to 64 pixels) stay as they are; others are brought to the
    usual size nearest to the median of their shorter sides, at most `largest`. Grey only if all are grey.
    """
    channels = 1 if all(h.grey for h in headers) else 3
    shapes = {(h.width, h.height) for h in headers}
    width, height = next(iter(shapes))
    if len(shapes) == 1 and width == height and SMALLEST <= width <= 64:
        return width, channels
    shorter = float(np.median([min(h.width, h.height) for h in headers]))
    return min((s for s in SIZES if s <= largest), key=lambda size: abs(size - shorter)), channels


def check_size(size: int) -> int:
    """Itself, if images can be brought to so many pixels."""
    if not SMALLEST <= size <= LARGEST:
        raise UserError(
            f"images cannot be brought to {size} pixels; "
            f"give --size from {SMALLEST} to {LARGEST}, or leave it out"
        )
    return size


def read(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """One image, its shorter side brought to `size` and the centre cut out.  uint8 (c, size, size)"""
    return examine(path, size, channels)[1].transpose(2, 0, 1)


def examine(path: Path, size: int, channels: int) -> tuple[Header, NDArray[np.uint8]]:
    """The header of an image and its pixels, which `read` gives channel by channel.  uint8 (size, size, c)"""
    with _opened(path) as image:
        about = _header(image)
        try:
            # A JPEG is decoded at the smallest scale that is still large enough: up to 8 times less work.
            image.draft(None, (2 * size, 2 * size))
            if _orientation(image) != 1:
                ImageOps.exif_transpose(image, in_place=True)
            plain = _plain(image, "L" if channels == 1 else "RGB")
            if plain.size != (size, size):
                plain = ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC)
            pixels = np.asarray(plain, np.uint8)
        except Exception as e:  # a damaged file can make a decoder raise anything
            raise Unreadable(_reason(e)) from None
    return about, pixels.reshape(size, size, channels)


def fingerprint(pixels: NDArray[np.uint8]) -> bytes:
    """A few bytes that tell an image from others.  (h, w, c), or these one after the other"""
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=PRINT).digest()


def warn_of_unreadable(skipped: Sequence[tuple[str, str]], total: int, listed: str) -> None:
    """Says in one line how many images are left out; `listed` is the file that has them all."""
    if skipped:
        name, reason = skipped[0]
        warnings.warn(
            f"{len(skipped)} of {total} images cannot be read and are left out, such as {name} ({reason}); "
            f"{listed} lists them",
            OpenLDNWarning,
            stacklevel=3,
        )


# ------------------------------------------------------------------------- what worker processes do


def headers(paths: Sequence[str]) -> list[Header | str]:
    """The header of each file, or why there is none."""
    with _quiet():
        return [_or_reason(header, Path(path)) for path in paths]


def decode(paths: Sequence[str], size: int, channels: int) -> list[bytes | str]:
    """The pixels of each file, (size, size, c), or why there are none."""
    with _quiet():
        return [_or_reason(lambda p: examine(p, size, channels)[1].tobytes(), Path(path)) for path in paths]


def decode_into(
    file: str | None, place: int, paths: Sequence[str], size: int, channels: int
) -> list[tuple[Header, bytes] | str]:
    """Writes the pixels of each file one after the other from `place` on, if there is a file to write to.

    Gives back headers and fingerprints, or why there is none; the place of an image that cannot be read is
    left empty.
    """
    results: list[tuple[Header, bytes] | str] = []
    pixels = np.zeros((len(paths), size, size, channels), np.uint8)
    with _quiet():
        for i, path in enumerate(paths):
            try:
                about, pixels[i] = examine(Path(path), size, channels)
                results.append((about, fingerprint(pixels[i])))
            except Unreadable as e:
                results.append(str(e))
    if file is not None:
        with open(file, "r+b") as f:
            f.seek(place * pixels[0].nbytes)
            f.write(pixels.data)
    return results


@contextmanager
def _quiet() -> Iterator[None]:
    """Odd metadata is nobody's concern, and bombs are judged by us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _or_reason(f: Callable[[Path], T], path: Path) -> T | str:
    try:
        return f(path)
    except Unreadable as e:
        return str(e)


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """8 bits a channel; 16 bits are scaled, and what is transparent lies over white."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers: save it with 8 bits")
    if image.mode.startswith("I"):  # Pillow would clip these
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have more than 16 bits: save it with 8")
        image = Image.fromarray(np.round(values / 257).astype(np.uint8))
    elif image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


def _opened(path: Path) -> Image.Image:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise Unreadable("its name is not UTF-8: rename it") from None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe would keep us waiting for ever
            raise Unreadable("it is not a file")
        if status.st_size == 0:
            raise Unreadable("it is empty")
        image = Image.open(path)
    except Unreadable:
        raise
    except Exception as e:
        raise Unreadable(_reason(e)) from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise Unreadable(f"it has {image.width} x {image.height} pixels, too many: shrink it")
    return image


def _reason(e: Exception) -> str:
    if isinstance(e, FileNotFoundError):
        return "it is not there"
    if isinstance(e, UnidentifiedImageError):
        return "it is not an image"
    if isinstance(e, Image.DecompressionBombError):
        return "it has too many pixels: shrink it"
    return str(getattr(e, "strerror", None) or e or type(e).__name__)

"""Decodes image files. Does not import torch, so that worker processes start quickly."""

import hashlib
import os
import stat
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from openldn.errors import OpenLDNWarning, UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
# No others: Pillow starts Ghostscript to decode EPS, whatever the file is called. JPEG includes MPO.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
SIZES = (32, 64, 96, 128, 224)
SMALLEST, LARGEST = 8, 1024  # pixels
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes without colour
PRINT = 16  # bytes of a fingerprint
MAX_PIXELS = 100_000_000  # more is taken for a decompression bomb
MOST_LINKS = 1000  # times that one folder may be found below another, through links


class Unreadable(Exception):
    """A file that cannot be decoded; the text is the reason."""


class Header(NamedTuple):
    """What is known of an image without decoding it, after its EXIF orientation was applied."""

    width: int
    height: int
    grey: bool


class Decoded(NamedTuple):
    """A decoded image."""

    header: Header
    fingerprint: bytes
    pixels: bytes  # (size, size, c); empty if they were written to a file


def find(folder: Path) -> list[str]:
    """The image files below a folder, sorted, as paths relative to it; hidden ones are left out.

    Links are followed, except to a folder that contains the link.
    """
    found, times = list[str](), Counter[tuple[int, int]]()
    stack = [(str(folder), "", frozenset[tuple[int, int]]())]
    while stack:
        path, prefix, above = stack.pop()
        try:
            status = os.stat(path)
            entries = list(os.scandir(path))
        except OSError as e:
            raise UserError(f"{path} cannot be read ({e.strerror}); check who may read it") from None
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        times[here] += 1
        if times[here] > MOST_LINKS:
            remedy = "remove some links"
            raise UserError(f"{path} is linked from more than {MOST_LINKS:,} places below {folder}; {remedy}")
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                stack.append((entry.path, f"{prefix}{entry.name}/", above | {here}))
            elif entry.name.lower().endswith(SUFFIXES):  # also broken links, which are reported as unreadable
                found.append(prefix + entry.name)
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def printable(name: str | Path) -> str:
    """A file's name in a form that can be printed and written, whatever bytes it consists of."""
    return str(name).encode(errors="backslashreplace").decode()


def warn_of_unreadable(skipped: Sequence[tuple[str, str]], total: int, listed: str) -> None:
    """Warns how many images were skipped; `listed` is the file that names all of them."""
    if skipped:
        name, reason = skipped[0]
        what = f"{len(skipped)} of {total} images cannot be read and are left out, such as {name} ({reason})"
        warnings.warn(f"{what}; {listed} lists them", OpenLDNWarning, stacklevel=3)


def choose_size(headers: Sequence[Header], largest: int = 224) -> tuple[int, int]:
    """The size in pixels and the number of channels to decode images to.

    Square images of one size from 8 to 64 pixels are left as they are. Others get the size among SIZES, up to
    `largest`, that is nearest to the median of their shorter sides. There is one channel if all are grey.
    """
    channels = 1 if all(h.grey for h in headers) else 3
    shapes = {(h.width, h.height) for h in headers}
    width, height = next(iter(shapes))
    if len(shapes) == 1 and width == height and SMALLEST <= width <= 64:
        return width, channels
    shorter = float(np.median([min(h.width, h.height) for h in headers]))
    return min((s for s in SIZES if s <= largest), key=lambda size: abs(size - shorter)), channels


def headers(files: Sequence[str]) -> list[Header | str]:
    """The header of each file, or the reason why it cannot be read."""
    found: list[Header | str] = []
    with warnings.catch_warnings(action="ignore"):  # Pillow's, on odd metadata
        for file in files:
            try:
                with _opened(file) as image:
                    found.append(_header(image))
            except Unreadable as e:
                found.append(str(e))
    return found


def decode(
    files: Sequence[str], size: int, channels: int, into: tuple[str, int] | None = None
) -> list[Decoded | str]:
    """Each image with its shorter side resized to `size` and its centre cut out, or why it cannot be read.

    With `into`, a file and a number of images, the pixels are written to the file after so many images. The
    place of an image that cannot be read stays empty.
    """
    decoded: list[Decoded | str] = []
    pixels = np.zeros((len(files), size, size, channels), np.uint8)
    with warnings.catch_warnings(action="ignore"):
        for file, image in zip(files, pixels, strict=True):
            try:
                header = _decode(file, image)
                decoded.append(Decoded(header, fingerprint(image), b"" if into else image.tobytes()))
            except Unreadable as e:
                decoded.append(str(e))
    if into is not None:
        with open(into[0], "r+b") as f:
            f.seek(into[1] * pixels[0].nbytes)
            f.write(pixels.data)
    return decoded


def fingerprint(pixels: NDArray[np.uint8]) -> bytes:
    """A hash of an image (h, w, c)."""
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=PRINT).digest()


def _decode(file: str, out: NDArray[np.uint8]) -> Header:
    """Decodes one image into `out`, (size, size, c)."""
    size, _, channels = out.shape
    with _opened(file) as image:
        header = _header(image)
        try:
            # JPEG decoders can shrink an image at little cost; this asks for at least twice the size.
            image.draft(None, (2 * size, 2 * size))
            if _orientation(image) != 1:
                ImageOps.exif_transpose(image, in_place=True)
            plain = _eight_bits(image, "L" if channels == 1 else "RGB")
            if plain.size != (size, size):
                plain = ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC)
            out[:] = np.asarray(plain, np.uint8).reshape(out.shape)
        except Exception as e:  # decoders raise all kinds of errors on damaged files
            raise Unreadable(_reason(e)) from None
    return header


def _opened(file: str) -> Image.Image:
    try:
        file.encode()
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):  # reading from a pipe would block
            raise Unreadable("it is not a file")
        if status.st_size == 0:
            raise Unreadable("it is empty")
        image = Image.open(file, formats=FORMATS)
    except Exception as e:
        raise Unreadable(_reason(e)) from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise Unreadable(f"it has {image.width} x {image.height} pixels, too many: shrink it")
    return image


def _header(image: Image.Image) -> Header:
    width, height = image.size[::-1] if _orientation(image) in (5, 6, 7, 8) else image.size
    return Header(width, height, image.mode in GREY)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, from 1 (upright) to 8."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # the metadata is damaged, but the image need not be
        return 1


def _eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """8 bits per channel: 16 bits are scaled, and transparent pixels are blended with white."""
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


def _reason(e: Exception) -> str:
    if isinstance(e, UnicodeEncodeError):
        return "its name is not UTF-8: rename it"
    if isinstance(e, FileNotFoundError):
        return "it is not there"
    if isinstance(e, UnidentifiedImageError):
        return "it is not an image in JPEG, PNG, WebP, BMP, TIFF or GIF format"
    if isinstance(e, Image.DecompressionBombError):
        return "it has too many pixels: shrink it"
    return str(getattr(e, "strerror", None) or e)

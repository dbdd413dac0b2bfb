"""Decodes image files. Does not import torch, so that worker processes start quickly."""

import hashlib
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError, features

from openldn.errors import OpenLDNWarning, UserError

HEIF_SUFFIXES = (".heic", ".heif", ".hif")
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif"),
    *HEIF_SUFFIXES,
)
# Images by their names, in formats that are not read. Camera manufacturers' formats are often TIFF files, of
# which a decoder of TIFF would find the thumbnail alone.
_CAMERA = "dng raw cr2 cr3 crw nef nrw arw srf sr2 raf orf rw2 rwl pef srw x3f 3fr iiq erf kdc dcr mrw"
_OTHER = """
jxl jp2 j2k j2c jpf jpx jxr wdp heics heifs avifs apng svg svgz eps wmf emf psd psb xcf tga dds pcx ico icns
cur ppm pgm pbm pnm hdr exr dcm
"""
OTHER_SUFFIXES = tuple(f".{suffix}" for suffix in f"{_CAMERA} {_OTHER}".split())
# No others: Pillow starts Ghostscript to decode EPS, whatever the file is called. JPEG includes MPO. HEIF is
# not among them, as it is not Pillow that decodes it.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF")
AVIF_BRANDS = (b"ftypavif", b"ftypavis")  # from the fifth byte on
HEIF_BRANDS = tuple(b"ftyp" + b for b in b"heic heix heim heis hevc hevx hevm hevs mif1 msf1".split())
NOT_READ = "its format is not read: save it as JPEG or PNG"
NEEDS_HEIF = "it is in HEIC format, which needs a decoder: pip install openldn[heif]"
NEEDS_AVIF = "it is in AVIF format, which this build of Pillow cannot decode: pip install --upgrade pillow"
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


class Found(NamedTuple):
    """The files below a folder that look like images by their names, as sorted paths relative to it."""

    images: list[str]
    others: list[str]  # in formats that are not read


def find(folder: Path) -> Found:
    """The image files below a folder, without hidden ones.

    Links are followed, except to a folder that contains the link.
    """
    found, times = Found([], []), Counter[tuple[int, int]]()
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
                found.images.append(prefix + entry.name)
            elif entry.name.lower().endswith(OTHER_SUFFIXES):
                found.others.append(prefix + entry.name)
    return Found(sorted(found.images), sorted(found.others))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def printable(name: str | Path) -> str:
    """A file's name in a form that can be printed and written, whatever bytes it consists of."""
    return str(name).encode(errors="backslashreplace").decode()


def warn_of_unreadable(skipped: Sequence[tuple[str, str]], total: int, listed: str) -> None:
    """Warns how many images were skipped; `listed` is the file that names all of them.

    Those that a decoder would read, and those whose format is not read, have a warning of their own.
    """
    own = (NEEDS_HEIF, NEEDS_AVIF, NOT_READ)
    groups = [[pair for pair in skipped if pair[1] == reason] for reason in own]
    groups += [[pair for pair in skipped if pair[1] not in own]]
    for group in filter(None, groups):
        name, reason = group[0]
        what = f"{len(group)} of {total} images cannot be read and are left out, such as {name} ({reason})"
        warnings.warn(f"{what}; {listed} lists them", OpenLDNWarning, stacklevel=3)


def count_without_decoder(files: Sequence[str]) -> int:
    """How many files are HEIC images by their names, if there is no decoder for these; else 0."""
    n = sum(file.lower().endswith(HEIF_SUFFIXES) for file in files)
    return n if n and _heif_opener() is None else 0


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
    files: Sequence[str],
    size: int,
    channels: int,
    into: tuple[str, int] | None = None,
    squash: bool = False,
) -> list[Decoded | str]:
    """Each image with its shorter side resized to `size` and its centre cut out, or why it cannot be read.

    With `squash`, both sides are resized to `size`, and nothing is cut off.

    With `into`, a file and a number of images, the pixels are written to the file after so many images. The
    place of an image that cannot be read stays empty.
    """
    decoded: list[Decoded | str] = []
    pixels = np.zeros((len(files), size, size, channels), np.uint8)
    with warnings.catch_warnings(action="ignore"):
        for file, image in zip(files, pixels, strict=True):
            try:
                header = _decode(file, image, squash)
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


def _decode(file: str, out: NDArray[np.uint8], squash: bool) -> Header:
    """Decodes one image into `out`, (size, size, c)."""
    size, _, channels = out.shape
    with _opened(file) as image:
        header = _header(image)
        try:
            # JPEG decoders can shrink an image at little cost; this asks for at least twice the size. Of a
            # HEIC file it would be the thumbnail, which is a picture of its own.
            if image.format != "HEIF":
                image.draft(None, (2 * size, 2 * size))
            if _orientation(image) != 1:
                ImageOps.exif_transpose(image, in_place=True)
            plain = _eight_bits(image, "L" if channels == 1 else "RGB")
            if squash and plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BICUBIC)
            elif plain.size != (size, size):
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
        image = _identified(file)
    except Exception as e:
        raise Unreadable(_reason(e)) from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise Unreadable(f"it has {image.width} x {image.height} pixels, too many: shrink it")
    return image


def _identified(file: str) -> Image.Image:
    """The image in a file, in a format that its first bytes tell, whatever its name is."""
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        with open(file, "rb") as f:
            brand = f.read(12)[4:]
        if brand in AVIF_BRANDS and not features.check("avif"):
            raise Unreadable(NEEDS_AVIF) from None
        if brand not in HEIF_BRANDS:
            raise
    opener = _heif_opener()
    if opener is None:
        raise Unreadable(NEEDS_HEIF)
    return opener(file)


def _heif_opener() -> Callable[[str], Image.Image] | None:
    """Opens HEIC files, upright and with 8 bits, without decoding them; None if pillow-heif is missing."""
    try:
        from pillow_heif import HeifImageFile  # not registered with Pillow, which belongs to the user
    except ImportError:
        return None
    return HeifImageFile


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
        return "it is not an image in JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF or HEIC format"
    if isinstance(e, Image.DecompressionBombError):
        return "it has too many pixels: shrink it"
    return str(getattr(e, "strerror", None) or e)

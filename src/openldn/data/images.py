"""Image files to pixels."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from openldn.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SIZES = (32, 64, 96, 128, 224)
SMALLEST, LARGEST = 8, 1024  # pixels that images may be brought to
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes without colour
MAX_PIXELS = 100_000_000  # what a photograph may have; more is taken for a decompression bomb


def find(folder: Path) -> list[Path]:
    """The image files below a folder, in the order of their names; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def choose_size(paths: Sequence[Path], largest: int = 224) -> tuple[int, int]:
    """Pixels and channels that suit the images, from their headers.

    Small square images that are all alike (8 to 64 pixels) stay as they are; others are brought to the
    usual size nearest to the median of their shorter sides, at most `largest`. Grey only if all are grey.
    """
    shapes, grey = [], True
    for path in paths:
        with _opened(path) as image:
            shapes.append(image.size)
            grey &= image.mode in GREY
    channels = 1 if grey else 3
    if len(set(shapes)) == 1 and shapes[0][0] == shapes[0][1] and SMALLEST <= shapes[0][0] <= 64:
        return shapes[0][0], channels
    shorter = float(np.median([min(shape) for shape in shapes]))
    return min((s for s in SIZES if s <= largest), key=lambda size: abs(size - shorter)), channels


def check_size(size: int) -> int:
    """Itself, if images can be brought to so many pixels."""
    if not SMALLEST <= size <= LARGEST:
        raise UserError(
            f"images cannot be brought to {size} pixels; "
            f"give --size from {SMALLEST} to {LARGEST}, or leave it out"
        )
    return size


def read(paths: Sequence[Path], size: int, channels: int) -> Tensor:
    """All images, their shorter side brought to `size` and the centre cut out.  uint8 (n, c, size, size)"""
    images = torch.empty(len(paths), channels, size, size, dtype=torch.uint8)
    for i, path in enumerate(paths):
        images[i] = read_one(path, size, channels)
    return images


def read_one(path: Path, size: int, channels: int) -> Tensor:
    """One image as uint8 (c, size, size)."""
    with _opened(path) as image:
        try:
            plain = _plain(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
        except Exception as e:  # a damaged file can make a decoder raise anything
            raise _unreadable(path, e) from None
    if plain.size != (size, size):
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(plain, np.uint8)).view(size, size, channels).permute(2, 0, 1)


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
    return image.convert(mode)


def _opened(path: Path) -> Image.Image:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name of {str(path)!r} is not UTF-8; rename it") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
    except FileNotFoundError:
        raise UserError(f"there is no image {path}; check the path") from None
    except Exception as e:
        raise _unreadable(path, e) from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise UserError(f"{path} has {image.width} x {image.height} pixels, too many to be read; shrink it")
    return image


def _unreadable(path: Path, e: Exception) -> UserError:
    reason = "not an image" if isinstance(e, UnidentifiedImageError) else getattr(e, "strerror", None) or e
    return UserError(f"{path} cannot be read ({reason}); repair it or take it away")

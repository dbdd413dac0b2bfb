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


def choose_size(paths: Sequence[Path], sample: int = 200) -> tuple[int, int]:
    """Pixels and channels that suit the images: looks at the headers of some of them.

    Small square images that are all alike (8 to 64 pixels) stay as they are; others are brought to the
    usual size nearest to the median of their shorter sides. Grey only if all looked at are grey.
    """
    shapes, grey = [], True
    for path in paths[:: max(1, len(paths) // sample)]:
        with _opened(path) as image:
            shapes.append(image.size)
            grey &= image.mode in ("1", "L", "I;16", "I")
    channels = 1 if grey else 3
    if len(set(shapes)) == 1 and shapes[0][0] == shapes[0][1] and 8 <= shapes[0][0] <= 64:
        return shapes[0][0], channels
    shorter = float(np.median([min(shape) for shape in shapes]))
    return min(SIZES, key=lambda size: abs(size - shorter)), channels


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
            image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        except (OSError, SyntaxError, ValueError) as e:
            raise UserError(f"{path} cannot be read ({e}); repair it or take it away") from None
        image = (
            ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
            if image.size
            != (
                size,
                size,
            )
            else image
        )
        pixels = np.array(image, np.uint8)
    return torch.from_numpy(pixels).view(size, size, channels).permute(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
    except FileNotFoundError:
        raise UserError(f"there is no image {path}; check the path") from None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as e:
        reason = "not an image" if isinstance(e, UnidentifiedImageError) else str(e)
        raise UserError(f"{path} cannot be read ({reason}); repair it or take it away") from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise UserError(f"{path} has {image.width} x {image.height} pixels, too many to be read; shrink it")
    return image

"""The 14 operations of RandAugment on batches of uint8 images (n, c, h, w), each equal to Pillow's.

(With fused multiply-add, blends may be off by one grey level in one pixel of ten thousand.)

Each image has its own operation, level (1 to 9) and sign (-1 or 1), given as arrays (n,). Most operations are
lookup tables of the 256 values, or maps of source coordinates. Both are made on the host, in the arithmetic
that Pillow uses.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Table = NDArray[np.uint8]  # (n, 1 or c, 256)
T = TypeVar("T")
IN_CACHE = 2**19  # values per piece: with intermediate results, ten times as large, it fits a core's cache
Kind = Callable[[Tensor, Ints, Ints, Ints], Tensor]  # images, numbers in OPS (sorted), level, sign


def apply_ops(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """Applies to each image its own operation, a number in OPS.

    Images are sorted by operation, so that each kind of operation works on a slice.
    """
    order = np.argsort(op, kind="stable")
    op, level, sign = op[order], level[order], sign[order]
    images = images.index_select(0, torch.from_numpy(order).to(images.device))
    at_once = max(1, IN_CACHE // math.prod(images.shape[1:]))
    for kind, part in _slices(op, KINDS):
        for start in range(part.start, part.stop, at_once) if kind is not identity else ():
            piece = slice(start, min(start + at_once, part.stop))
            images[piece] = kind(images[piece], op[piece], level[piece], sign[piece])
    return images.index_select(0, torch.from_numpy(np.argsort(order)).to(images.device))


def _slices(op: Ints, names: dict[T, tuple[str, ...]]) -> Iterator[tuple[T, slice]]:
    """Each kind that has any of its operations in `op` (sorted), and the slice of these."""
    numbers = op.tolist()
    for kind, own in names.items():
        part = slice(bisect_left(numbers, NUMBER[own[0]]), bisect_right(numbers, NUMBER[own[-1]]))
        if part.start < part.stop:
            yield kind, part


def identity(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """The images as they are."""
    return images


def look_up(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """Replaces each value by its entry in the lookup table of its image and channel."""
    n, c = images.shape[:2]
    table = np.empty((n, c, 256), np.uint8)
    for make, part in _slices(op, TABLES):
        table[part] = make(images[part], level[part, None, None])
    tables = torch.from_numpy(table).to(images.device).flatten()
    return tables.index_select(0, _by_channel(images, 256)).view_as(images)


VALUES = np.arange(256)


def autocontrast(images: Tensor, level: Ints) -> Table:
    """Stretches each channel to the full range."""
    pixels = images.flatten(2)
    low, high = (x.cpu().numpy()[:, :, None].astype(np.float64) for x in (pixels.amin(2), pixels.amax(2)))
    scale = 255 / np.maximum(high - low, 1)
    stretched = np.clip(VALUES * scale - low * scale, 0, 255)
    return np.where(high > low, stretched, VALUES).astype(np.uint8)


def equalize(images: Tensor, level: Ints) -> Table:
    """Flattens the histogram of each channel."""
    n, c = images.shape[:2]
    counts = torch.bincount(_by_channel(images, 256), minlength=n * c * 256).view(n, c, 256).cpu().numpy()
    before = counts.cumsum(2) - counts
    darker = (before * (counts > 0)).max(2, keepdims=True)  # number of pixels below the brightest value
    step = darker // 255  # 0 if there is only one value, or few pixels
    flat = np.minimum((step // 2 + before) / np.maximum(step, 1), 255)
    return np.where(step > 0, flat, VALUES).astype(np.uint8)


def contrast(images: Tensor, level: Ints) -> Table:
    """Blends with the mean grey of the image."""
    h, w = images.shape[2:]
    lines = _grey(images.float()).sum((1, 3)).cpu().numpy()  # sums of integers, small enough to be exact
    mean = np.floor(lines.sum(1, dtype=np.float64) / (h * w) + 0.5).astype(np.float32)[:, None, None]
    faded: Table = (mean + _share(level) * (VALUES.astype(np.float32) - mean)).astype(np.uint8)
    return faded


def brightness(images: Tensor, level: Ints) -> Table:
    """Blends with black."""
    return (_share(level) * VALUES.astype(np.float32)).astype(np.uint8)


def posterize(images: Tensor, level: Ints) -> Table:
    """Keeps the 4 to 7 highest bits of each value."""
    return (VALUES & (256 - 2 ** (4 - level * 4 // 10))).astype(np.uint8)


def solarize(images: Tensor, level: Ints) -> Table:
    """Inverts values above a threshold."""
    return np.where(256 - level * 256 // 10 > VALUES, VALUES, 255 - VALUES).astype(np.uint8)


TABLES: dict[Callable[[Tensor, Ints], Table], tuple[str, ...]] = {
    make: (make.__name__,) for make in (autocontrast, equalize, contrast, brightness, posterize, solarize)
}


def affine(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """Rotates by 3 to 27 degrees, shears or translates by 3 to 27 %, and fills with black."""
    h, w = images.shape[2:]
    which = ((op - NUMBER["rotate"]) * 9 + level - 1) * 2 + (sign + 1) // 2
    maps = _maps(h, w, images.device).index_select(0, torch.from_numpy(which).to(images.device))
    return gather_pixels(F.pad(images, (1, 1, 1, 1)), maps)


@cache
def _maps(h: int, w: int, device: torch.device) -> Tensor:
    """Source coordinates in an image with a black border of one pixel: 5 operations, 9 levels, 2 signs.

    18 MB at 224 pixels.  (90, 1, h, w) int32
    """
    x, y = np.arange(w), np.arange(h)[:, None]
    made = []
    for a, b, c, d, e, f in _matrices(h, w):
        # Pillow's fixed-point arithmetic with 16 fractional bits, from the centre of pixel (0, 0)
        a, b, c, d, e, f = (
            math.floor(v * 65536 + 0.5) for v in (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
        )
        column, row = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
        inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
        made.append(np.where(inside, (row + 1) * (w + 2) + column + 1, 0))
    return torch.from_numpy(np.stack(made)[:, None].astype(np.int32)).to(device)


def _matrices(h: int, w: int) -> list[tuple[float, ...]]:
    """Pixel (x, y) is taken from (a x + b y + c, d x + e y + f); by operation, level and sign."""

    def rotate(angle: float) -> tuple[float, ...]:  # about the centre
        cos, sin = math.cos(angle), math.sin(angle)
        return cos, -sin, w / 2 - (cos * w - sin * h) / 2, sin, cos, h / 2 - (sin * w + cos * h) / 2

    levels = [(level, sign) for level in range(1, 10) for sign in (-1, 1)]
    return [
        *(rotate(math.radians(3 * v * sign)) for v, sign in levels),
        *((1, 0.03 * v * sign, 0, 0, 1, 0) for v, sign in levels),
        *((1, 0, 0, 0.03 * v * sign, 1, 0) for v, sign in levels),
        *((1, 0, int(v * 0.3 / 10 * w) * sign, 0, 1, 0) for v, sign in levels),
        *((1, 0, 0, 0, 1, int(v * 0.3 / 10 * h) * sign) for v, sign in levels),
    ]


def gather_pixels(images: Tensor, source: Tensor) -> Tensor:
    """Takes each pixel from a source coordinate y w + x of its image.

    (n, c, h, w), (n, 1, h', w') int32 -> (n, c, h', w')
    """
    n, c, h, w = images.shape
    sources = _by_channel(source.expand(n, c, -1, -1), h * w)
    return images.flatten().index_select(0, sources).view(n, c, *source.shape[2:])


def _by_channel(numbers: Tensor, each: int) -> Tensor:
    """Numbers below `each`, shifted to index one flat array with `each` entries per channel.

    (n, c, h, w) -> (n c h w,) int32
    """
    n, c = numbers.shape[:2]
    first = torch.arange(0, n * c * each, each, dtype=torch.int32, device=numbers.device)
    return (numbers.int() + first.view(n, c, 1, 1)).flatten()


def color(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """Blends with the grey image."""
    x = images.float()
    return _blend(_grey(x), x, level)


def sharpness(images: Tensor, op: Ints, level: Ints, sign: Ints) -> Tensor:
    """Blends with the smoothed image; the border is left as it is."""
    x = images.float()
    # The smoothing kernel: the eight neighbours and five times the pixel, divided by 13.
    lines = (x[..., :-2, :] + x[..., 1:-1, :]).add_(x[..., 2:, :])
    total = (lines[..., :-2] + lines[..., 1:-1]).add_(lines[..., 2:]).add_(x[..., 1:-1, 1:-1], alpha=4)
    made = images.clone()
    made[..., 1:-1, 1:-1] = _blend(total.div_(13).add_(0.5).floor_(), x[..., 1:-1, 1:-1], level)
    return made


def _blend(other: Tensor, x: Tensor, level: Ints) -> Tensor:
    """Blends `x` with `other` by its share; rounds down.  Floats up to 255 -> uint8"""
    share = torch.from_numpy(_share(level)).to(x.device)[:, None, None, None]
    return (x - other).mul_(share).add_(other).to(torch.uint8)


def _share(level: Ints) -> NDArray[np.float32]:
    """The weight of the image in a blend: 0.14 to 0.86."""
    return (0.9 * level / 10 + 0.05).astype(np.float32)


def _grey(x: Tensor) -> Tensor:
    """Luma as in Pillow, exact in 24 bits.  Floats up to 255, (n, c, h, w) -> (n, 1, h, w)"""
    if x.shape[1] == 1:
        return x
    r, g, b = x.split(1, dim=1)
    grey: Tensor = (r * (19595 / 65536)).add_(g, alpha=38470 / 65536).add_(b, alpha=7471 / 65536)
    return grey.add_(0.5).floor_()


KINDS: dict[Kind, tuple[str, ...]] = {
    identity: ("identity",),
    look_up: tuple(make.__name__ for make in TABLES),
    affine: ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
    color: ("color",),
    sharpness: ("sharpness",),
}
OPS = tuple(name for names in KINDS.values() for name in names)
NUMBER = {name: k for k, name in enumerate(OPS)}

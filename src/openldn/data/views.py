"""Random views of images: weak (flip, crop) and strong (weak, RandAugment, cutout).

Every function takes a whole batch, draws what it needs per image from torch's global generator and
stays on the batch's device. Images are uint8 (n, c, h, w) until `views` hands out floats in [0, 1].
Pixel arithmetic follows Pillow's, in which the reference implementation's operations are defined.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# ------------------------------------------------------------------------------------------- weak


def weak(images: Tensor, flip: bool) -> Tensor:
    """Mirrored with probability 1/2 (if `flip`), then shifted by up to 1/8 with reflected borders."""
    n, c, h, w = images.shape
    device = images.device

    def shifted(size: int) -> Tensor:  # (n, size): which source line each line shows
        pad = max(1, size // 8)
        shift = torch.randint(-pad, pad + 1, (n, 1), device=device)
        line = (torch.arange(size, device=device) + shift).abs()
        return torch.where(line >= size, 2 * (size - 1) - line, line)

    rows, columns = shifted(h), shifted(w)
    if flip:
        mirrored = torch.rand(n, 1, device=device) < 0.5
        columns = torch.where(mirrored, w - 1 - columns, columns)
    source = (rows[:, :, None] * w + columns[:, None, :]).view(n, 1, h * w)
    return images.flatten(2).gather(2, source.expand(n, c, h * w)).view(n, c, h, w)


# ------------------------------------------------------------------------------------------ strong


def strong(images: Tensor, flip: bool) -> Tensor:
    """A weak view, two random operations, and a square cut out."""
    return cutout(rand_augment(weak(images, flip)))


def rand_augment(images: Tensor, n_ops: int = 2) -> Tensor:
    """RandAugment as the reference has it: each image gets `n_ops` draws of 14 operations.

    A draw is applied with probability 1/2, at a level that is a random integer from 1 to 9.
    """
    images = images.clone()
    n, device = len(images), images.device
    for _ in range(n_ops):
        op = torch.randint(len(OPS), (n,), device=device)
        op[torch.rand(n, device=device) < 0.5] = OPS.index(identity)
        level = torch.randint(1, 10, (n,), device=device)
        sign = torch.randint(0, 2, (n,), device=device) * 2 - 1
        for k in op.unique().tolist():
            if OPS[k] is not identity:
                rows = torch.nonzero(op == k).flatten()
                images[rows] = OPS[k](images[rows], level[rows], sign[rows])
    return images


def cutout(images: Tensor, size: int = 16) -> Tensor:
    """A grey square at a random place: 16 pixels wide, or half the image where that is smaller.

    As in the reference the square is one pixel wider than named, moved (not shrunk) at the left and
    top border, and cut off at the right and bottom one.
    """
    n, _, h, w = images.shape
    device = images.device

    def covered(length: int) -> Tensor:  # (n, length)
        width = min(size, length // 2)
        start = (torch.rand(n, 1, device=device) * length - width / 2).clamp_min(0).floor()
        line = torch.arange(length, device=device)
        return (line >= start) & (line <= start + width)

    hole = covered(h)[:, None, :, None] & covered(w)[:, None, None, :]
    return images.masked_fill(hole, 127)


# ---------------------------------------- the 14 operations: images, level 1..9, sign -1 or 1 (n,)

Op = Callable[[Tensor, Tensor, Tensor], Tensor]


def identity(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """The images as they are."""
    return images


def autocontrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Each channel stretched to the full range."""
    # In double precision, as Pillow's table is, so that both round the same way.
    x = images.flatten(2).double()
    low, high = x.amin(2, keepdim=True), x.amax(2, keepdim=True)
    # A true division: torch takes `255 / x` for 255 times the rounded 1 / x.
    scale = torch.full_like(low, 255) / (high - low).clamp_min(1)
    stretched = (x * scale - low * scale).floor().clamp(0, 255)
    return torch.where(high > low, stretched, x).to(torch.uint8).view_as(images)


def equalize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Each channel's histogram made flat."""
    n, c, h, w = images.shape
    flat = images.flatten(2).long()
    channel = torch.arange(n * c, device=images.device).view(n, c, 1)
    counts = torch.bincount((channel * 256 + flat).flatten(), minlength=n * c * 256).view(n, c, 256)
    brightest = flat.amax(2, keepdim=True)
    step = (h * w - counts.gather(2, brightest)) // 255  # (n, c, 1); 0 where there is one value only
    before = counts.cumsum(2) - counts
    table = ((step // 2 + before) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, table.gather(2, flat), flat).to(torch.uint8).view_as(images)


def brightness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Faded towards black."""
    return _blend(torch.zeros_like(images), images, level)


def color(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Faded towards grey."""
    return _blend(_grey(images).expand_as(images), images, level)


def contrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Faded towards the image's mean grey."""
    mean = (_grey(images).double().mean((2, 3), keepdim=True) + 0.5).floor().to(torch.uint8)
    return _blend(mean.expand_as(images), images, level)


def sharpness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Faded towards a smoothed image, whose border stays as it is."""
    x = images.float()
    # The eight neighbours and the pixel five times over, divided by 13.
    total = F.avg_pool2d(x, 3, stride=1, divisor_override=1) + 4 * x[..., 1:-1, 1:-1]
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = (total / 13 + 0.5).floor().clamp(0, 255).to(torch.uint8)
    return _blend(smooth, images, level)


def posterize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Only the 4 to 7 highest bits of each value kept."""
    dropped = 8 - ((0.4 * level).long() + 4)
    return images & (256 - 2**dropped).to(torch.uint8)[:, None, None, None]


def solarize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Values above a threshold turned into their negative."""
    threshold = (256 - (25.6 * level).long())[:, None, None, None]
    return torch.where(images >= threshold, 255 - images, images)


def rotate(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Turned about the centre by 3 to 27 degrees, either way."""
    angle = torch.deg2rad((3 * level * sign).double())
    cos, sin = angle.cos(), angle.sin()
    x, y = images.shape[3] / 2, images.shape[2] / 2
    return _affine(images, a=cos, b=-sin, c=x - (cos * x - sin * y), d=sin, e=cos, f=y - (sin * x + cos * y))


def shear_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Lines shifted in proportion to their height."""
    return _affine(images, b=0.03 * level.double() * sign)


def shear_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Columns shifted in proportion to their place."""
    return _affine(images, d=0.03 * level.double() * sign)


def translate_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Moved sideways by 3 to 27 % of the width, in whole pixels."""
    return _affine(images, c=(level.double() * 0.3 / 10 * images.shape[3]).floor() * sign)


def translate_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Moved up or down by 3 to 27 % of the height, in whole pixels."""
    return _affine(images, f=(level.double() * 0.3 / 10 * images.shape[2]).floor() * sign)


OPS: tuple[Op, ...] = (
    identity,
    autocontrast,
    equalize,
    brightness,
    color,
    contrast,
    sharpness,
    posterize,
    solarize,
    rotate,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)


def _blend(other: Tensor, images: Tensor, level: Tensor) -> Tensor:
    """`images` weighted by 0.09 level + 0.05 (0.14 .. 0.86), the rest `other`; rounded down."""
    share = (0.9 * level.double() / 10 + 0.05).float()[:, None, None, None]
    return (other.float() + share * (images.float() - other.float())).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Luma as Pillow computes it.  (n, c, h, w) -> (n, 1, h, w)"""
    if images.shape[1] == 1:
        return images
    r, g, b = images.int().unbind(1)
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]


def _affine(
    images: Tensor,
    *,
    a: Tensor | float = 1.0,
    b: Tensor | float = 0.0,
    c: Tensor | float = 0.0,
    d: Tensor | float = 0.0,
    e: Tensor | float = 1.0,
    f: Tensor | float = 0.0,
) -> Tensor:
    """Pixel (x, y) shows what was at (a x + b y + c, d x + e y + f), or black outside; factors are (n,)."""
    n, channels, h, w = images.shape
    x = torch.arange(w, device=images.device)
    y = torch.arange(h, device=images.device)[:, None]

    def fixed(factor: Tensor | float) -> Tensor:  # Pillow's: 16 bits after the point
        factor = torch.as_tensor(factor, dtype=torch.float64, device=images.device)
        return (factor * 65536 + 0.5).floor().long().expand(n)[:, None, None]

    # c and f as seen from the centre of pixel (0, 0)
    column = (fixed(a) * x + fixed(b) * y + fixed(c + a * 0.5 + b * 0.5)) >> 16  # (n, h, w)
    row = (fixed(d) * x + fixed(e) * y + fixed(f + d * 0.5 + e * 0.5)) >> 16
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    source = (row.clamp(0, h - 1) * w + column.clamp(0, w - 1)).view(n, 1, h * w)
    moved = images.flatten(2).gather(2, source.expand(n, channels, h * w)).view_as(images)
    return moved * inside[:, None].to(torch.uint8)


# ------------------------------------------------------------------------------------------ views

VIEWS: dict[str, Callable[[Tensor, bool], Tensor]] = {"weak": weak, "strong": strong}


def views(images: Tensor, names: tuple[str, ...], flip: bool) -> tuple[Tensor, ...]:
    """One independent view per name, as floats in [0, 1]."""
    return tuple(VIEWS[name](images, flip).float().div_(255) for name in names)

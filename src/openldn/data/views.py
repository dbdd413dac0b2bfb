"""Random views of images: weak (flip, crop), cut (weak, a small square gone), strong (weak, RandAugment,
cutout), crop (crop, flip, colours).

Every function takes a whole batch, draws what it needs for each image and stays on the batch's device.
Images are uint8 (n, c, h, w) until `views` hands out floats in [0, 1]. Pixel arithmetic follows Pillow's, in
which the reference implementation's operations are defined; on the device it needs no double precision.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import workers
from openldn.data.draws import Draws, Keys, keys_of, whole
from openldn.data.operations import OPS, Ints, applied, picked

RESIZED_ABOVE = 96  # pixels: the reference shifts images of 32 and 64 pixels and resizes crops at 224


def views(images: Tensor, names: tuple[str, ...], flip: bool, keys: Keys) -> tuple[Tensor, ...]:
    """One independent view per name, as floats in [0, 1]; image i's follow from its key alone.

    Images may be floats in [0, 1] too and are rounded to 256 levels, with which the operations work.
    """
    if images.is_floating_point():
        images = (images * 255).round().to(torch.uint8)
    made = tuple(torch.empty(images.shape, device=images.device) for _ in names)

    def make(rows: slice) -> None:
        for k, name in enumerate(names):
            view = VIEWS[name](images[rows], Draws(keys_of(keys[rows], k)), flip)
            made[k][rows].copy_(view).div_(255)

    if images.device.type == "cpu":
        _shared_out(make, len(images), images.numel())
    else:
        make(slice(None))
    return made


def _shared_out(make: Callable[[slice], None], n: int, values: int) -> None:
    """On a CPU each thread makes the views of some images, or one those of all, where there is little to do.

    Left to itself torch would have all threads share every one of many small operations, and spend most of
    the time on waking them.
    """
    n_shares = max(1, min(workers.count(), n, values // 2**20))
    ends = [n * k // n_shares for k in range(n_shares + 1)]
    for done in [_threads().submit(make, slice(*ends[k : k + 2])) for k in range(n_shares)]:
        done.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers.count(), "views", torch.set_num_threads, (1,))


def weak(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A crop, mirrored with probability 1/2 (if `flip`)."""
    crop = resized_crop if max(images.shape[2:]) > RESIZED_ABOVE else shifted
    return crop(images, draws, flip)


def strong(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A weak view, two random operations, and a square cut out."""
    return cutout(rand_augment(weak(images, draws, flip), draws), draws)


def cut(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A weak view, and a square a quarter as wide cut out."""
    return cutout(weak(images, draws, flip), draws, size=max(images.shape[2:]) // 4)


def mixed(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """Strong for about one image of two, weak for the others."""
    made = weak(images, draws, flip)
    (chance,) = draws.uniform(1)
    rows = np.flatnonzero(chance < 0.5)
    more = Draws(keys_of(draws.keys[rows], len(VIEWS)))
    made[rows] = cutout(rand_augment(made[rows], more), more)
    return made


def crop(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A box of at least a fifth of the image, mirrored or not, in changed colours: as SimCLR wants them."""
    return coloured(boxed(images, draws, flip), draws)


VIEWS: dict[str, Callable[[Tensor, Draws, bool], Tensor]] = {
    "weak": weak,
    "strong": strong,
    "mixed": mixed,
    "crop": crop,
    "cut": cut,
}

# ------------------------------------------------------------------------------------------- crops


def shifted(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """Shifted by up to 1/8 of its size with reflected borders, after it was mirrored or not."""
    h, w = images.shape[2:]
    mirrored, down, right = draws.uniform(3)
    rows, columns = (lines[whole(u, 0, len(lines))] for lines, u in ((_lines(h), down), (_lines(w), right)))
    if flip:
        columns = np.where(mirrored[:, None] < 0.5, w - 1 - columns, columns)
    y, x = (torch.from_numpy(lines).to(images.device) for lines in (rows * w, columns))
    return picked(images, y[:, None, :, None] + x[:, None, None, :])


@cache
def _lines(size: int) -> NDArray[np.int32]:
    """Which line each line shows, for every shift.  (shifts, size)"""
    pad = max(1, size // 8)
    line: Ints = np.abs(np.arange(size) + np.arange(-pad, pad + 1)[:, None])
    return np.where(line < size, line, 2 * (size - 1) - line).astype(np.int32)


def resized_crop(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A box of random size, shape and place (torchvision's RandomResizedCrop), as large as the image again.

    Samples are bilinear. As a box is never larger than the view made of it, nothing is shrunk, and there
    is nothing to antialias. An image at a time, since each has a box of its own.
    """
    h, w = images.shape[2:]
    made = images.new_empty(images.shape)
    mirrored = (draws.uniform(1) < 0.5) & flip
    boxes = np.concatenate([crop_boxes(draws, h, w), mirrored]).T.tolist()
    for k, (top, left, height, width, mirror) in enumerate(boxes):
        # k : k + 1, as an image taken by its number no longer shows torch that its channels lie together.
        box = images[k : k + 1, :, top : top + height, left : left + width]
        box = box.flip(3) if mirror else box
        box = box if box.device.type == "cpu" else box.float()  # a CPU takes bytes as they are
        new = F.interpolate(box, (h, w), mode="bilinear", antialias=True)
        made[k : k + 1].copy_(new.round() if new.is_floating_point() else new)
    return made


def boxed(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """The same for small images, all of them at once: 20 to 100 % of the area.  Floats, 0 to 255."""
    h, w = images.shape[2:]
    mirrored = (draws.uniform(1)[0] < 0.5) & flip
    top, left, height, width = crop_boxes(draws, h, w, least=0.2)
    y0, y1, down = _between_lines(top, height, h)
    x0, x1, right = _between_lines(left, width, w)
    x0, x1, right = (np.where(mirrored[:, None], a[:, ::-1], a) for a in (x0, x1, right))

    def on(a: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).to(images.device)

    def line(y: Ints) -> Tensor:
        rows = on((y * w).astype(np.int32))[:, None, :, None]
        a, b = (picked(images, rows + on(x.astype(np.int32))[:, None, None, :]).float() for x in (x0, x1))
        return a.lerp_(b, on(right.astype(np.float32))[:, None, None, :])

    return line(y0).lerp_(line(y1), on(down.astype(np.float32))[:, None, :, None])


def _between_lines(first: Ints, length: Ints, size: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """For each of `size` lines, which two lines of a box it lies between, and where.  (n, size) each"""
    place = np.clip((np.arange(size) + 0.5) * (length[:, None] / size) - 0.5, 0, length[:, None] - 1)
    before = place.astype(np.int64)
    after = np.minimum(before + 1, length[:, None] - 1)
    return first[:, None] + before, first[:, None] + after, place - before


GREY = torch.tensor([0.299, 0.587, 0.114])
# Of colours as brightness and two differences (YIQ); hues are turned there.
TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])


def coloured(images: Tensor, draws: Draws) -> Tensor:
    """Brightness, contrast and saturation times 0.6 to 1.4 and hues turned by up to a tenth, for four images
    of five; grey for one of five. Images are floats (n, c, h, w), 0 to 255.

    All of it is linear in a pixel's colour, so one matrix an image does it; values are cut off at the end.
    """
    chance, grey, *strength, hue = draws.uniform(6)
    changed = chance < 0.8
    bright, contrast, saturation = (np.where(changed, 0.6 + 0.8 * u, 1.0) for u in strength)
    n, channels = images.shape[:2]

    def on(a: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(a.astype(np.float32)).to(images.device).view(n, 1, 1)

    scale = on(bright * contrast)
    weights = GREY.to(images.device) if channels == 3 else torch.ones(1, device=images.device)
    means = torch.einsum("nchw,c->n", images, weights) / images[0, 0].numel()
    added = on(bright * (1 - contrast)) * means.view(n, 1, 1)  # the mean that contrast leaves as it is
    x = images.flatten(2)
    if channels == 3:
        turn = np.where(changed, 0.2 * hue - 0.1, 0.0) * 2 * np.pi
        cos, sin, one = on(np.cos(turn)), on(np.sin(turn)), on(np.ones(n))
        zero = 0 * one
        turned = torch.cat([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=2).view(n, 3, 3)
        to_yiq = TO_YIQ.to(images.device)
        turned = torch.linalg.inv(to_yiq) @ turned @ to_yiq
        kept = on(np.where(grey < 0.2, 0.0, saturation))
        faded = kept * torch.eye(3, device=images.device) + (1 - kept) * weights.expand(3, 3)
        x = turned @ faded @ x  # greys stay what they are under both
    return (scale * x + added).clamp_(0, 255).view_as(images)


def crop_boxes(draws: Draws, h: int, w: int, tries: int = 10, least: float = 0.08) -> Ints:
    """Top, left, height and width: `least` to 100 % of the area, 3/4 to 4/3 times as wide as high.  (4, n)

    The first of ten that fits, else the largest in the centre that is not too oblong.
    """
    x, y, *sizes = draws.uniform(2 + 2 * tries)
    area = h * w * (least + (1 - least) * np.stack(sizes[:tries]))  # (tries, n)
    aspect = (3 / 4) ** (1 - 2 * np.stack(sizes[tries:]))
    height, width = np.rint(np.sqrt(area / aspect)), np.rint(np.sqrt(area * aspect))
    fits = (height >= 1) & (height <= h) & (width >= 1) & (width <= w)
    first = fits.argmax(0), np.arange(fits.shape[1])
    found = fits[first]
    height = np.where(found, height[first], min(h, round(w * 4 / 3))).astype(np.int64)
    width = np.where(found, width[first], min(w, round(h * 4 / 3))).astype(np.int64)
    top = np.where(found, whole(y, 0, h - height + 1), (h - height) // 2)
    left = np.where(found, whole(x, 0, w - width + 1), (w - width) // 2)
    return np.stack([top, left, height, width])


# ------------------------------------------------------------------------------------------ strong


def rand_augment(images: Tensor, draws: Draws, n_ops: int = 2) -> Tensor:
    """RandAugment as the reference has it: each image gets `n_ops` draws of 14 operations.

    A draw is applied with probability 1/2, at a level that is a random integer from 1 to 9.
    """
    for _ in range(n_ops):
        chance, op, level, sign = draws.uniform(4)
        op = np.where(chance < 0.5, whole(op, 0, len(OPS)), OPS.index("identity"))
        images = applied(images, op, whole(level, 1, 10), 2 * whole(sign, 0, 2) - 1)
    return images


def cutout(images: Tensor, draws: Draws, size: int = 16) -> Tensor:
    """A grey square at a random place: 16 pixels wide, or half the image where that is smaller.

    As in the reference the square is one pixel wider than named, moved (not shrunk) at the left and
    top border, and cut off at the right and bottom one.
    """
    h, w = images.shape[2:]
    x, y = draws.uniform(2)
    top, bottom = _span(h, min(size, h // 2), y)
    left, right = _span(w, min(size, w // 2), x)
    images = images.clone()
    if images.device.type == "cpu":  # where a mask of the whole image costs more than its few pixels
        boxes = np.stack([top, bottom, left, right]).T.tolist()
        for image, (a, b, c, d) in zip(images.numpy(), boxes, strict=True):
            image[:, a:b, c:d] = 127
        return images
    hole = _between(top, bottom, h)[:, None, :, None] & _between(left, right, w)[:, None, None, :]
    return images.masked_fill_(torch.from_numpy(hole).to(images.device), 127)


def _span(length: int, width: int, centre: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """The first line and the one after the last.  (n,), (n,)"""
    start = np.maximum(0, centre * length - width / 2).astype(np.int64)
    return start, start + width + 1


def _between(start: Ints, stop: Ints, length: int) -> NDArray[np.bool_]:
    """Which lines those are.  (n, length)"""
    lines = np.arange(length)
    return (start[:, None] <= lines) & (lines < stop[:, None])

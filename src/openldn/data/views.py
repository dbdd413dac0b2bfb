"""Random augmented views of images.

Every function takes a whole batch and draws independently for each image. Images are uint8 (n, c, h, w)
until `views` returns floats in [0, 1]. Pixel arithmetic is Pillow's, as in the reference implementation; on
the device it needs no double precision.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import features, workers
from openldn.data.draws import Draws, Keys, integers, keys_of
from openldn.data.operations import OPS, Ints, apply_ops, gather_pixels

# Pixels: the reference shifts images of 32 and 64 pixels, and crops and resizes those of 224.
RESIZED_ABOVE = 96


def views(
    images: Tensor, names: tuple[str, ...], flip: bool, keys: Keys, crop: int | None = None
) -> tuple[Tensor, ...]:
    """One view per name, as floats in [0, 1]; those of image i depend on its key alone.

    With `crop`, they are random resized crops of so many pixels.

    Images may also be floats in [0, 1], which are rounded to 256 levels, or features (n, v, d).
    """
    if images.ndim == 3:
        return features.views(images, names, keys)
    if images.is_floating_point():
        images = (images * 255).round().to(torch.uint8)
    size = crop or images.shape[3]
    shape = (*images.shape[:2], size, size) if crop else images.shape
    made = tuple(torch.empty(shape, device=images.device) for _ in names)

    def make(rows: slice) -> None:
        for k, name in enumerate(names):
            view = VIEWS[name](images[rows], Draws(keys_of(keys[rows], k)), flip, crop)
            made[k][rows].copy_(view).div_(255)

    if images.device.type == "cpu":
        _in_threads(make, len(images), images.numel())
    else:
        make(slice(None))
    return made


def _in_threads(make: Callable[[slice], None], n: int, values: int) -> None:
    """Makes the views of `n` images in several threads, each with its own images, if there are enough values.

    By itself torch would use all threads for each of many small operations, and spend its time waking them.
    """
    n_shares = max(1, min(workers.count(), n, values // 2**20))
    ends = [n * k // n_shares for k in range(n_shares + 1)]
    threads = _threads(os.getpid())
    for done in [threads.submit(make, slice(*ends[k : k + 2])) for k in range(n_shares)]:
        done.result()


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of a process: a forked child does not inherit those of its parent."""
    n = torch.get_num_threads()
    threads = ThreadPoolExecutor(workers.count(), "views", torch.set_num_threads, (1,))
    started = Barrier(workers.count() + 1)
    for _ in range(workers.count()):
        threads.submit(started.wait)
    started.wait()
    torch.set_num_threads(n)  # theirs has become the default for all threads to come
    return threads


# Nor does it inherit the OpenMP threads of torch, which waits for them for ever unless it is told to use one.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def weak(images: Tensor, draws: Draws, flip: bool, crop: int | None = None) -> Tensor:
    """A random crop, flipped with probability 1/2 (if `flip`)."""
    if crop is None and max(images.shape[2:]) <= RESIZED_ABOVE:
        return random_shift(images, draws, flip)
    return random_resized_crop(images, draws, flip, crop)


def strong(images: Tensor, draws: Draws, flip: bool, crop: int | None = None) -> Tensor:
    """A weak view, RandAugment and cutout."""
    return cutout(rand_augment(weak(images, draws, flip, crop), draws), draws)


def weak_cutout(images: Tensor, draws: Draws, flip: bool, crop: int | None = None) -> Tensor:
    """A weak view, and a cutout a quarter as wide as the image."""
    view = weak(images, draws, flip, crop)
    return cutout(view, draws, size=max(view.shape[2:]) // 4)


def crop_jitter(images: Tensor, draws: Draws, flip: bool, crop: int | None = None) -> Tensor:
    """A random resized crop of at least 20 % of the area, flip and colour jitter, as in SimCLR."""
    return colour_jitter(batched_resized_crop(images, draws, flip, crop), draws)


VIEWS = {view.__name__: view for view in (weak, weak_cutout, strong, crop_jitter)}


def random_shift(images: Tensor, draws: Draws, flip: bool) -> Tensor:
    """A flip, and a shift by up to 1/8 of the size with reflected borders."""
    h, w = images.shape[2:]
    flipped, down, right = draws.uniform(3)
    rows, columns = (at[integers(u, 0, len(at))] for at, u in ((_lines(h), down), (_lines(w), right)))
    if flip:
        columns = np.where(flipped[:, None] < 0.5, w - 1 - columns, columns)
    y, x = (torch.from_numpy(lines).to(images.device) for lines in (rows * w, columns))
    return gather_pixels(images, y[:, None, :, None] + x[:, None, None, :])


@cache
def _lines(size: int) -> NDArray[np.int32]:
    """The source of each row or column, for every shift.  (shifts, size)"""
    pad = max(1, size // 8)
    line: Ints = np.abs(np.arange(size) + np.arange(-pad, pad + 1)[:, None])
    return np.where(line < size, line, 2 * (size - 1) - line).astype(np.int32)


def random_resized_crop(images: Tensor, draws: Draws, flip: bool, size: int | None = None) -> Tensor:
    """A flip and a crop of random size, aspect ratio and place, resized to `size`, or that of the image.

    As torchvision's RandomResizedCrop, bilinear. One image at a time, since crops differ in size.
    """
    h, w = images.shape[2:]
    shape = (size, size) if size else (h, w)
    made = images.new_empty((*images.shape[:2], *shape))
    flipped = (draws.uniform(1) < 0.5) & flip
    boxes = np.concatenate([crop_boxes(draws, h, w), flipped]).T.tolist()
    for k, (top, left, height, width, flip_it) in enumerate(boxes):
        # Not images[k], which would hide from torch that the memory layout is channels-last.
        box = images[k : k + 1, :, top : top + height, left : left + width]
        box = box.flip(3) if flip_it else box
        box = box if box.device.type == "cpu" else box.float()  # a CPU can resize bytes
        new = F.interpolate(box, shape, mode="bilinear", antialias=True)
        made[k : k + 1].copy_(new.round() if new.is_floating_point() else new)
    return made


def batched_resized_crop(images: Tensor, draws: Draws, flip: bool, size: int | None = None) -> Tensor:
    """The same for small images, a whole batch at a time, with 20 to 100 % of the area.  Floats, 0 to 255"""
    h, w = images.shape[2:]
    flipped = (draws.uniform(1)[0] < 0.5) & flip
    top, left, height, width = crop_boxes(draws, h, w, least=0.2)
    y0, y1, down = _between_lines(top, height, size or h)
    x0, x1, right = _between_lines(left, width, size or w)
    x0, x1, right = (np.where(flipped[:, None], a[:, ::-1], a) for a in (x0, x1, right))

    def on(a: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).to(images.device)

    def line(y: Ints) -> Tensor:
        rows = on((y * w).astype(np.int32))[:, None, :, None]
        a, b = (
            gather_pixels(images, rows + on(x.astype(np.int32))[:, None, None, :]).float() for x in (x0, x1)
        )
        return a.lerp_(b, on(right.astype(np.float32))[:, None, None, :])

    return line(y0).lerp_(line(y1), on(down.astype(np.float32))[:, None, :, None])


def _between_lines(first: Ints, length: Ints, size: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Linear interpolation: two source lines for each of `size` lines, and the weight.  (n, size) each"""
    place = np.clip((np.arange(size) + 0.5) * (length[:, None] / size) - 0.5, 0, length[:, None] - 1)
    before = place.astype(np.int64)
    after = np.minimum(before + 1, length[:, None] - 1)
    return first[:, None] + before, first[:, None] + after, place - before


GREY = torch.tensor([0.299, 0.587, 0.114])
# The YIQ colour space, in which a change of hue is a rotation.
TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])


def colour_jitter(images: Tensor, draws: Draws) -> Tensor:
    """Colour jitter with probability 0.8, and grey with probability 0.2.  Floats (n, c, h, w), 0 to 255

    Brightness, contrast and saturation are multiplied by 0.6 to 1.4, and the hue is shifted by up to 0.1 of a
    turn. All are linear in the colour of a pixel, so one matrix per image suffices; the result is clipped.
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
    added = on(bright * (1 - contrast)) * means.view(n, 1, 1)  # contrast keeps the mean
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
        x = turned @ faded @ x  # neither changes greys
    return (scale * x + added).clamp_(0, 255).view_as(images)


def crop_boxes(draws: Draws, h: int, w: int, tries: int = 10, least: float = 0.08) -> Ints:
    """Top, left, height and width: `least` to 100 % of the area, aspect ratio 3/4 to 4/3.  (4, n)

    The first of ten draws that fits, else the largest crop in the centre with an allowed aspect ratio.
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
    top = np.where(found, integers(y, 0, h - height + 1), (h - height) // 2)
    left = np.where(found, integers(x, 0, w - width + 1), (w - width) // 2)
    return np.stack([top, left, height, width])


def rand_augment(images: Tensor, draws: Draws, n_ops: int = 2) -> Tensor:
    """RandAugment as in the reference: `n_ops` times, with probability 1/2, an operation at level 1 to 9."""
    for _ in range(n_ops):
        chance, op, level, sign = draws.uniform(4)
        op = np.where(chance < 0.5, integers(op, 0, len(OPS)), OPS.index("identity"))
        images = apply_ops(images, op, integers(level, 1, 10), 2 * integers(sign, 0, 2) - 1)
    return images


def cutout(images: Tensor, draws: Draws, size: int = 16) -> Tensor:
    """Cutout: a grey square at a random place, `size` pixels wide, but at most half as wide as the image.

    As in the reference, the square is one pixel wider than that, moved at the left and top border, and
    cut off at the right and bottom border.
    """
    h, w = images.shape[2:]
    x, y = draws.uniform(2)
    top, bottom = _span(h, min(size, h // 2), y)
    left, right = _span(w, min(size, w // 2), x)
    images = images.clone()
    if images.device.type == "cpu":  # slices are faster than a mask of the whole image
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
    """A mask of these lines.  (n, length)"""
    lines = np.arange(length)
    return (start[:, None] <= lines) & (lines < stop[:, None])

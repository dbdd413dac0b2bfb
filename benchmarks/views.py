"""The speed of augmentation: whole batches against Pillow, one image at a time.

Both do the same to photographs: flip and crop (shifted up to 96 pixels, resized above), for strong views two
draws of RandAugment and cutout; then floats. Part of data.py.
"""

import random
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images
from torch import Tensor

from openldn.data.draws import keys_of
from openldn.data.views import RESIZED_ABOVE, views

# Pixels, and images per batch; training makes views of up to 16 batches of small images at a time.
BATCHES = [
    (32, 100),
    (32, 200),
    (32, 400),
    (32, 1200),
    (64, 100),
    (64, 300),
    (224, 32),
    (224, 64),
    (224, 128),
]


def table(turns: int = 8) -> None:
    shown = Table(
        "pixels",
        "batch",
        "view",
        "openldn, images/s",
        "Pillow, images/s",
        "times",
        title=f"augmentation, median of {3 * turns} calls",
    )
    for size, n in BATCHES:
        images = photographs(size, n)
        pictures = [image.permute(1, 2, 0).contiguous().numpy() for image in images]
        for name in ("weak", "strong"):
            ours, theirs = side_by_side(
                lambda i, x=images, name=name: views(x, (name,), True, keys_of(i, np.arange(len(x)))),
                lambda i, x=pictures, name=name: by_pillow(x, strong=name == "strong"),
                turns,
            )
            cells = (f"{n / ours:,.0f}", f"{n / theirs:,.0f}", f"{theirs / ours:.1f}")
            shown.add_row(str(size), str(n), name, *cells)
    Console().print(shown)


def side_by_side(a: Callable[[int], object], b: Callable[[int], object], n: int) -> tuple[float, float]:
    """Median seconds of each, in alternating groups of four calls, of which the first is a warm-up."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(n):
        for f, taken in zip((a, b), seconds, strict=True):
            for i in range(4 * turn, 4 * turn + 4):
                started = time.perf_counter()
                f(i)
                if i % 4:
                    taken.append(time.perf_counter() - started)
    return float(np.median(seconds[0])), float(np.median(seconds[1]))


def photographs(size: int, n: int) -> Tensor:
    """Random crops of two photographs, uint8 (n, 3, size, size), in the memory layout that training has:
    channels first from CIFAR's files, channels last from the store.
    """
    rng, made = np.random.default_rng(0), []
    wholes = [Image.fromarray(whole) for whole in load_sample_images().images]
    for k in range(n):
        whole, width = wholes[k % 2], int(rng.integers(150, 400))
        left, top = int(rng.integers(0, whole.width - width)), int(rng.integers(0, whole.height - width))
        box = (left, top, left + width, top + width)
        made.append(np.asarray(whole.resize((size, size), Image.Resampling.BILINEAR, box)))
    images = torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)
    return images.contiguous() if size == 32 else images


# ------------------------------------------------------------------------------------------- Pillow


def by_pillow(images: list[np.ndarray], strong: bool) -> Tensor:
    made = []
    for array in images:
        image = Image.fromarray(array)
        image = resized(image) if image.width > RESIZED_ABOVE else shifted(image)
        if strong:
            for _ in range(2):
                op, level, sign = random.choice(OPS), random.randint(1, 9), random.choice((-1, 1))
                if random.random() < 0.5:
                    image = op(image, level, sign)
            image = cutout(image)
        made.append(np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255)
    return torch.from_numpy(np.stack(made))


def flipped(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def shifted(image: Image.Image) -> Image.Image:
    pad = image.width // 8
    array = np.pad(np.asarray(flipped(image)), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    top, left = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
    return Image.fromarray(array[top : top + image.height, left : left + image.width])


def resized(image: Image.Image) -> Image.Image:
    for _ in range(10):
        area = random.uniform(0.08, 1) * image.width * image.height
        aspect = (3 / 4) ** random.uniform(-1, 1)
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if width <= image.width and height <= image.height:
            break
    else:
        width, height = image.size
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    crop = image.crop((left, top, left + width, top + height))
    return flipped(crop.resize(image.size, Image.Resampling.BILINEAR))


def cutout(image: Image.Image) -> Image.Image:
    width = min(16, image.width // 2)
    left, top = (int(max(0, random.random() * length - width / 2)) for length in image.size)
    image = image.copy()
    corners = (left, top, min(image.width, left + width), min(image.height, top + width))
    ImageDraw.Draw(image).rectangle(corners, (127, 127, 127))
    return image


def moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def share(level: int) -> float:
    return 0.9 * level / 10 + 0.05


OPS: list[Callable[[Image.Image, int, int], Image.Image]] = [
    lambda im, v, sign: im,
    lambda im, v, sign: ImageOps.autocontrast(im),
    lambda im, v, sign: ImageOps.equalize(im),
    lambda im, v, sign: ImageEnhance.Brightness(im).enhance(share(v)),
    lambda im, v, sign: ImageEnhance.Color(im).enhance(share(v)),
    lambda im, v, sign: ImageEnhance.Contrast(im).enhance(share(v)),
    lambda im, v, sign: ImageEnhance.Sharpness(im).enhance(share(v)),
    lambda im, v, sign: ImageOps.posterize(im, int(v * 4 / 10) + 4),
    lambda im, v, sign: ImageOps.solarize(im, 256 - int(v * 256 / 10)),
    lambda im, v, sign: im.rotate(sign * int(v * 30 / 10)),
    lambda im, v, sign: moved(im, 1, sign * v * 0.3 / 10, 0, 0, 1, 0),
    lambda im, v, sign: moved(im, 1, 0, 0, sign * v * 0.3 / 10, 1, 0),
    lambda im, v, sign: moved(im, 1, 0, int(sign * v * 0.3 / 10 * im.width), 0, 1, 0),
    lambda im, v, sign: moved(im, 1, 0, 0, 0, 1, int(sign * v * 0.3 / 10 * im.height)),
]

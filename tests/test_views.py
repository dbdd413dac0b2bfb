"""Every operation against Pillow's, what is drawn how often, and views of all sizes against brute force.

The magnitudes are the reference implementation's; the oracles below spell them out once more.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from openldn.data import views as module
from openldn.data.views import OPS, cutout, rand_augment, strong, views, weak

SIZES = [8, 32, 64]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they give at these sizes, on a busy machine many times over."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def photographs(size: int) -> Tensor:
    """Square crops of two photographs, small and large, made `size` pixels wide."""
    made = []
    for whole in load_sample_images().images:
        for left, top, width in [(100, 20, 400), (300, 200, 100)]:
            crop = Image.fromarray(whole).crop((left, top, left + width, top + width))
            made.append(np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()


def digits() -> Tensor:
    grey = load_digits().images[:6] * 255 / 16
    return torch.from_numpy(grey.astype(np.uint8))[:, None]


def oblong() -> Tensor:
    """Wider than high, in colour."""
    return photographs(64)[:, :, 10:42, 5:53].contiguous()


def odd_ones() -> Tensor:
    """Images of one value, of two values, of two neighbouring ones, and noise."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (4, 3, 32, 32), generator=g, dtype=torch.uint8)
    two = torch.where(noise[:2] < 100, 30, 200).to(torch.uint8)
    constant = torch.tensor([0, 77, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 32, 32)
    close = torch.where(noise[:1] < 128, 99, 100).to(torch.uint8)
    mostly = torch.where(noise[2:3] < 250, 7, noise[3:4])
    return torch.cat([noise, two, constant, close, mostly])


def plenty(n: int, size: int, channels: int = 1, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), generator=g, dtype=torch.uint8)


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy())


def from_pillow(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


# ------------------------------------------------------------------- the 14 operations, against Pillow


def moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def sharpened(image: Image.Image, factor: float) -> Image.Image:
    """What ImageEnhance.Sharpness is defined as."""
    made = ImageEnhance.Sharpness(image).enhance(factor)
    assert made == Image.blend(image.filter(ImageFilter.SMOOTH), image, factor)
    return made


def share(v: int) -> float:
    return 0.9 * v / 10 + 0.05


def pixels(v: int, sign: int, size: int) -> int:
    """Whole pixels, rounded towards nought, as in the reference."""
    return int(sign * (v * 0.3 / 10) * size)


PILLOW: dict[str, Callable[[Image.Image, int, int], Image.Image]] = {
    "identity": lambda im, v, sign: im,
    "autocontrast": lambda im, v, sign: ImageOps.autocontrast(im),
    "equalize": lambda im, v, sign: ImageOps.equalize(im),
    "brightness": lambda im, v, sign: ImageEnhance.Brightness(im).enhance(share(v)),
    "color": lambda im, v, sign: ImageEnhance.Color(im).enhance(share(v)),
    "contrast": lambda im, v, sign: ImageEnhance.Contrast(im).enhance(share(v)),
    "sharpness": lambda im, v, sign: sharpened(im, share(v)),
    "posterize": lambda im, v, sign: ImageOps.posterize(im, int(v * 4 / 10) + 4),
    "solarize": lambda im, v, sign: ImageOps.solarize(im, 256 - int(v * 256 / 10)),
    "rotate": lambda im, v, sign: im.rotate(sign * int(v * 30 / 10)),
    "shear_x": lambda im, v, sign: moved(im, 1, sign * v * 0.3 / 10, 0, 0, 1, 0),
    "shear_y": lambda im, v, sign: moved(im, 1, 0, 0, sign * v * 0.3 / 10, 1, 0),
    "translate_x": lambda im, v, sign: moved(im, 1, 0, pixels(v, sign, im.width), 0, 1, 0),
    "translate_y": lambda im, v, sign: moved(im, 1, 0, 0, 0, 1, pixels(v, sign, im.height)),
}

# By how many grey levels a pixel may be off. A blend is a rounded-down product, and a machine that fuses
# multiplication and addition may come out on the other side of a whole number; all else is integers.
TOLERANCE = {"brightness": 1, "color": 1, "contrast": 1, "sharpness": 1}

IMAGES: dict[str, Callable[[], Tensor]] = {
    "8 grey": digits,
    "32 colour": lambda: photographs(32),
    "64 colour": lambda: photographs(64),
    "32 x 48": oblong,
    "odd": odd_ones,
}


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_operations_are_pillows(op: module.Op, kind: str) -> None:
    """At every level and with both signs, all in one batch."""
    images = IMAGES[kind]()
    cases = [(i, v, sign) for i in range(len(images)) for v in range(1, 10) for sign in (-1, 1)]
    i, v, sign = torch.tensor(cases).unbind(1)
    batch = images[i]
    before = batch.clone()
    ours = op(batch, v, sign)
    assert torch.equal(batch, before), "the input was changed"
    assert ours.dtype == torch.uint8
    theirs = torch.stack([from_pillow(PILLOW[op.__name__](to_pillow(images[i]), v, s)) for i, v, s in cases])
    off = (ours.int() - theirs.int()).abs()
    assert int(off.max()) <= TOLERANCE.get(op.__name__, 0)
    assert float((off > 0).float().mean()) < 1e-4  # where a tolerance is needed, almost nowhere


def test_there_are_14_operations() -> None:
    assert sorted(op.__name__ for op in OPS) == sorted(PILLOW)
    assert len(PILLOW) == 14


# ------------------------------------------------------------------------------------- RandAugment


def usual(count: float, n: int, p: float) -> bool:
    """Whether `count` of n lies within five standard deviations of what probability p makes expect."""
    return abs(count - n * p) < 5 * math.sqrt(n * p * (1 - p))


def markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen operations that leave their level and sign at their own place; identity as it is."""

    def marker(k: int) -> module.Op:
        def mark(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
            images = images.clone()
            images[:, 0, 0, k] += 1
            images[:, 0, 1, k] = level.to(torch.uint8)
            images[:, 0, 2, k] = (sign + 1).to(torch.uint8)
            return images

        return mark

    monkeypatch.setattr(
        module, "OPS", (*(marker(k) for k in range(6)), module.identity, *map(marker, range(6, 13)))
    )


def test_each_operation_is_drawn_equally_often_and_applied_half_the_time(monkeypatch) -> None:
    markers(monkeypatch)
    torch.manual_seed(0)
    n = 30_000
    made = rand_augment(torch.zeros(n, 1, 3, 13, dtype=torch.uint8), n_ops=1)[:, 0]
    times, levels, signs = made.long().unbind(1)  # (n, 13) each
    assert int(times.sum(1).max()) == 1
    for k in range(13):
        assert usual(int(times[:, k].sum()), n, 1 / 28), k
    assert usual(int((times.sum(1) == 0).sum()), n, 1 / 2 + 1 / 28)
    applied = int(times.sum())
    seen = Counter(levels[times == 1].tolist())
    assert sorted(seen) == list(range(1, 10))
    assert all(usual(count, applied, 1 / 9) for count in seen.values())
    seen = Counter(signs[times == 1].tolist())
    assert sorted(seen) == [0, 2]
    assert usual(seen[2], applied, 1 / 2)
    # Level and sign belong to the image: the i-th of one operation and of another are not alike.
    for drawn, p in [(levels, 1 / 9), (signs, 1 / 2)]:
        one, other = drawn[times[:, 0] == 1, 0], drawn[times[:, 1] == 1, 1]
        m = min(len(one), len(other))
        assert usual(int((one[:m] == other[:m]).sum()), m, p)


def test_two_draws_are_independent(monkeypatch) -> None:
    markers(monkeypatch)
    torch.manual_seed(0)
    n = 30_000
    times = rand_augment(torch.zeros(n, 1, 3, 13, dtype=torch.uint8))[:, 0, 0].long()
    applied = times.sum(1)
    p = 13 / 28
    for count, probability in [(0, (1 - p) ** 2), (1, 2 * p * (1 - p)), (2, p**2)]:
        assert usual(int((applied == count).sum()), n, probability), count
    assert usual(int((times == 2).any(1).sum()), n, 13 / 28**2)  # the same one twice


def test_every_image_gets_its_own_operation_level_and_sign() -> None:
    """One draw gives each image one of the 14 x 9 x 2 things that could have happened to it."""
    images = photographs(32)
    torch.manual_seed(3)
    made = rand_augment(images.repeat(8, 1, 1, 1), n_ops=1)
    for i, image in enumerate(images):
        batch = image.expand(18, -1, -1, -1)
        level, sign = torch.arange(1, 10).repeat(2), torch.tensor([-1, 1]).repeat_interleave(9)
        possible = torch.cat([op(batch, level, sign) for op in OPS])
        for view in made[i :: len(images)]:
            assert bool((possible == view).flatten(1).all(1).any())
    untouched = (made == images.repeat(8, 1, 1, 1)).flatten(1).all(1)
    assert 0 < int(untouched.sum()) < len(made)


# -------------------------------------------------------------------------------------------- weak


def crops(image: np.ndarray, pad: int) -> dict[bytes, tuple[bool, int, int]]:
    """Every view there can be of one image (c, h, w): mirrored or not, then cut out of a reflected border."""
    _, h, w = image.shape
    found = {}
    for mirrored in (False, True):
        source = image[:, :, ::-1] if mirrored else image
        padded = np.pad(source, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        for top in range(2 * pad + 1):
            for left in range(2 * pad + 1):
                found[padded[:, top : top + h, left : left + w].tobytes()] = (mirrored, top, left)
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_weak_views_are_reflected_crops(size: int, channels: int) -> None:
    torch.manual_seed(0)
    images = plenty(3, size, channels)
    for flip in (False, True):
        made = weak(images.repeat(20, 1, 1, 1), flip)
        for i, image in enumerate(images):
            possible = crops(image.numpy(), size // 8)
            drawn = [possible[view.numpy().tobytes()] for view in made[i::3]]
            assert {mirrored for mirrored, _, _ in drawn} == ({False, True} if flip else {False})
            assert len(set(drawn)) > 5


def test_weak_views_of_oblong_images() -> None:
    """Each side is shifted by an eighth of its own length."""
    torch.manual_seed(0)
    image = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)[..., :8]  # pads of 2 and 1
    h, w = image.shape[2:]
    padded = np.pad(image[0].numpy(), ((0, 0), (2, 2), (1, 1)), mode="reflect")
    possible = {padded[:, t : t + h, l : l + w].tobytes() for t in range(5) for l in range(3)}  # noqa: E741
    made = {view.numpy().tobytes() for view in weak(image.repeat(300, 1, 1, 1), flip=False)}
    assert made == possible


@pytest.mark.parametrize("flip", [False, True])
def test_weak_views_are_equally_likely(flip: bool) -> None:
    torch.manual_seed(0)
    n = 4000
    image = plenty(1, 8)
    possible = crops(image[0].numpy(), 1)
    drawn = Counter(possible[view.numpy().tobytes()] for view in weak(image.repeat(n, 1, 1, 1), flip))
    assert len(drawn) == (18 if flip else 9)
    assert all(usual(count, n, 1 / len(drawn)) for count in drawn.values())
    assert usual(
        sum(count for (mirrored, _, _), count in drawn.items() if mirrored), n, 0.5 if flip else 1e-9
    )


# ------------------------------------------------------------------------------------------ cutout


def runs(covered: Tensor) -> list[tuple[int, int]]:
    """First and last covered line of each row; fails where they are not all in one piece."""
    found = []
    for row in covered:
        places = torch.nonzero(row).flatten().tolist()
        assert places == list(range(places[0], places[-1] + 1))
        found.append((places[0], places[-1]))
    return found


@pytest.mark.parametrize(("size", "width"), [(8, 4), (32, 16), (64, 16)])
def test_cutout_is_a_grey_square_where_the_reference_puts_it(size: int, width: int) -> None:
    torch.manual_seed(0)
    n = 2000
    images = torch.full((n, 3, size, size), 200, dtype=torch.uint8)
    made = cutout(images)
    hole = made != 200
    assert bool((made[hole] == 127).all())
    assert torch.equal(hole[:, 0], hole[:, 1])
    assert torch.equal(hole[:, 0], hole[:, 2])
    rows, columns = runs(hole[:, 0].any(2)), runs(hole[:, 0].any(1))
    for area, (top, bottom), (left, right) in zip(
        hole[:, 0].sum((1, 2)).tolist(), rows, columns, strict=True
    ):
        assert area == (bottom - top + 1) * (right - left + 1)  # a full rectangle
    # The reference's rule, at the middles of equally likely intervals of its uniform draw.
    expected: Counter[tuple[int, int]] = Counter()
    for draw in (np.arange(size * 2) + 0.5) / 2:
        start = int(max(0, draw - width / 2))
        expected[start, min(size - 1, int(min(size, start + width)))] += 1
    for drawn in (Counter(rows), Counter(columns)):
        assert set(drawn) == set(expected)
        assert all(usual(drawn[place], n, times / (2 * size)) for place, times in expected.items())
    # both sides are drawn on their own
    corner = sum(top == 0 == left for (top, _), (left, _) in zip(rows, columns, strict=True))
    assert usual(corner, n, ((width / 2 + 1) / size) ** 2)


def test_cutout_leaves_the_rest_alone() -> None:
    torch.manual_seed(0)
    images = plenty(50, 32, 3)
    made = cutout(images)
    changed = made != images
    assert bool((made[changed] == 127).all())
    assert bool(changed.flatten(1).any(1).all())
    assert int(changed.any(1).flatten(1).sum(1).max()) <= 17 * 17


# --------------------------------------------------------------------------------------- all views


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "view",
    [weak, strong, lambda images, flip: rand_augment(images), lambda images, flip: cutout(images)],
    ids=["weak", "strong", "rand_augment", "cutout"],
)
def test_views_keep_shape_and_input_and_follow_the_seed(view, size: int, channels: int) -> None:
    images = plenty(20, size, channels)
    before = images.clone()
    torch.manual_seed(5)
    first = view(images, True)
    assert torch.equal(images, before)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    torch.manual_seed(5)
    assert torch.equal(view(images, True), first)
    assert not torch.equal(view(images, True), first)


def test_a_strong_view_is_a_weak_one_augmented_and_cut() -> None:
    images = plenty(20, 32, 3)
    torch.manual_seed(1)
    step_by_step = cutout(rand_augment(weak(images, True)))
    torch.manual_seed(1)
    assert torch.equal(strong(images, True), step_by_step)


def test_views_are_floats_from_nought_to_one() -> None:
    """Black is 0, white is 1, and each name is a view of its own."""
    images = plenty(30, 8, 3)
    images[:, :, 0, 0], images[:, :, 1, 1] = 0, 255
    before = images.clone()
    torch.manual_seed(2)
    first, second, third = views(images, ("weak", "weak", "strong"), True)
    assert torch.equal(images, before)
    for made in (first, second, third):
        assert made.dtype == torch.float32
        assert made.shape == images.shape
        assert float(made.min()) == 0
        assert float(made.max()) == 1
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    assert torch.equal((first * 255).round().to(torch.uint8), weak(images, True))
    assert torch.equal((second * 255).round().to(torch.uint8), weak(images, True))
    assert torch.equal((third * 255).round().to(torch.uint8), strong(images, True))


def test_no_images_have_no_views() -> None:
    (x,) = views(plenty(0, 8), ("strong",), True)
    assert x.shape == (0, 1, 8, 8)

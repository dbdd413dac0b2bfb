"""Draws, every operation against Pillow, how often things are drawn, and views of all sizes by brute force.

The magnitudes are the reference implementation's; the oracles below spell them out once more.
"""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from openldn.data import views as module
from openldn.data.draws import Draws, integers, keys_of
from openldn.data.operations import OPS, apply_ops
from openldn.data.views import (
    RESIZED_ABOVE,
    _between,
    _span,
    batched_resized_crop,
    colour_jitter,
    crop_boxes,
    cutout,
    rand_augment,
    strong,
    views,
    weak,
)

SIZES = [8, 32, 64]
LARGE = 112


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
    for photograph in load_sample_images().images:
        for left, top, width in [(100, 20, 400), (300, 200, 100)]:
            crop = Image.fromarray(photograph).crop((left, top, left + width, top + width))
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


def draws(n: int, seed: int = 0) -> Draws:
    return Draws(keys_of(seed, np.arange(n)))


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy())


def from_pillow(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def usual(count: float, n: int, p: float) -> bool:
    """Whether `count` of n lies within five standard deviations of what probability p makes expect."""
    return abs(count - n * p) < 5 * math.sqrt(n * p * (1 - p))


# ------------------------------------------------------------------------------------------- draws


def test_draws_are_splitmix64() -> None:
    """Against its definition in unbounded integers, and the numbers it is known to give from 1234567 on."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]

    def defined(state: int) -> Iterator[int]:
        while True:
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            yield z ^ (z >> 31)

    for key in (1234567, 0, 2**64 - 1):
        ours, theirs = Draws(np.array([key], np.uint64)), defined(key)
        one_by_one = [ours.uniform(1)[0, 0] for _ in range(3)] + ours.uniform(4)[:, 0].tolist()
        expected = [next(theirs) for _ in range(7)]
        assert key != 1234567 or expected[:3] == known
        assert one_by_one == [(z >> 11) / 2**53 for z in expected]


def streams() -> dict[str, np.ndarray]:
    """Long rows of draws: along everything that a key is made of, and along the draws of one key."""
    n = 2**16
    many = np.arange(n)
    return {
        "calls": Draws(keys_of(3, 1)).uniform(n)[:, 0],
        "rows": Draws(keys_of(0, 0, 0, 0, 0, many, 0)).uniform(1)[0],
        "passes": Draws(keys_of(0, 0, 0, 0, many, 7, 0)).uniform(1)[0],
        "epochs": Draws(keys_of(0, 0, many, 0, 0, 7, 0)).uniform(1)[0],
        "seeds": Draws(keys_of(many, 0, 0, 0, 0, 7, 0)).uniform(1)[0],
        "views": Draws(keys_of(0, 0, 0, 0, 0, 7, many)).uniform(1)[0],
        "second calls": Draws(keys_of(0, 0, 0, 0, 0, many, 0)).uniform(2)[1],
        "second views": Draws(keys_of(0, 0, 0, 0, 0, many, 1)).uniform(1)[0],
        "second epochs": Draws(keys_of(0, 0, 1, 0, 0, many, 0)).uniform(1)[0],
    }


def chi_square_is_usual(cells: np.ndarray, n_cells: int) -> bool:
    """Whether n numbers below `n_cells` fill the cells as evenly as chance does; not too evenly either."""
    counts, expected = np.bincount(cells, minlength=n_cells), len(cells) / n_cells
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi_square - (n_cells - 1)) < 5 * math.sqrt(2 * (n_cells - 1))


@pytest.mark.parametrize("name", streams())
def test_draws_are_uniform_and_neighbours_independent(name: str) -> None:
    u = streams()[name]
    assert 0 <= u.min() < 0.001
    assert 0.999 < u.max() < 1
    assert chi_square_is_usual((u * 256).astype(int), 256)
    assert chi_square_is_usual((u * 2**40).astype(int) % 256, 256)  # far bits too
    for apart in (1, 2, 16, 256):
        pairs = (u[:-apart] * 16).astype(int) * 16 + (u[apart:] * 16).astype(int)
        assert chi_square_is_usual(pairs, 256), apart
    assert len(np.unique(u)) == len(u)


def test_draws_of_two_places_are_independent() -> None:
    for (a, u), (b, v) in combinations(streams().items(), 2):
        pairs = (u * 16).astype(int) * 16 + (v * 16).astype(int)
        assert chi_square_is_usual(pairs, 256), (a, b)
        assert abs(np.corrcoef(u, v)[0, 1]) < 5 / math.sqrt(len(u)), (a, b)


def test_keys_tell_numbers_and_their_order_apart() -> None:
    places = [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**32,), (1, 2, 3), (3, 2, 1), (0, 0, 0)]
    assert len({int(keys_of(*place)[0]) for place in places}) == len(places)
    assert len(np.unique(keys_of(5, np.arange(300)[:, None], np.arange(300)))) == 300 * 300


def test_whole_numbers_reach_both_ends_equally_often() -> None:
    (u,) = draws(30_000).uniform(1)
    drawn = integers(u, -2, 5)
    assert sorted(set(drawn.tolist())) == list(range(-2, 5))
    assert all(usual(int((drawn == k).sum()), len(drawn), 1 / 7) for k in range(-2, 5))
    almost_one = np.full(5, np.nextafter(1, 0))
    assert integers(almost_one, 0, [1, 3, 14, 1024, 10**6]).tolist() == [0, 2, 13, 1023, 10**6 - 1]


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
@pytest.mark.parametrize("op", OPS)
def test_operations_are_pillows(op: str, kind: str) -> None:
    """At every level and with both signs, all in one batch."""
    images = IMAGES[kind]()
    cases = [(i, v, sign) for i in range(len(images)) for v in range(1, 10) for sign in (-1, 1)]
    i, v, sign = np.array(cases).T
    batch = images[i]
    before = batch.clone()
    ours = apply_ops(batch, np.full(len(cases), OPS.index(op)), v, sign)
    assert torch.equal(batch, before), "the input was changed"
    assert ours.dtype == torch.uint8
    theirs = torch.stack([from_pillow(PILLOW[op](to_pillow(images[i]), v, s)) for i, v, s in cases])
    off = (ours.int() - theirs.int()).abs()
    assert int(off.max()) <= TOLERANCE.get(op, 0)
    assert float((off > 0).float().mean()) < 1e-4  # where a tolerance is needed, almost nowhere


@pytest.mark.parametrize("kind", IMAGES)
def test_each_image_gets_its_own_operation(kind: str) -> None:
    """All operations in one batch, in no order, are what each is alone."""
    images = IMAGES[kind]()
    rng = np.random.default_rng(0)
    n = 300
    which, op = rng.integers(0, len(images), n), rng.integers(0, len(OPS), n)
    level, sign = rng.integers(1, 10, n), rng.choice([-1, 1], n)
    together = apply_ops(images[which], op, level, sign)
    for i in range(n):
        alone = apply_ops(images[which[i : i + 1]], op[i : i + 1], level[i : i + 1], sign[i : i + 1])
        assert torch.equal(together[i], alone[0]), OPS[op[i]]


def test_there_are_14_operations() -> None:
    assert sorted(OPS) == sorted(PILLOW)
    assert len(PILLOW) == 14


# ------------------------------------------------------------------------------------- RandAugment


def markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that leave their level and sign at their own place; identity as it is."""

    def marked(images: Tensor, op: np.ndarray, level: np.ndarray, sign: np.ndarray) -> Tensor:
        images = images.clone()
        rows = torch.arange(len(images))[op > 0]
        level, sign, places = (torch.from_numpy(x[op > 0]) for x in (level, sign, op - 1))
        images[rows, 0, 0, places] += 1
        images[rows, 0, 1, places] = level.to(torch.uint8)
        images[rows, 0, 2, places] = (sign + 1).to(torch.uint8)
        return images

    assert OPS[0] == "identity"
    monkeypatch.setattr(module, "apply_ops", marked)


def test_each_operation_is_drawn_equally_often_and_applied_half_the_time(monkeypatch) -> None:
    markers(monkeypatch)
    n = 30_000
    made = rand_augment(torch.zeros(n, 1, 3, 13, dtype=torch.uint8), draws(n), n_ops=1)[:, 0]
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
    n = 30_000
    times = rand_augment(torch.zeros(n, 1, 3, 13, dtype=torch.uint8), draws(n))[:, 0, 0].long()
    applied = times.sum(1)
    p = 13 / 28
    for count, probability in [(0, (1 - p) ** 2), (1, 2 * p * (1 - p)), (2, p**2)]:
        assert usual(int((applied == count).sum()), n, probability), count
    assert usual(int((times == 2).any(1).sum()), n, 13 / 28**2)  # the same one twice


def test_every_image_gets_its_own_operation_level_and_sign() -> None:
    """One draw gives each image one of the 14 x 9 x 2 things that could have happened to it."""
    images = photographs(32)
    made = rand_augment(images.repeat(8, 1, 1, 1), draws(8 * len(images)), n_ops=1)
    cases = np.array([(op, v, sign) for op in range(14) for v in range(1, 10) for sign in (-1, 1)])
    for i, image in enumerate(images):
        possible = apply_ops(image.expand(len(cases), -1, -1, -1), *cases.T)
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
    images = plenty(3, size, channels)
    for flip in (False, True):
        made = weak(images.repeat(20, 1, 1, 1), draws(60), flip)
        for i, image in enumerate(images):
            possible = crops(image.numpy(), size // 8)
            drawn = [possible[view.numpy().tobytes()] for view in made[i::3]]
            assert {mirrored for mirrored, _, _ in drawn} == ({False, True} if flip else {False})
            assert len(set(drawn)) > 5


def test_weak_views_of_oblong_images() -> None:
    """Each side is shifted by an eighth of its own length."""
    image = plenty(1, 16, 3)[..., :8]  # pads of 2 and 1
    h, w = image.shape[2:]
    padded = np.pad(image[0].numpy(), ((0, 0), (2, 2), (1, 1)), mode="reflect")
    possible = {padded[:, t : t + h, l : l + w].tobytes() for t in range(5) for l in range(3)}  # noqa: E741
    made = {view.numpy().tobytes() for view in weak(image.repeat(300, 1, 1, 1), draws(300), flip=False)}
    assert made == possible


@pytest.mark.parametrize("flip", [False, True])
def test_weak_views_are_equally_likely(flip: bool) -> None:
    n = 4000
    image = plenty(1, 8)
    possible = crops(image[0].numpy(), 1)
    made = weak(image.repeat(n, 1, 1, 1), draws(n), flip)
    drawn = Counter(possible[view.numpy().tobytes()] for view in made)
    assert len(drawn) == (18 if flip else 9)
    assert all(usual(count, n, 1 / len(drawn)) for count in drawn.values())
    assert usual(
        sum(count for (mirrored, _, _), count in drawn.items() if mirrored), n, 0.5 if flip else 1e-9
    )


# ---------------------------------------------------------------------------- weak views of large images


def large(h: int = LARGE, w: int = LARGE) -> Tensor:
    """Photographs above the size from which on crops are resized."""
    assert max(h, w) > RESIZED_ABOVE
    return photographs(max(h, w))[:, :, :h, :w].contiguous()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("h", "w"), [(LARGE, LARGE), (100, LARGE), (224, 224)])
def test_large_weak_views_are_pillows_resized_crops(h: int, w: int, channels: int) -> None:
    """The same boxes, cropped and resized by Pillow: off by one grey level at most, and that rarely."""
    images = large(h, w)[:, :channels].repeat(5, 1, 1, 1)
    n = len(images)
    made = weak(images, draws(n), flip=True)
    again = draws(n)
    mirrored = again.uniform(1)[0] < 0.5
    assert 0 < mirrored.sum() < n
    for image, view, mirror, box in zip(images, made, mirrored, crop_boxes(again, h, w).T, strict=True):
        top, left, height, width = box.tolist()
        cropped = to_pillow(image).crop((left, top, left + width, top + height))
        theirs = cropped.resize((w, h), Image.Resampling.BILINEAR)
        if mirror:
            theirs = theirs.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        off = (view.int() - from_pillow(theirs).int()).abs()
        assert int(off.max()) <= 1
        assert float((off > 0).float().mean()) < 0.05


def test_large_images_that_may_not_be_mirrored_are_not() -> None:
    images = torch.arange(LARGE, dtype=torch.uint8).expand(40, 3, LARGE, LARGE).contiguous()
    rising = weak(images, draws(40), flip=False)[:, 0].int().diff(dim=2)
    assert bool((rising >= 0).all())
    falling = weak(images, draws(40), flip=True)[:, 0].int().diff(dim=2).amin((1, 2)) < 0
    assert 0 < int(falling.sum()) < 40


def boxes_by_hand(n: int, h: int, w: int) -> list[tuple[int, int, int, int]]:
    """Torchvision's rule as it is documented, one image at a time."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(n):
        for _ in range(10):
            area, aspect = (
                h * w * rng.uniform(0.08, 1),
                math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
            )
            width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < width <= w and 0 < height <= h:
                found.append((rng.integers(0, h - height + 1), rng.integers(0, w - width + 1), height, width))
                break
        else:
            height, width = h, w
            if w / h < 3 / 4:
                height = round(w / (3 / 4))
            elif w / h > 4 / 3:
                width = round(h * (4 / 3))
            found.append(((h - height) // 2, (w - width) // 2, height, width))
    return found


@pytest.mark.parametrize(("h", "w"), [(224, 224), (60, 240), (240, 60), (100, 120)])
def test_boxes_are_spread_like_torchvisions(h: int, w: int) -> None:
    """Sides and places have the same distribution, by the largest distance between the two."""
    n = 6000
    ours, theirs = crop_boxes(draws(n), h, w), np.array(boxes_by_hand(n, h, w)).T
    top, left, height, width = ours
    assert ((top >= 0) & (left >= 0) & (top + height <= h) & (left + width <= w)).all()
    assert ((height > 0) & (width > 0)).all()

    def looked_at(box: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*box, box[2] * box[3], box[0] * box[1])

    for a, b in zip(looked_at(ours), looked_at(theirs), strict=True):
        levels = np.union1d(a, b)
        below = [np.searchsorted(np.sort(x), levels, side="right") / n for x in (a, b)]
        assert np.abs(below[0] - below[1]).max() < 1.95 * math.sqrt(2 / n)  # Kolmogorov-Smirnov, p = 0.001


def test_where_no_box_fits_the_centre_is_taken() -> None:
    """In a strip no box of the allowed shapes and sizes fits."""
    assert crop_boxes(draws(5), 4, 400).T.tolist() == [[0, 197, 4, 5]] * 5
    assert crop_boxes(draws(5), 400, 4).T.tolist() == [[197, 0, 5, 4]] * 5


def test_up_to_96_pixels_images_are_shifted() -> None:
    """No pixel value is made up by a shift; a resized crop has new ones."""
    for size, resized in [(RESIZED_ABOVE, False), (RESIZED_ABOVE + 1, True)]:
        images = torch.randint(0, 2, (10, 1, size, size), generator=torch.Generator().manual_seed(0)).mul(255)
        made = weak(images.to(torch.uint8), draws(10), flip=True)
        assert bool(((made > 0) & (made < 255)).any()) == resized


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
    n = 2000
    images = torch.full((n, 3, size, size), 200, dtype=torch.uint8)
    made = cutout(images, draws(n))
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
    images = plenty(50, 32, 3)
    made = cutout(images, draws(50))
    changed = made != images
    assert bool((made[changed] == 127).all())
    assert bool(changed.flatten(1).any(1).all())
    assert int(changed.any(1).flatten(1).sum(1).max()) <= 17 * 17


def test_cutout_by_slices_and_by_mask_are_one() -> None:
    """A CPU fills slices; other devices get this mask."""
    images, (x, y) = plenty(50, 40, 3), draws(50).uniform(2)
    spans = [_between(*_span(40, 16, centre), 40) for centre in (y, x)]
    hole = torch.from_numpy(spans[0][:, None, :, None] & spans[1][:, None, None, :])
    assert torch.equal(images.masked_fill(hole, 127), cutout(images, draws(50)))


# --------------------------------------------------------------------------------------- all views


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [*SIZES, LARGE])
@pytest.mark.parametrize(
    "view",
    [weak, strong, lambda x, draws, flip: rand_augment(x, draws), lambda x, draws, flip: cutout(x, draws)],
    ids=["weak", "strong", "rand_augment", "cutout"],
)
def test_views_keep_shape_and_input_and_follow_the_keys(view, size: int, channels: int) -> None:
    images = plenty(20, size, channels)
    before = images.clone()
    first = view(images, draws(20, seed=5), True)
    assert torch.equal(images, before)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    torch.manual_seed(1)
    assert torch.equal(view(images, draws(20, seed=5), True), first)  # by the keys alone
    assert not torch.equal(view(images, draws(20, seed=6), True), first)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 32, LARGE])
def test_a_view_is_the_same_in_any_company(size: int, channels: int) -> None:
    """Alone, in another order, with fewer or with others, in memory or as part of something."""
    names = ("weak", "strong", "strong")
    images, keys = plenty(60, size, channels), keys_of(1, 2, np.arange(60))
    whole_batch = views(images, names, True, keys)
    order = np.random.default_rng(0).permutation(60)
    for rows in (order, order[:7], order[:1], np.array([5, 5, 9]), np.arange(10, 60)):
        for made, expected in zip(views(images[rows], names, True, keys[rows]), whole_batch, strict=True):
            assert torch.equal(made, expected[rows])
    apart = torch.stack([images, 255 - images], dim=1)[:, 0]  # not contiguous
    together = images.contiguous(memory_format=torch.channels_last)  # as from the store
    for other in (apart, together):
        for made, expected in zip(views(other, names, True, keys), whole_batch, strict=True):
            assert torch.equal(made, expected)


def test_a_strong_view_is_a_weak_one_augmented_and_cut() -> None:
    images = plenty(20, 32, 3)
    d = draws(20, seed=1)
    step_by_step = cutout(rand_augment(weak(images, d, True), d), d)
    assert torch.equal(strong(images, draws(20, seed=1), True), step_by_step)


def test_views_are_floats_from_nought_to_one() -> None:
    """Black is 0, white is 1, and each name is a view of its own."""
    images, keys = plenty(30, 8, 3), keys_of(2, np.arange(30))
    images[:, :, 0, 0], images[:, :, 1, 1] = 0, 255
    before = images.clone()
    names = ("weak", "weak", "strong", "strong")
    made = views(images, names, True, keys)
    assert torch.equal(images, before)
    for k, (name, view) in enumerate(zip(names, made, strict=True)):
        assert view.dtype == torch.float32
        assert view.shape == images.shape
        assert float(view.min()) == 0
        assert float(view.max()) == 1
        alone = module.VIEWS[name](images, Draws(keys_of(keys, k)), True)
        assert torch.equal((view * 255).round().to(torch.uint8), alone)
    assert not torch.equal(made[0], made[1])
    assert not torch.equal(made[2], made[3])


@pytest.mark.parametrize(("size", "width"), [(8, 3), (32, 9)])
def test_a_cut_view_is_a_weak_one_without_a_small_square(size: int, width: int) -> None:
    images = plenty(300, size, 3)
    made, plain = module.weak_cutout(images, draws(300), True), weak(images, draws(300), True)
    changed = (made != plain).flatten(1).sum(dim=1)
    assert 0 < int(changed.max()) <= 3 * width**2
    assert torch.all((made == plain) | (made == 127))


def test_floats_are_rounded_to_bytes() -> None:
    images, keys = plenty(30, 8, 3), keys_of(2, np.arange(30))
    nearly = (images.float() + torch.rand(images.shape) * 0.8 - 0.4).clamp(0, 255) / 255
    for dtype in (torch.float32, torch.float64):
        made = views(nearly.to(dtype), ("weak", "strong"), True, keys)
        for view, expected in zip(made, views(images, ("weak", "strong"), True, keys), strict=True):
            assert torch.equal(view, expected)


@pytest.mark.parametrize("size", [8, LARGE])
def test_no_images_have_no_views(size: int) -> None:
    (x,) = views(plenty(0, size), ("strong",), True, keys_of(0, np.arange(0)))
    assert x.shape == (0, 1, size, size)


# -------------------------------------------------------------------------------------------- crop


def test_small_boxes_are_what_resizing_one_by_one_makes() -> None:
    """Each box brought to the image's size by torch, and mirrored or not, with the draws it was made with."""
    images = torch.randint(0, 256, (40, 3, 12, 10), dtype=torch.uint8)
    keys = keys_of(3, np.arange(40))
    made = batched_resized_crop(images, Draws(keys), flip=True)
    draws = Draws(keys)
    mirrored = draws.uniform(1)[0] < 0.5
    boxes = crop_boxes(draws, 12, 10, least=0.2).T.tolist()
    assert 0 < mirrored.sum() < 40
    for image, found, mirror, (top, left, height, width) in zip(images, made, mirrored, boxes, strict=True):
        box = image[None, :, top : top + height, left : left + width].float()
        expected = torch.nn.functional.interpolate(box, (12, 10), mode="bilinear", align_corners=False)
        expected = expected.flip(3) if mirror else expected
        torch.testing.assert_close(found, expected[0], atol=1e-2, rtol=0)
    assert torch.equal(
        batched_resized_crop(images, Draws(keys), flip=False)[mirrored.argmin()], made[mirrored.argmin()]
    )


def test_colours_change_as_they_should() -> None:
    n = 400
    images = torch.randint(0, 256, (n, 3, 6, 6)).float()
    made = colour_jitter(images, Draws(keys_of(1, np.arange(n))))
    assert made.min() >= 0
    assert made.max() <= 255
    assert not made.isnan().any()
    grey = (made.amax(dim=1) - made.amin(dim=1)).amax(dim=(1, 2)) < 0.5
    assert 0.1 < grey.float().mean() < 0.3
    same = (made - images).abs().amax(dim=(1, 2, 3)) < 0.5
    assert 0.1 < same.float().mean() < 0.25  # a fifth is not changed, most of it not grey either


def test_greys_stay_grey_and_one_colour_keeps_its_brightness() -> None:
    """Hue and saturation leave grey as it is; contrast leaves an even image as it is."""
    n = 100
    level = torch.linspace(60, 120, n)
    images = level.view(n, 1, 1, 1).expand(n, 3, 4, 4).clone()
    draws = Draws(keys_of(2, np.arange(n)))
    made = colour_jitter(images, draws)
    ratio = made[:, 0, 0, 0] / level
    torch.testing.assert_close(made, ratio.view(n, 1, 1, 1) * images, rtol=1e-3, atol=0.1)
    assert 0.55 < ratio.min() < 0.75  # brightness alone is left
    assert 1.25 < ratio.max() < 1.45
    plain = colour_jitter(images[:, :1], Draws(keys_of(2, np.arange(n))))
    torch.testing.assert_close(plain, made[:, :1], rtol=1e-3, atol=0.1)


# ----------------------------------------------------------------------------------------------- fork

FORK = """
import os
import numpy as np, torch
from openldn.data.draws import keys_of
from openldn.data.views import views
images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (200, 3, 64, 64), dtype=np.uint8))
def work():
    made = views(images, ("strong",), True, keys_of(1, np.arange(200)))[0]
    return made, torch.conv2d(made, torch.ones(16, 3, 3, 3)).sum()
torch.set_num_threads(2)
before = work()
child = os.fork()
if child == 0:
    made, total = work()
    os._exit(0 if torch.equal(made, before[0]) and torch.isclose(total, before[1]) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(work()[0], before[0])
print("fine")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_views_and_torch_work_in_a_forked_child() -> None:
    """Neither our threads nor those of OpenMP survive a fork."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100)
    assert done.stdout == "fine\n", done.stderr


def test_threads_to_come_keep_their_number_of_threads() -> None:
    """The pool for views limits its own threads, not those of the program."""
    code = """
import threading, torch
from openldn.data.views import views
from openldn.data.draws import keys_of
import numpy as np
torch.set_num_threads(2)
views(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), ("weak",), True, keys_of(0, np.arange(8)))
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
thread.start()
thread.join()
assert (torch.get_num_threads(), *seen) == (2, 2), seen
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

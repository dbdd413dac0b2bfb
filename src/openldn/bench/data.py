"""From image files to the network: decoding into the store, views, feeding, beside plain Pillow.

Images are crops of scikit-learn's two photographs. Files are decoded by the store and by a plain loop. Views
are made of whole batches and, by Pillow, of one image at a time; both flip and crop (shifted up to 96 pixels,
resized above), and strong views have two draws of RandAugment and cutout. The last two parts need 2 GB of
disk space.
"""

import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from loky import get_reusable_executor
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale, mean
from openldn.bench.isolation import in_new_process, memory, own_folder
from openldn.bench.step import NEVER, number, training_of
from openldn.data import store
from openldn.data.batches import Batches
from openldn.data.draws import keys_of
from openldn.data.problem import Problem
from openldn.data.views import RESIZED_ABOVE, views
from openldn.device import keep_freed_memory, pick
from openldn.errors import UserError
from openldn.methods.openldn import DISCOVER
from openldn.model import new_network

TURNS = 8  # of views
STEPS = 32  # of feeding


@dataclass(frozen=True)
class Fed:
    """A row of the table."""

    part: str
    case: tuple[Any, ...]

    @property
    def record(self) -> Mapping[str, Any]:
        return {"part": self.part, "case": list(self.case)}

    @property
    def modules(self) -> Sequence[str]:
        return ("openldn.bench.data",)

    def __call__(self, path: Path, quiet: bool) -> Figures:
        with own_folder(path) as folder:
            return PARTS[self.part].measure(folder, *self.case)

    def where(self, path: Path) -> str:
        return "measuring"


class Rows(NamedTuple):
    """The rows of a part, a case each."""

    measure: Callable[..., Figures]  # given a folder and a case
    name: str
    cases: Sequence[tuple[Any, ...]]
    other: str = ""  # figures that have no column


# ------------------------------------------------------------------------------------------------ images


@cache
def two_photographs() -> list[Image.Image]:
    """Of scikit-learn, 640 x 427 pixels."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(whole) for whole in load_sample_images().images]


def photographs(n: int, size: int) -> list[Image.Image]:
    """Random crops of two photographs."""
    rng, made = np.random.default_rng(0), list[Image.Image]()
    for k in range(n):
        whole, side = two_photographs()[k % 2], int(rng.integers(150, 400)) if size < 400 else 400
        left, top = int(rng.integers(0, whole.width - side)), int(rng.integers(0, whole.height - side))
        box = (left, top, left + side, top + side)
        made.append(whole.resize((size, size), Image.Resampling.BILINEAR, box))
    return made


def stacked(images: Sequence[Image.Image]) -> Tensor:
    """As training has them, uint8 (n, 3, h, w): channels first from CIFAR's files, else channels last."""
    made = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
    return made.contiguous() if made.shape[3] == 32 else made


def written(folder: Path, n: int, kind: str, size: int, different: int = 200) -> list[Path]:
    """Files of so many different crops, over and over."""
    folder.mkdir(parents=True)
    paths, data = [folder / f"{i:06}.{kind.lower()}" for i in range(n)], list[bytes]()
    for path, image in zip(paths, photographs(min(n, different), size), strict=False):
        image.save(path)
        data.append(path.read_bytes())
    for i, path in enumerate(paths[len(data) :]):
        path.write_bytes(data[i % len(data)])
    return paths


# ----------------------------------------------------------------------------------------------- the store


def stored(path: Path, n: int, kind: str, size: int, to: int) -> Figures:
    """Images per second of a plain loop and of the store, and seconds to find all in the store."""
    warm_up = written(path / "warm-up", min(n, 300), "PNG", 32)  # worker processes start
    store.decode(warm_up, root="warm-up", size=32)
    files = written(path / "photos", n, kind, size)
    in_loop = seconds(lambda: plain(files, to))
    ours, again = (seconds(lambda: store.decode(files, root="photos", size=to)) for _ in range(2))
    return {"ours": n / ours, "pillow": n / in_loop, "times": in_loop / ours, "again": again}


def seconds(f: Callable[[], object]) -> float:
    """That a call takes."""
    started = time.perf_counter()
    f()
    return time.perf_counter() - started


def plain(files: Sequence[Path], size: int) -> NDArray[np.uint8]:
    """The obvious loop.  (n, 3, size, size)"""
    made = np.empty((len(files), 3, size, size), np.uint8)
    for i, file in enumerate(files):
        with Image.open(file) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        fitted = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
        made[i] = np.asarray(fitted).transpose(2, 0, 1)
    return made


def remembered(path: Path, n: int, kind: str, size: int) -> Figures:
    """Memory of a new process that builds a store and reads all of it."""
    return in_new_process(resident, [*map(str, written(path / "photos", n, kind, size))], size)


def resident(files: Sequence[str], size: int) -> Figures:
    """MiB before, at the peak of building, and after all images were read in random order."""
    keep_freed_memory()  # as the command line does
    before = memory("VmHWM")
    images, _ = store.decode(files, root="photos", size=size)
    built = memory("VmHWM")
    for rows in torch.randperm(len(files)).split(200):
        images[rows]
    pixels = float(np.prod(images.shape)) / 2**20
    after = {"private": memory("RssAnon"), "mapped": memory("RssFile")}
    get_reusable_executor(reuse=True).shutdown()  # else this process ends after its workers' idle time
    return {"pixels": pixels, "before": before, "building": built, **after}


# --------------------------------------------------------------------------------------------------- views


def augmented(path: Path, size: int, n: int, view: str) -> Figures:
    """Images per second of batches of n images."""
    pictures = photographs(n, size)
    images = stacked(pictures)

    def ours(i: int) -> object:
        return views(images, (view,), True, keys_of(i, np.arange(n)))

    def theirs(i: int) -> object:
        return by_pillow(pictures, strong=view == "strong")

    a, b = side_by_side(ours, theirs, TURNS)
    return {"ours": n / a, "pillow": n / b, "times": b / a}


def side_by_side(a: Callable[[int], object], b: Callable[[int], object], n: int) -> tuple[float, float]:
    """Median seconds of each, in alternating groups of four calls, of which the first is a warm-up."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(n):
        for f, own in zip((a, b), taken, strict=True):
            own += [seconds(partial(f, i)) for i in range(4 * turn, 4 * turn + 4)][1:]
    return statistics.median(taken[0]), statistics.median(taken[1])


def by_pillow(images: Sequence[Image.Image], strong: bool) -> Tensor:
    """A view of each image, floats (n, 3, h, w)."""
    made = []
    for image in images:
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
    """At random."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def shifted(image: Image.Image) -> Image.Image:
    """Flipped, and shifted by up to an eighth."""
    pad = image.width // 8
    array = np.pad(np.asarray(flipped(image)), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    top, left = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
    return Image.fromarray(array[top : top + image.height, left : left + image.width])


def resized(image: Image.Image) -> Image.Image:
    """A random resized crop, flipped."""
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
    """With a grey square."""
    width = min(16, image.width // 2)
    left, top = (int(max(0, random.random() * length - width / 2)) for length in image.size)
    image = image.copy()
    corners = (left, top, min(image.width, left + width), min(image.height, top + width))
    ImageDraw.Draw(image).rectangle(corners, (127, 127, 127))
    return image


def moved(image: Image.Image, *matrix: float) -> Image.Image:
    """By an affine map."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def share(level: int) -> float:
    """Of an enhancement."""
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


# ------------------------------------------------------------------------------------------------- feeding


def feeding(path: Path, size: int) -> Figures:
    """Milliseconds of a batch of the preset `fast`, and of a plain step of stage 1 on it."""
    labels = torch.arange(400) % 10
    labels = torch.where((labels < 5) & (torch.arange(400) % 20 < 10), labels, -1)
    names = tuple(map(str, range(400)))
    problem = Problem(stacked(photographs(400, size)), labels, names, tuple("abcde"), n_novel=5)
    training = training_of(problem, new_network(problem, DISCOVER, "small", pick("cpu")), NEVER)
    (n_labelled, n_unlabelled, _), clock = training.composition, training.clock(None)
    batches = Batches(
        problem,
        n_labelled=n_labelled,
        n_unlabelled=n_unlabelled,
        labelled_views=training.objective.labelled_views,
        unlabelled_views=training.objective.unlabelled_views,
        seed=(0, 1, 0),
        device=pick("cpu"),
    )
    fed, learned = 0.0, 0.0
    for clock.step in range(STEPS):  # batches are made 16 at a time
        fed += seconds(partial(batches.__getitem__, clock.step))
        learned += seconds(partial(training.step, batches, clock))
    return {"batch": 1000 * fed / STEPS, "step": 1000 * learned / STEPS, "share": 100 * fed / (fed + learned)}


def started(path: Path, n: int, kind: str, size: int) -> Figures:
    """Seconds from `openldn train` to the first step: when files were never seen, and on two later starts."""
    data = path / "photos"
    files = written(data / "unlabelled", n, kind, size, different=n // 10)
    for k in range(2):
        (data / f"class {k}").mkdir()
        for file in files[k * n // 100 : (k + 1) * n // 100]:
            file.rename(data / f"class {k}" / file.name)
    return {name: to_first_step(data, path / "run") for name in ("first", "second", "third")}


def to_first_step(data: Path, run: Path) -> float:
    """Seconds from the command to the first step."""
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "openldn", "train", str(data), "--novel", "2", "--epochs", "0.002"]
    command += ["--method", "openldn", "--out", str(run)]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        for line in process.stderr or ():
            if "discover: starts" in line:
                taken = time.perf_counter() - began
                process.kill()
                return taken
    raise UserError(f"`{' '.join(command)}` did not come to its first step")


# ----------------------------------------------------------------------------------------------- the bench

FILES = [(3_000, "PNG", 32, 32), (3_000, "JPEG", 64, 64), (600, "JPEG", 500, 224), (600, "JPEG", 500, 64)]
# Training makes views of up to 16 batches of small images at a time.
BATCHES = [(32, 100), (32, 400), (32, 1_200), (64, 300), (224, 32), (224, 64), (224, 128)]
PARTS = {
    "store": Rows(stored, "{:,} {} of {} px to {} px", FILES, "found again in {again:.2f} s"),
    "views": Rows(
        augmented, "{} px, batch {:,}, {}", [(*b, view) for b in BATCHES for view in ("weak", "strong")]
    ),
    "feeding": Rows(
        feeding, "fast, {} px", [(32,)], "{batch:.1f} ms a batch, {share:.1f} % of it and a plain step"
    ),
    "memory": Rows(
        remembered,
        "{:,} {} of {} px",
        [(100_000, "JPEG", 64)],
        "{pixels:,.0f} MiB of pixels; {before:,.0f} MiB before, {building:,.0f} MiB at the peak of building; "
        "read in random order {private:,.0f} MiB, and {mapped:,.0f} MiB of mapped files",
    ),
    "first step": Rows(
        started,
        "{:,} {} of {} px",
        [(50_000, "PNG", 32)],
        "{first:.1f} s after the command, {second:.1f} and {third:.1f} s on later starts",
    ),
}


def cells(scale: Scale) -> list[Cell]:
    """A cell for each case; a seed is a repetition."""
    for name in scale.only:
        if name not in PARTS:
            raise UserError(f"there is no part {name!r}; choose from: {'; '.join(PARTS)}")
    return [
        Cell((name, PARTS[name].name.format(*case)), seed, Fed(name, case))
        for name in scale.only or PARTS
        for case in PARTS[name].cases
        for seed in range(scale.seeds)
    ]


def other(of: Sequence[Result]) -> str:
    """The figures that have no column, as means."""
    return PARTS[of[0].row[0]].other.format(**{name: mean(of, name) for name in of[0].figures})


BENCH = Bench(
    name="data",
    about="from image files to the network: decoding, views and feeding, beside plain Pillow",
    fields=("part", "images"),
    scale=Scale(seeds=1),
    measured_on="random images and files",
    cells=cells,
    columns=(
        number("openldn, images/s", "ours", ",.0f"),
        number("plain Pillow, images/s", "pillow", ",.0f"),
        number("times", "times", ".1f"),
        Column("other figures", other),
    ),
    said=("ours", "pillow", "times", "share", "building", "first"),
    alone=True,
)

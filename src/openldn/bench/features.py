"""Frozen features: how fast they are made, and what clustering them takes in time and memory.

Three rows. Photographs of 224 pixels go through the store, beside a bare forward loop of the same network on
the same images in memory. A run of default settings has 10,000 images, with features to be made and in the
store. A million images have features on disk, without a run around them: this needs 3 GB of disk space and
Linux, and is measured only if it is asked for.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from openldn import job
from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale
from openldn.bench.isolation import in_new_process, memory, own_folder
from openldn.data import reading
from openldn.data.features import Features
from openldn.data.pixels import PRINT, Part
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, pick, precision
from openldn.errors import UserError
from openldn.inference import prediction_rows
from openldn.methods.whitened_clustering import CLUSTERING, SYSTEM, WhitenedClustering
from openldn.model import Model, new_network
from openldn.nets import pretrained
from openldn.nets.classifier import infer
from openldn.nets.encoder import Encoder
from openldn.options import Options

D = 1280
CLASSES = 100


@dataclass(frozen=True)
class Timed:
    """A row of the table."""

    name: str
    images: int
    seed: int

    @property
    def record(self) -> Mapping[str, Any]:
        return {"row": self.name, "images": self.images}

    @property
    def modules(self) -> Sequence[str]:
        return ("openldn.bench.features",)

    def __call__(self, path: Path, quiet: bool) -> Figures:
        with own_folder(path) as folder:
            return ROWS[self.name].measure(folder, self.images, self.seed)

    def where(self, path: Path) -> str:
        return "measuring"


def throughput(path: Path, n: int, seed: int, size: int = 224) -> Figures:
    """Images per second, two views each, through the store and in a bare loop."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=rng).permute(0, 3, 1, 2)
    source, on = pretrained.find(pretrained.LITE0), pick()
    encoder = Encoder([source], flip=True, on=on, precision=precision(on))
    [part] = encoder.parts
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (source.mean, source.std))
    ready = ((images.float() / 255 - mean) / std).to(on, part.dtype, memory_format=torch.channels_last)
    started = time.monotonic()
    with torch.inference_mode():
        for x in ready.split(part.batch):
            for view in (x, x.flip(3)):
                part.network(view).cpu()
    looped = time.monotonic()
    encoder.features(images)
    stored = time.monotonic()
    return {
        "images per second": n / (stored - looped),
        "of a bare loop": (looped - started) / (stored - looped),
    }


def whole_run(path: Path, n: int, seed: int) -> Figures:
    """Seconds of a run on arrays that estimates the number of novel classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    X = rng.integers(0, 256, (CLASSES, 8, 8, 3))[y] + rng.normal(0, 40, (n, 8, 8, 3))
    given = np.where((y < CLASSES // 2) & (rng.random(n) < 0.5), y, -1)
    options = Options(method=SYSTEM.name, weights="frozen", novel="auto", seed=seed)
    found: Figures = {}
    for name in ("with features to be made", "with features in the store"):
        started = time.monotonic()
        problem = reading.read_arrays(X.clip(0, 255).astype(np.uint8), given, n_novel=1, flip=True)
        job.start(problem, options, {"kind": "arrays"}, path / name, quiet=True)
        found[name] = time.monotonic() - started
    return found


def on_disk(path: Path, n: int, seed: int) -> Figures:
    """Of whitened clustering in a new process."""
    return in_new_process(clustered, path / "features", n, CLASSES, seed)


def clustered(file: Path, n: int, n_classes: int, seed: int) -> Figures:
    """Seconds until clustered and until all are predicted, MiB beside the mapped file, and purity."""
    keep_freed_memory()  # as the command line does
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1, (n_classes, D)).astype(np.float32)
    y = rng.integers(0, n_classes, n)
    with file.open("wb") as f:
        for rows in np.array_split(np.arange(n), 200):
            noise = rng.standard_normal((len(rows), D), dtype=np.float32)
            f.write(np.maximum(centres[y[rows]] + noise, 0).astype(np.float16).tobytes())
    features = Features(file, np.arange(n), np.zeros(n, PRINT), views=1, d=D)
    labels = torch.from_numpy(np.where((y < n_classes // 2) & (rng.random(n) < 0.1), y, -1))
    names, known = tuple(map(str, range(n))), tuple(range(n_classes // 2))
    problem = Problem(features, labels, names, known, n_classes - len(known))
    with peak() as most:
        started = time.monotonic()
        network = new_network(problem, CLUSTERING, "none", pick("cpu"))
        predictor = WhitenedClustering()
        predictor.fit(lambda images: infer(network, images), problem, seed=seed)
        fitted = time.monotonic()
        classes = problem.class_names()
        model = Model(network, predictor, SYSTEM.name, 0, classes, len(known), "none", 224, 3)
        unlabelled = problem.unlabelled
        own = [names[i] for i in unlabelled.tolist()]
        found = [label for _, label, *_ in prediction_rows(model, own, Part(features, unlabelled))]
        predicted = time.monotonic()
    return {
        "clustered": fitted - started,
        "predicted": predicted - started,
        "MiB": most[0],
        "purity": 100 * purity(y[unlabelled.numpy()].tolist(), found),
    }


@contextmanager
def peak() -> Iterator[list[float]]:
    """A list of one number: by how many MiB memory has grown at most, without mapped files."""
    before, stop, most = memory("RssAnon"), threading.Event(), [0.0]

    def watch() -> None:
        while not stop.wait(0.05):
            most[0] = max(most[0], memory("RssAnon") - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        stop.set()
        watching.join()


def purity(true: Sequence[Any], found: Sequence[Any]) -> float:
    """The share of the images that have their class's most frequent label."""
    most: dict[Any, int] = {}
    for (k, _), n in Counter(zip(true, found, strict=True)).items():
        most[k] = max(n, most.get(k, 0))
    return sum(most.values()) / len(true)


# --------------------------------------------------------------------------------------------- the bench


class Row(NamedTuple):
    """What is measured, and the figures in words."""

    images: int
    measure: Callable[[Path, int, int], Figures]
    of: str
    figures: str


ROWS = {
    "throughput": Row(
        1_024,
        throughput,
        "photographs of 224 pixels, two views each, through the store",
        "{images per second:.0f} images/s, {of a bare loop:.2f} of a bare forward loop of the network",
    ),
    "run": Row(
        10_000,
        whole_run,
        "images: number estimated, clustered, all predicted",
        "{with features in the store:.1f} s with features in the store, "
        "{with features to be made:.1f} s with features to be made",
    ),
    "million": Row(
        1_000_000,
        on_disk,
        "images, features on disk: clustered, all predicted",
        "clustered in {clustered:.0f} s, all predicted after {predicted:.0f} s, "
        "{MiB:,.0f} MiB of memory beside the mapped file, purity {purity:.1f} %",
    ),
}


def cells(scale: Scale) -> list[Cell]:
    """A cell for each row; a seed is a repetition. The million only if it is asked for."""
    for name in scale.only:
        if name not in ROWS:
            raise UserError(f"there is no row {name!r}; choose from: {'; '.join(ROWS)}")
    return [
        Cell((name, f"{row.images:,} {row.of}"), seed, Timed(name, row.images, seed))
        for name, row in ROWS.items()
        if name in (scale.only or ROWS.keys() - {"million"})
        for seed in range(scale.seeds)
    ]


class Range(list[float]):
    """Formatted as one number, or as two, from the least to the most."""

    def __format__(self, form: str) -> str:
        return " to ".join(dict.fromkeys(format(end, form) for end in (min(self), max(self))))


def said(of: Sequence[Result]) -> str:
    """The figures in words."""
    row, figures = ROWS[of[0].row[0]], of[0].figures
    return row.figures.format(**{name: Range(r.figures[name] for r in of) for name in figures})


BENCH = Bench(
    name="features",
    about="frozen features: how fast they are made, and what clustering them takes",
    fields=("what", "of"),
    scale=Scale(seeds=1),
    measured_on="random images of 224 pixels",
    cells=cells,
    columns=(Column("figures", said),),
    said=("images per second", "with features in the store", "predicted"),
    alone=True,
)

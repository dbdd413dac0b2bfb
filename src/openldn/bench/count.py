"""How well the number of novel classes is estimated: `openldn bench count`.

Each draw takes some classes of a data set, makes some of them known and labels half of their images. All
estimators see the same features, those of the frozen EfficientNet-Lite0.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openldn import device
from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale, figure
from openldn.data import sources, store
from openldn.data.pixels import Images, Part
from openldn.errors import UserError
from openldn.job import default_features
from openldn.maths import count
from openldn.options import PRETRAINED_SIZE, Options
from openldn.progress import watcher

IMAGES = 100  # of each class, at most
CASES: dict[str, tuple[tuple[int, int], ...]] = {
    "digits": ((5, 5), (6, 4), (8, 2)),
    "fashion-mnist": ((5, 5), (6, 4), (8, 2)),
    "cifar10": ((5, 5), (6, 4), (8, 2)),
    "cifar100": ((50, 50), (40, 20), (20, 10)),
    "oxford-pets": ((18, 19), (25, 12), (20, 5)),
    "cub": ((100, 50), (50, 50), (20, 10)),
}
"""By data set: numbers of known and novel classes."""
ESTIMATORS = ("ours", "dtc", "gcd")


@dataclass(frozen=True)
class Counted:
    """The estimates for one draw."""

    data: str
    case: tuple[int, int]
    seed: int
    data_dir: str | None

    @property
    def record(self) -> Mapping[str, Any]:
        return {"data": self.data, "case": list(self.case), "images": IMAGES}

    @property
    def modules(self) -> Sequence[str]:
        return ("openldn.bench.count", "openldn.maths.count", "openldn.nets.encoder")

    def __call__(self, path: Path, quiet: bool) -> Figures:
        return features(self.data, self.data_dir).draw(self.case, self.seed)

    def where(self, path: Path) -> str:
        return "estimating"


def cells(scale: Scale) -> list[Cell]:
    """A cell for each draw, one data set after the other."""
    for name in scale.data:
        if name not in CASES:
            raise UserError(f"{name!r} is not in this benchmark; choose from {', '.join(CASES)}")
    return [
        Cell((data, str(case[0]), str(case[1])), seed, Counted(data, case, seed, scale.data_dir))
        for data in scale.data or CASES
        for case in CASES[data]
        for seed in range(scale.seeds)
    ]


class Features:
    """A data set whose images are looked at when they are first drawn."""

    def __init__(self, name: str, data_dir: str | None):
        self.labels, self.images, self.flip = _opened(name, data_dir)

    def draw(self, case: tuple[int, int], seed: int) -> dict[str, Any]:
        """The estimates for a draw of so many known and novel classes."""
        n_known, n_novel = case
        rng = np.random.default_rng([seed, n_known, n_novel, 0xC0C])
        classes = rng.permutation(int(self.labels.max()) + 1)[: n_known + n_novel]
        rows, labels = list[int](), list[int]()
        for k, name in enumerate(classes.tolist()):
            of_class = rng.permutation(np.flatnonzero(self.labels == name))[:IMAGES].tolist()
            rows += of_class
            labels += [k if k < n_known and i % 2 == 0 else -1 for i in range(len(of_class))]
        images = Part(self.images, torch.tensor(rows))
        z = default_features(images, self.flip, device.pick(), Options(weights="frozen"), watcher(True))
        given, started = torch.tensor(labels), time.monotonic()
        ours = count.estimate(z, given, n_known, seed=seed)
        seconds = time.monotonic() - started
        others = {
            by: estimate(z, given, n_known, seed=seed)
            for by, estimate in (("dtc", count.dtc), ("gcd", count.gcd))
        }
        return {
            "novel": n_novel,
            "ours": ours.n_novel,
            "low": ours.low,
            "high": ours.high,
            "seconds": round(seconds, 1),
            **others,
        }


@lru_cache(maxsize=1)
def features(name: str, data_dir: str | None) -> Features:
    """The data set that is drawn from, kept for the next draw."""
    return Features(name, data_dir)


def _opened(name: str, data_dir: str | None) -> tuple[NDArray[np.int64], Images, bool]:
    """Labels and images of the training set, and whether these may be flipped."""
    benchmark = sources.read_named(name, data_dir)
    listing, flip = benchmark.train, benchmark.flip
    if listing.files is None:
        return listing.labels, listing.pixels, flip
    root, watch = f"{listing.root}/{name}", watcher(False).counted
    images, skipped = store.decode(listing.files, root=root, size=PRETRAINED_SIZE, channels=3, watch=watch)
    if skipped:
        raise UserError(f"an image of {name} cannot be read ({skipped[0]}); get the data set again")
    return listing.labels, images, flip


def relative_error(estimate: float, true: int) -> float:
    """|estimate - true| / true."""
    return abs(estimate - true) / true


def each(heading: str, text: Callable[[Mapping[str, Any]], str]) -> Column:
    """A text for each seed."""
    return Column(heading, lambda of: ", ".join(text(r.figures) for r in of))


def estimates(heading: str, by: str) -> Column:
    """The numbers that an estimator gave."""
    return each(heading, lambda found: str(found[by]))


def summary(results: Sequence[Result]) -> str:
    """Mean relative errors, the lean of ours, and how often its interval holds the truth."""
    found = [r.figures for r in results]
    errors = {by: statistics.fmean(relative_error(d[by], d["novel"]) for d in found) for by in ESTIMATORS}
    shown = ", ".join(f"{by} {error:.2f}" for by, error in errors.items())
    held = statistics.fmean(d["low"] <= d["novel"] <= d["high"] for d in found)
    lean = math.exp(statistics.fmean(math.log(d["ours"] / d["novel"]) for d in found))
    return (
        f"{len(found)} draws; mean relative error: {shown}; ours is {lean:.2f} times the truth (geometric "
        f"mean); its interval holds the truth in {100 * held:.0f} % of the draws"
    )


BENCH = Bench(
    name="count",
    about="the number of novel classes, estimated by three estimators from frozen features",
    fields=("data", "known", "novel"),
    needs=tuple(CASES),
    measured_on="at most 100 images of each class",
    cells=cells,
    columns=(
        estimates("ours", "ours"),
        estimates("DTC", "dtc"),
        estimates("GCD", "gcd"),
        each("80 % interval of ours", lambda found: f"{found['low']} to {found['high']}"),
        figure("seconds of ours", "seconds"),
    ),
    said=ESTIMATORS,
    notes=summary,
    alone=True,
)

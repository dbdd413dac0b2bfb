"""How well the number of novel classes is estimated: `openldn bench count`.

Each draw takes some classes of a data set, makes some of them known and labels half of their images. All
estimators see the same features, those of the frozen EfficientNet-Lite0. Finished draws are kept.
"""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from openldn import device
from openldn.data import sources, store
from openldn.data.pixels import Images, Part
from openldn.data.sources import class_folders
from openldn.errors import UserError
from openldn.files import read_json, write_json
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
COLUMNS = ("data", "known", "novel", *ESTIMATORS, "80 % interval of ours", "holds it", "seconds of ours")


def run_count(out: Path, *, only: Sequence[str], seeds: int, data_dir: str | None) -> tuple[Table, str]:
    """A row for each draw, and a sentence with relative errors and coverage."""
    for name in only:
        if name not in CASES:
            raise UserError(f"{name!r} is not in this benchmark; choose from {', '.join(CASES)}")
    if seeds < 1:
        raise UserError(f"--seeds {seeds} leaves nothing to do; give at least 1")
    out.mkdir(parents=True, exist_ok=True)
    found = list[dict[str, Any]]()
    for name in only or CASES:
        missing = [
            (case, seed)
            for case in CASES[name]
            for seed in range(seeds)
            if not _file(out, name, case, seed).exists()
        ]
        if missing:
            features = Features(name, data_dir)
            for case, seed in missing:
                drawn = features.draw(case, seed)
                write_json(_file(out, name, case, seed), drawn)
                shown = ", ".join(f"{by} {drawn[by]}" for by in ESTIMATORS)
                print(f"{name}: {case[0]} known, {case[1]} novel, seed {seed}: {shown}", flush=True)
        for case in CASES[name]:
            for seed in range(seeds):
                file = _file(out, name, case, seed)
                found.append({"data": name, **read_json(file, "remove it, and give the command again")})
    return table(found), summary(found)


def _file(out: Path, name: str, case: tuple[int, int], seed: int) -> Path:
    return out / f"{name}-{case[0]}-{case[1]}-{seed}.json"


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
            "known": n_known,
            "novel": n_novel,
            "seed": seed,
            "ours": ours.n_novel,
            "low": ours.low,
            "high": ours.high,
            "seconds": round(seconds, 1),
            **others,
        }


def _opened(name: str, data_dir: str | None) -> tuple[NDArray[np.int64], Images, bool]:
    """Labels and images of the training set, and whether these may be flipped."""
    if name in sources.NAMED:
        benchmark = sources.read_named(name, data_dir)
    else:
        benchmark = class_folders.read(name, sources.home(data_dir) / name)
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


def table(found: Sequence[dict[str, Any]]) -> Table:
    """A row for each data set and case; estimates of all seeds."""
    made = Table(*COLUMNS)
    for name, known, novel in dict.fromkeys((d["data"], d["known"], d["novel"]) for d in found):
        of = [d for d in found if (d["data"], d["known"], d["novel"]) == (name, known, novel)]
        made.add_row(
            name,
            str(known),
            str(novel),
            *(" ".join(str(d[by]) for d in of) for by in ESTIMATORS),
            " ".join(f"{d['low']}-{d['high']}" for d in of),
            f"{sum(d['low'] <= novel <= d['high'] for d in of)} of {len(of)}",
            f"{statistics.fmean(d['seconds'] for d in of):.1f}",
        )
    return made


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Mean relative errors, the lean of ours, and how often its interval holds the truth."""
    errors = {by: statistics.fmean(relative_error(d[by], d["novel"]) for d in found) for by in ESTIMATORS}
    shown = ", ".join(f"{by} {error:.2f}" for by, error in errors.items())
    held = statistics.fmean(d["low"] <= d["novel"] <= d["high"] for d in found)
    lean = math.exp(statistics.fmean(math.log(d["ours"] / d["novel"]) for d in found))
    return (
        f"{len(found)} draws; mean relative error: {shown}; ours is {lean:.2f} times the truth (geometric "
        f"mean); its interval holds the truth in {100 * held:.0f} % of the draws"
    )

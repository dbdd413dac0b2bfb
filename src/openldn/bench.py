"""Every system under one protocol: the same images, the same labels, the same network, the same budget.

A budget is image passes through the network, forward 1 and backward 2, pretraining included. Each run is kept
and goes on where it was stopped; what is finished is not run again.
"""

import multiprocessing
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from openldn import device, metrics, pipeline
from openldn.config import Options
from openldn.data import sources
from openldn.data.problem import LabelledSet
from openldn.recipes import RECIPES, recipe
from openldn.run import Run

KEYS = ("known", "novel", "all")
SYSTEMS = (*RECIPES, "orca+uda", "simgcd+uda")
# Known / novel / all as the paper's first table has them for CIFAR-10, half of the labels. Its rows of other
# systems were measured by others under another protocol, on unlabelled training images.
PAPER = {
    "fixmatch": (71.5, 50.4, 49.5),
    "ds3l": (77.6, 45.3, 40.2),
    "cgdl": (72.3, 44.6, 39.7),
    "dtc": (53.9, 39.5, 38.3),
    "rankstats": (86.6, 81.0, 82.9),
    "uno": (91.6, 69.3, 80.5),
    "orca": (88.2, 90.4, 89.7),
    "openldn-mixmatch": (95.2, 92.7, 94.0),
    "openldn-uda": (95.7, 95.1, 95.4),
}


@dataclass(frozen=True)
class Result:
    """What one run came to."""

    scores: dict[str, float]
    passes: float
    seconds: float


def systems(
    data: str,
    out: Path,
    *,
    only: Sequence[str],
    seeds: int,
    per_image: float,
    images: int | None,
    oracle: bool,
    data_dir: str | None,
    at_once: int,
) -> Table:
    """Trains what is not trained yet, a seed of all systems before the next, and makes the table."""
    for method in only:
        recipe(method)  # says so if there is none
    n, novel_share = _about(data, data_dir, images)
    budget = per_image * n
    jobs = [(method, seed) for seed in range(seeds) for method in only]
    choices = {
        "data_dir": data_dir,
        "images": images,
        "budget": budget,
        "ood_rate": novel_share if oracle else None,
    }
    threads = max(1, (os.cpu_count() or 1) // at_once)
    found: dict[str, list[Result]] = {method: [] for method in only}
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"), _prepare, (threads,)) as pool:
        waiting = [
            pool.submit(_run, data, out / f"{method}-{seed}", method, seed, choices, at_once > 1)
            for method, seed in jobs
        ]
        for (method, seed), done in zip(jobs, waiting, strict=True):
            result = done.result()
            found[method].append(result)
            said = " / ".join(f"{result.scores[key]:.1f}" for key in KEYS)
            print(f"{method}, seed {seed}: {said}, {result.seconds:.0f} s", flush=True)
    return table(data, found, budget, oracle)


def _about(data: str, data_dir: str | None, images: int | None) -> tuple[int, float]:
    """How many training images there are, and the novel share of unlabelled ones, for `oracle` alone."""
    whole = sources.read_named(data, data_dir)
    if isinstance(whole, LabelledSet) and images is not None:
        whole = whole.subset(images)
    n_classes = len(whole.classes)
    labels = whole.labels
    novel = float((labels >= n_classes - n_classes // 2).sum())
    n = len(labels) if images is None else min(images, len(labels))
    known = len(labels) - novel
    return n, novel / (novel + known / 2)


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    device.keep_freed_memory()


def _run(data: str, path: Path, method: str, seed: int, choices: dict[str, Any], quiet: bool) -> Result:
    if path.exists():
        made = pipeline.resume(path, quiet=quiet)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = pipeline.train(data, Options(method=method, seed=seed, **choices), out=path, quiet=quiet)
    return result_of(made)


def result_of(run: Run) -> Result:
    """Of a finished run; passes and seconds are counted from the start of each phase."""
    lines = run.metrics()
    last = {line["phase"]: line for line in lines if line["phase"] != "final"}
    return Result(
        metrics.headline(lines[-1]),
        sum(line["passes"] for line in last.values()),
        sum(line["seconds"] for line in last.values()),
    )


def table(data: str, found: dict[str, list[Result]], budget: float, oracle: bool) -> Table:
    """A row a system, the best on all images first."""
    rates = "reject rates from the true share of novel images (oracle)" if oracle else "no oracle"
    shown = Table(
        "system",
        *KEYS,
        "thousand passes",
        "minutes",
        "paper, CIFAR-10",
        title=f"{data}, test images, protocol openldn, budget {budget / 1e3:,.0f} thousand passes, {rates}",
    )

    def mean(results: list[Result]) -> float:
        return statistics.fmean(r.scores["all"] for r in results)

    for method, results in sorted(found.items(), key=lambda item: -mean(item[1])):
        cells = [spread([r.scores[key] for r in results]) for key in KEYS]
        passes = statistics.fmean(r.passes for r in results) / 1e3
        minutes = statistics.fmean(r.seconds for r in results) / 60
        reported = " / ".join(map(str, PAPER[method])) if method in PAPER else ""
        shown.add_row(method, *cells, f"{passes:,.0f}", f"{minutes:.1f}", reported)
    return shown


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    mean = statistics.fmean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"

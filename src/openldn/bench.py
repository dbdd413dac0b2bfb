"""Every system under one protocol: the same images, the same labels, the same network, the same budget.

A budget is image passes through the network, forward 1 and backward 2, pretraining included. Each run is kept
and goes on where it was stopped; what is finished is not run again.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from openldn import device, metrics, pipeline
from openldn.config import Options
from openldn.data import sources
from openldn.data.problem import LabelledSet
from openldn.errors import UserError
from openldn.recipes import RECIPES, recipe
from openldn.run import Run, write_csv

KEYS = ("known", "novel", "all")
COLUMNS = ("system", *KEYS, "thousand passes", "minutes", "paper, CIFAR-10")
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
    """Trains what is not trained yet, a seed of all systems before the next, and makes the table.

    It is also written to `out`, as it stands after each run.
    """
    for method in only:
        recipe(method)  # says so if there is none
    if seeds < 1 or at_once < 1:
        raise UserError(f"{seeds} seeds and {at_once} runs at once leave nothing to do; give at least 1")
    n, novel_share = _about(data, data_dir, images)
    budget = per_image * n
    options = {
        (method, seed): Options(
            method=method,
            seed=seed,
            data_dir=data_dir,
            images=images,
            budget=budget,
            ood_rate=novel_share if oracle else None,
        )
        for seed in range(seeds)
        for method in only
    }
    for (method, seed), chosen in options.items():
        pipeline.check(chosen)
        _check_the_same(out / f"{method}-{seed}", chosen)
    found: dict[str, list[Result]] = {method: [] for method in only}
    started, trained = time.monotonic(), 0
    for (method, seed), result, fresh in _made(data, out, options, at_once):
        found[method].append(result)
        trained += fresh
        done = sum(map(len, found.values()))
        said = " / ".join(f"{result.scores[key]:.1f}" for key in KEYS)
        left = (time.monotonic() - started) / max(1, trained) * (len(options) - done) / 60
        print(
            f"{done} of {len(options)}: {method}, seed {seed}: {said}"
            + (f"; about {left:.0f} minutes left" if trained and done < len(options) else ""),
            flush=True,
        )
        made = rows({m: results for m, results in found.items() if results})
        write_csv(out / "systems.csv", COLUMNS, made)
    rates = "reject rates from the true share of novel images (oracle)" if oracle else "no oracle"
    budgeted = f"{budget / 1e3:,.0f} thousand passes"
    title = f"{data}, {seeds} seeds, test images, protocol openldn, {budgeted}, {rates}"
    shown = Table(*COLUMNS, title=title)
    for row in made:
        shown.add_row(*row)
    return shown


Job = tuple[str, int]


def _made(
    data: str, out: Path, options: dict[Job, Options], at_once: int
) -> Iterator[tuple[Job, Result, bool]]:
    """Each run's result as it is there, and whether it had to be trained."""
    if at_once == 1:
        for job, chosen in options.items():
            yield job, *_run(data, out / "{}-{}".format(*job), chosen, False)
        return
    threads = max(1, (os.cpu_count() or 1) // at_once)
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"), _prepare, (threads,)) as pool:
        jobs = {
            pool.submit(_run, data, out / "{}-{}".format(*job), chosen, True): job
            for job, chosen in options.items()
        }
        try:
            for done in as_completed(jobs):
                yield jobs[done], *done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _check_the_same(path: Path, chosen: Options) -> None:
    """A run that is there already must be the one that was asked for."""
    if path.exists() and Run.open(path).options != chosen:
        raise UserError(
            f"{path} was begun with other choices (budget, images or rate); give another --out, or remove it"
        )


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


def _run(data: str, path: Path, chosen: Options, quiet: bool) -> tuple[Result, bool]:
    if path.exists():
        fresh = not Run.open(path).finished
        made = pipeline.resume(path, quiet=quiet)
    else:
        fresh = True
        path.parent.mkdir(parents=True, exist_ok=True)
        made = pipeline.train(data, chosen, out=path, quiet=quiet)
    return result_of(made), fresh


def result_of(run: Run) -> Result:
    """Of a finished run; passes and seconds are counted from the start of each phase."""
    lines = run.metrics()
    last = {line["phase"]: line for line in lines if line["phase"] != "final"}
    return Result(
        metrics.headline(lines[-1]),
        sum(line["passes"] for line in last.values()),
        sum(line["seconds"] for line in last.values()),
    )


def rows(found: dict[str, list[Result]]) -> list[list[str]]:
    """A row a system, the best on all images first."""

    def mean(results: list[Result]) -> float:
        return statistics.fmean(r.scores["all"] for r in results)

    made = []
    for method, results in sorted(found.items(), key=lambda item: -mean(item[1])):
        cells = [spread([r.scores[key] for r in results]) for key in KEYS]
        passes = statistics.fmean(r.passes for r in results) / 1e3
        minutes = statistics.fmean(r.seconds for r in results) / 60
        reported = " / ".join(map(str, PAPER[method])) if method in PAPER else ""
        made.append([method, *cells, f"{passes:,.0f}", f"{minutes:.1f}", reported])
    return made


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    mean = statistics.fmean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"

"""What the benchmarks share: arguments, runs that are resumed, a process pool, tables of mean ± spread."""

import argparse
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import openldn
from openldn import Options, Run, job
from openldn.data import workers
from openldn.data.problem import Problem, Truth
from openldn.data.reading import Given
from openldn.device import keep_freed_memory
from openldn.maths import metrics

KEYS = ("known", "novel", "all")
Result = Mapping[str, float]


def parser(
    doc: str, *, seeds: int | None = None, out: str | None = None, jobs: int
) -> argparse.ArgumentParser:
    """A parser with the options that most benchmarks have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    if seeds is not None:
        made.add_argument("--seeds", type=int, default=seeds, help=f"number of seeds (default: {seeds})")
    made.add_argument("--jobs", type=int, default=jobs, help=f"runs at a time (default here: {jobs})")
    if out is not None:
        made.add_argument("--out", type=Path, default=Path(out), help=f"folder of the runs (default: {out})")
    return made


# ---------------------------------------------------------------------------------------------- runs


def trained(path: Path, data: str, *, quiet: bool = True, **choices: Any) -> Run:
    """The finished run at `path`: trained on a named data set, or resumed if it exists."""
    if path.exists():
        return openldn.resume(path, quiet=quiet)
    path.parent.mkdir(parents=True, exist_ok=True)
    return openldn.train(data, out=path, quiet=quiet, **choices)


def trained_on(problem: Problem, truth: Truth | None, path: Path, options: Options) -> Run:
    """The same for a problem that was made by hand."""
    if path.exists():
        return job.go_on(Run.open(path), problem, truth, quiet=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    given = Given(problem, truth, (), np.arange(len(problem.images)))
    return job.start(given, options, {"kind": "arrays"}, path, quiet=True)


def result(run: Run) -> dict[str, float]:
    """Final known, novel and all accuracy, and the time that training took."""
    return {**metrics.headline(run.metrics()[-1]), **duration(run)}


def duration(run: Run) -> dict[str, float]:
    """Seconds and minutes of training, summed over the stages."""
    last = {line["phase"]: line["seconds"] for line in run.metrics() if line["phase"] != "final"}
    return {"seconds": sum(last.values()), "minutes": sum(last.values()) / 60}


# --------------------------------------------------------------------------------------------- a pool


def pooled(f: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """f(*task) of every task, in order; `jobs` processes share the cores."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _prepare_worker, (threads(jobs), os.getpid())) as pool:
        yield from pool.map(f, *zip(*tasks, strict=True))


def pooled_with_bar(f: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Any]:
    """The same, with a progress bar."""
    return [*track(pooled(f, tasks, jobs), "training", len(tasks), console=Console(stderr=True))]


def threads(jobs: int) -> int:
    """Threads of each of so many processes."""
    return max(1, workers.count() // jobs)


def prepare(n_threads: int) -> None:
    """Sets up a process as the command line does."""
    torch.set_num_threads(n_threads)
    keep_freed_memory()


def _prepare_worker(n_threads: int, owner: int) -> None:
    workers.end_with_owner(owner)
    prepare(n_threads)
    warnings.simplefilter("ignore", openldn.OpenLDNWarning)  # ablations leave classes empty


# -------------------------------------------------------------------------------------------- tables


def table(
    title: str,
    by: Sequence[str],
    columns: Mapping[str, str],
    tasks: Sequence[tuple[Any, ...]],
    results: Sequence[Result],
) -> None:
    """Prints mean ± spread of the results, a row for all tasks that begin with the same fields.

    `by` are the names of these fields; `columns` maps headings to keys of the results.
    """
    shown = Table(*by, *columns, title=title)
    for row in dict.fromkeys(task[: len(by)] for task in tasks):
        of = [found for task, found in zip(tasks, results, strict=True) if task[: len(by)] == row]
        shown.add_row(*map(str, row), *(spread([found[key] for found in of]) for key in columns.values()))
    Console(width=150).print(shown)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f}"

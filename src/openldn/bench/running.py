"""Measures the missing cells of a bench, several at a time; it may be stopped and given again."""

import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from openldn import device
from openldn.bench.cells import Bench, Cell, Figures, Result, Scale
from openldn.bench.kept import Results
from openldn.data import workers
from openldn.errors import Diverged, OpenLDNWarning, UserError

STATUS_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement."""

    figures: Figures | str  # or why there are none
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """All that is measured, and what failed."""

    bench: Bench
    results: list[Result]
    failed: list[str]


def run(
    bench: Bench, cells: Sequence[Cell], out: Path, jobs: int | None = None, scale: Scale | None = None
) -> Table:
    """The results of all cells; those that are not finished are measured, in the order in which they come.

    After each one `results.json` in `out` has it.
    """
    check_ours(out)
    kept = Results(bench, out, scale)
    missing = [cell for cell in cells if kept.of(cell) is None]
    kept.save()
    jobs = jobs_at_a_time(bench, jobs)
    n_kept = len(cells) - len(missing)
    say(f"{len(cells)} runs, {n_kept} of them finished; {min(jobs, max(1, len(missing)))} at a time")
    started, done, failed = time.monotonic(), 0, list[str]()
    for cell, outcome in _outcomes(missing, out, jobs):
        done += 1
        for text in outcome.warnings:
            say(f"warning: {cell}: {text}")
        if isinstance(outcome.figures, str):
            failed.append(f"{cell}: {outcome.figures}")
            say(failed[-1])
            continue
        found = kept.add(cell, outcome.figures).figures
        said = ", ".join(f"{name} {found[name]:.4g}" for name in bench.said if found.get(name) is not None)
        remaining = left(started, done, len(missing), jobs)
        say(f"{n_kept + done} of {len(cells)}: {cell}: {said}{remaining}")
    results = [result for cell in cells if (result := kept.of(cell)) is not None]
    if not results:
        raise UserError(
            f"no run finished; the first failure: {failed[0]}" if failed else "there is nothing to do"
        )
    return Table(bench, results, failed)


def left(started: float, done: int, total: int, jobs: int) -> str:
    """The time that is left, as the end of a line; other cells under way count as half done."""
    running = min(jobs, total - done)
    if not running:
        return ""
    each = (time.monotonic() - started) / (done + running / 2)
    return f"; about {math.ceil(each * (total - done - running / 2) / 60)} min left"


def jobs_at_a_time(bench: Bench, jobs: int | None) -> int:
    """One on a GPU, and where time is measured; else one per core."""
    if bench.alone:
        return 1
    if jobs is None:
        return workers.count() if device.pick("auto").type == "cpu" else 1
    if jobs < 1:
        raise UserError(f"--jobs {jobs} leaves nothing to do; give at least 1")
    return jobs


def check_ours(out: Path) -> None:
    """A folder that exists must be one of a bench, since a file in it will be written."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; give a folder for the runs as --out")
    # A name that starts with a dot may be an unfinished run.
    if any(out.glob("[!.]*")) and not (out / "results.json").exists():
        raise UserError(f"{out} is not empty and holds no runs; give another --out")


def _outcomes(cells: Sequence[Cell], out: Path, jobs: int) -> Iterator[tuple[Cell, Outcome]]:
    """Each cell's outcome, as they finish."""
    if jobs == 1:
        device.keep_freed_memory()
        for cell in cells:
            yield cell, measured(cell, out / cell.key, False)
        return
    threads, spawn = max(1, workers.count() // jobs), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _prepare, (threads, os.getpid())) as pool:
        # No more are submitted than can run: when the bench is stopped, no other begins.
        waiting, running = list(cells), dict[Future[Outcome], Cell]()
        said = time.monotonic()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    running[pool.submit(measured, cell, out / cell.key, True)] = cell
                finished = wait(running, STATUS_EVERY, return_when=FIRST_COMPLETED).done
                for future in finished:
                    said = time.monotonic()
                    yield running.pop(future), future.result()
                if not finished and time.monotonic() - said > STATUS_EVERY - 1:
                    said = time.monotonic()
                    under_way = (f"{cell}: {cell.measure.where(out / cell.key)}" for cell in running.values())
                    say("; ".join(under_way))
        except BrokenProcessPool:
            raise UserError(
                "a run was killed, perhaps for lack of memory; give the same command again to go on, with "
                "--jobs 1 if memory is short"
            ) from None


def measured(cell: Cell, path: Path, quiet: bool) -> Outcome:
    """The outcome of a cell; that it failed is no reason to stop the others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OpenLDNWarning)
        figures: Figures | str
        try:
            figures = cell.measure(path, quiet)
        except (Diverged, UserError) as e:  # other systems may do better
            figures = str(e)
    texts = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, OpenLDNWarning))
    return Outcome(figures, tuple(texts))


def _prepare(threads: int, owner: int) -> None:
    workers.end_with_owner(owner)
    torch.set_num_threads(threads)
    device.keep_freed_memory()


def say(line: str) -> None:
    """A line on standard output, at once."""
    print(line, flush=True)

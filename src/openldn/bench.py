"""Every system under one protocol: the same images, labels, network and budget.

A budget is image passes through the network, forward 1 and backward 2, pretraining included. Each run is kept
and resumed where it was stopped; finished runs are not run again.
"""

import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from openldn import device, job, pipeline, systems
from openldn.data import reading, sources, workers
from openldn.errors import Diverged, OpenLDNWarning, UserError
from openldn.files import write_csv
from openldn.maths import metrics
from openldn.options import Options
from openldn.run import Run
from openldn.systems import SYSTEMS

KEYS = ("known", "novel", "all")
COLUMNS = (
    "system",
    *KEYS,
    "all, anchored",
    "known, none rejected",
    "thousand passes",
    "minutes",
    "paper, CIFAR-10",
)
# Left out on narrow terminals, in this order; `systems.csv` has all.
LEFT_OUT_FIRST = ("paper, CIFAR-10", "known, none rejected", "minutes", "thousand passes")
STATUS_EVERY = 30.0  # seconds


def default_systems() -> tuple[str, ...]:
    """All that learn from scratch, but two that differ from `openldn-uda` in their second stage alone; and
    two combinations.
    """
    left_out = ("openldn-fixmatch", "openldn-mean-teacher")
    names = [name for name, system in SYSTEMS.items() if system.weights == "scratch" and name not in left_out]
    return (*names, "orca+uda", "simgcd+uda")


# Known / novel / all of the paper's first table: CIFAR-10, half of the labels. Its rows of other systems were
# measured by others under another protocol, on unlabelled training images.
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
    """The result of one run."""

    scores: dict[str, float]
    ordered: bool  # whether its known ids are the known classes; else known accuracy is by Hungarian matching
    anchored: float  # on all images, known classes by name
    none_rejected: float | None  # known accuracy if nothing were rejected, of systems that reject
    passes: float
    seconds: float


Job = tuple[str, int]  # a system and a seed


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    result: Result | str  # or why there is none
    trained: bool  # whether there was anything left to train
    warnings: tuple[str, ...]


def run_systems(
    data: str,
    out: Path,
    *,
    only: Sequence[str],
    seeds: int,
    per_image: float,
    images: int | None,
    oracle: bool,
    data_dir: str | None,
    jobs: int | None,
    width: int,
) -> tuple[Table, list[str]]:
    """Trains what is not trained yet, one seed of all systems before the next.

    Returns a table that fits the width, and the failures. The whole table is also in `out`, after each run.
    """
    if jobs is None:
        jobs = workers.count() if device.pick("auto").type == "cpu" else 1
    for name, given in (("jobs", jobs), ("seeds", seeds), ("per-image", per_image)):
        if not given >= 1:
            raise UserError(f"--{name} {given:g} leaves nothing to do; give at least 1")
    if data not in sources.NAMED:
        raise UserError(f"there is no data set {data!r}; choose one of {', '.join(sources.NAMED)}")
    shared = Options(images=images, data_dir=data_dir)
    about = reading.about(reading.describe(data, None, shared), shared)
    budget = per_image * about.n_images
    options = {}
    for seed in range(seeds):
        for method in only:
            rejects = any(hasattr(stage.settings, "novel_share") for stage in systems.find(method).stages)
            asked = Options(
                method=method,
                seed=seed,
                data_dir=data_dir,
                images=images,
                budget=budget,
                settings={"novel_share": about.novel_share} if oracle and rejects else {},
                evaluations=0,  # at the end of a run it is evaluated anyway
            )
            options[method, seed] = pipeline.decided(asked, {"kind": "named"})
    _check_ours(out)
    for (method, seed), chosen in options.items():
        _check_the_same(out, f"{method}-{seed}", data, chosen)
    found: dict[str, list[Result]] = {method: [] for method in only}
    failed: list[str] = []
    to_train = sum(not _finished(out / _folder(job)) for job in options)
    _say(
        f"{len(options)} runs, {len(options) - to_train} of them finished; {jobs} at a time, "
        f"{budget / 1e3:,.0f} thousand image passes each"
    )
    started, trained, done = time.monotonic(), 0, 0
    for (method, seed), outcome in _outcomes(data, out, options, jobs):
        trained, done = trained + outcome.trained, done + 1
        for text in outcome.warnings:
            _say(f"warning: {method}, seed {seed}: {text}")
        if isinstance(outcome.result, str):
            failed.append(f"{method}, seed {seed}: {outcome.result}")
            _say(failed[-1])
            continue
        found[method].append(outcome.result)
        scores = " / ".join(f"{outcome.result.scores[key]:.1f}" for key in KEYS)
        running = min(jobs, to_train - trained)  # each of them half done, on average
        each = (time.monotonic() - started) / max(1.0, trained + running / 2)
        left = math.ceil(each * (to_train - trained - running / 2) / 60)
        _say(
            f"{done} of {len(options)}: {method}, seed {seed}: {scores}"
            + (f"; about {left} min left" if trained and running else "")
        )
        write_csv(out / "systems.csv", COLUMNS, rows(found, seeds, oracle))
    if not any(found.values()):
        raise UserError(f"no run finished; the first failure: {failed[0]}")
    rates = "reject rates from the true novel share (oracle)" if oracle else "no oracle"
    title = (
        f"{data}, {seeds} seeds, test images, protocol openldn, {budget / 1e3:,.0f} thousand passes, {rates}"
    )
    return fitted(rows(found, seeds, oracle), title, width), failed


def rows(found: dict[str, list[Result]], seeds: int, oracle: bool) -> list[list[str]]:
    """One row per system, best first by accuracy on all images under the protocol `anchored`.

    (The headline protocol's `all` lets a known class match any id.)
    """
    made = []
    for method, results in found.items():
        if results:
            known, novel, everything = ([r.scores[key] for r in results] for key in KEYS)
            anchored = [r.anchored for r in results]
            passes = statistics.fmean(r.passes for r in results) / 1e3
            minutes = statistics.fmean(r.seconds for r in results) / 60
            closed = [r.none_rejected for r in results if r.none_rejected is not None]
            name = method + (" (oracle)" if oracle and closed else "")
            name += f" ({len(results)} of {seeds} seeds)" if len(results) < seeds else ""
            cells = [spread(known) + ("" if results[0].ordered else " *"), spread(novel), spread(everything)]
            cells += [spread(anchored), spread(closed) if closed else "", f"{passes:,.0f}", f"{minutes:.1f}"]
            reported = " / ".join(map(str, PAPER[method])) if method in PAPER else ""
            made.append((statistics.fmean(anchored), [name, *cells, reported]))
    return [row for _, row in sorted(made, key=lambda pair: -pair[0])]


def fitted(rows: list[list[str]], title: str, width: int) -> Table:
    """As many columns as a terminal of that width has room for."""
    needed = {
        name: 3 + max(map(len, [*name.split(), *cells]))
        for name, cells in zip(COLUMNS, zip(*rows, strict=True), strict=True)
    }
    for name in LEFT_OUT_FIRST:
        if 1 + sum(needed.values()) > width:
            del needed[name]
    notes = []
    if any("*" in row[1] for row in rows):
        notes.append("* by Hungarian matching: its clusters have no names")
    if len(needed) < len(COLUMNS):
        notes.append("systems.csv has more columns")
    shown = Table(title=title, caption="; ".join(notes) or None)
    for name in needed:
        shown.add_column(name, no_wrap=name == "system")
    for row in rows:
        shown.add_row(*(row[COLUMNS.index(name)] for name in needed))
    return shown


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    mean = statistics.fmean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def result_of(run: Run) -> Result:
    """Of a finished run; passes and seconds are summed over its stages."""
    lines = run.metrics()
    last = {line["phase"]: line for line in lines if line["phase"] != "final"}
    return Result(
        metrics.headline(lines[-1]),
        lines[-1]["ordered"],
        lines[-1]["protocols"]["anchored"]["all"],
        lines[-1].get("none_rejected"),
        sum(line["passes"] for line in last.values()),
        sum(line["seconds"] for line in last.values()),
    )


def _outcomes(data: str, out: Path, options: dict[Job, Options], jobs: int) -> Iterator[tuple[Job, Outcome]]:
    """Each run's outcome, as they finish."""
    if jobs == 1:
        device.keep_freed_memory()
        for job, chosen in options.items():
            yield job, _run(data, out / _folder(job), chosen, False)
        return
    threads, spawn = max(1, workers.count() // jobs), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _prepare, (threads, os.getpid())) as pool:
        # No more are submitted than can run: when the bench is stopped, no other begins.
        waiting, running = list(options.items()), dict[Future[Outcome], Job]()
        said = time.monotonic()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    job, chosen = waiting.pop(0)
                    running[pool.submit(_run, data, out / _folder(job), chosen, True)] = job
                finished = wait(running, STATUS_EVERY, return_when=FIRST_COMPLETED).done
                for future in finished:
                    said = time.monotonic()
                    yield running.pop(future), future.result()
                if not finished and time.monotonic() - said > STATUS_EVERY - 1:
                    said = time.monotonic()
                    _say("; ".join(_status(out / _folder(job), job) for job in running.values()))
        except BrokenProcessPool:
            raise UserError(
                "a run was killed, perhaps for lack of memory; give the same command again to go on, with "
                "--jobs 1 if memory is short"
            ) from None


def _status(path: Path, job: Job) -> str:
    """How far a run has come, from its log."""
    lines = Run.open(path).metrics() if (path / "config.json").exists() else []
    where = f"{lines[-1]['phase']}, step {lines[-1]['step']}" if lines else "starting"
    return f"{job[0]}, seed {job[1]}: {where}"


def _prepare(threads: int, owner: int) -> None:
    workers.end_with_owner(owner)
    torch.set_num_threads(threads)
    device.keep_freed_memory()


def _folder(job: Job) -> str:
    return "{}-{}".format(*job)


def _finished(path: Path) -> bool:
    return path.exists() and Run.open(path).finished


def _run(data: str, path: Path, chosen: Options, quiet: bool) -> Outcome:
    fresh = not _finished(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OpenLDNWarning)
        result: Result | str
        try:
            if path.exists():
                result = result_of(pipeline.resume(path, quiet=quiet))
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                result = result_of(pipeline.train(data, chosen, out=path, quiet=quiet))
        except (Diverged, UserError) as e:  # other systems may do better
            result = str(e)
    texts = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, OpenLDNWarning))
    return Outcome(result, fresh, tuple(texts))


def _check_ours(out: Path) -> None:
    """A folder that exists must be one of runs, since a file in it will be written."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; give a folder for the runs as --out")
    # A name that starts with a dot may be an unfinished run.
    if any(out.glob("[!.]*")) and not any(out.glob("*/config.json")):
        raise UserError(f"{out} is not empty and holds no runs; give another --out")


def _check_the_same(out: Path, name: str, data: str, chosen: Options) -> None:
    """A run that exists must be the one that was asked for."""
    if not (out / name).exists():
        return
    run = Run.open(out / name)
    decided = job.decide(chosen, systems.chosen(chosen))
    same = all(run.config.get(key) == value for key, value in decided.items())
    if not same or (run.options, run.config["data"].get("name")) != (chosen, data):
        raise UserError(
            f"{out} holds runs with other choices (data, budget, images or rate) or of another version, "
            f"{name} for one; give another --out, or remove it"
        )


def _say(line: str) -> None:
    print(line, flush=True)

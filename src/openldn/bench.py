"""Every system under one protocol: the same images, the same labels, the same network, the same budget.

A budget is image passes through the network, forward 1 and backward 2, pretraining included. Each run is kept
and goes on where it was stopped; what is finished is not run again.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table

from openldn import device, metrics, pipeline
from openldn.config import Options, decide
from openldn.data import sources, workers
from openldn.data.problem import LabelledSet
from openldn.errors import Diverged, UserError
from openldn.recipes import RECIPES, recipe
from openldn.run import Run, write_csv

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
# What a narrow terminal does without; `systems.csv` has all.
LEAVE_OUT = ("paper, CIFAR-10", "known, none rejected", "minutes", "thousand passes")
# Two that differ from `openldn-uda` in their second stage alone are run when asked for.
SYSTEMS = (
    *(name for name in RECIPES if name not in ("openldn-fixmatch", "openldn-mean-teacher")),
    "orca+uda",
    "simgcd+uda",
)
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
    ordered: bool  # whether it has names for the known classes; else known accuracy is by the best matching
    anchored: float  # on all images, known classes called by their names
    none_rejected: float | None  # of known images, where the system rejects what it is unsure of
    passes: float
    seconds: float


Job = tuple[str, int]  # a system and a seed
Made = tuple[Result | str, bool]  # what a run came to, or why it did not, and whether it had to be trained


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
    at_once: int | None,
    width: int,
) -> tuple[Table, list[str]]:
    """Trains what is not trained yet, a seed of all systems before the next.

    Gives a table that fits the width, and what went wrong. All of the table is also in `out`, as it stands
    after each run.
    """
    if at_once is None:
        at_once = workers.count() if device.pick("auto").type == "cpu" else 1
    if at_once < 1:
        raise UserError(f"{at_once} runs at once leave nothing to do; give at least 1")
    if seeds < 1:
        raise UserError(f"{seeds} seeds leave nothing to do; give at least 1")
    if not per_image >= 1:
        raise UserError(f"{per_image:g} passes an image are too few to learn from; give at least 1")
    if data not in sources.NAMED:
        raise UserError(f"there is no data set {data!r}; choose one of {', '.join(sources.NAMED)}")
    for method in only:
        pipeline.check(Options(method=method, images=images))
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
            evaluations=0,  # at the end of a run it is judged anyway
        )
        for seed in range(seeds)
        for method in only
    }
    _check_ours(out)
    for (method, seed), chosen in options.items():
        pipeline.check(chosen)
        _check_the_same(out, f"{method}-{seed}", data, chosen)
    found: dict[str, list[Result]] = {method: [] for method in only}
    failed: list[str] = []
    to_train = sum(not _finished(out / "{}-{}".format(*job)) for job in options)
    started, trained, done = time.monotonic(), 0, 0
    for (method, seed), (result, fresh) in _made(data, out, options, at_once):
        trained, done = trained + fresh, done + 1
        if isinstance(result, str):
            failed.append(f"{method}, seed {seed}: {result}")
            print(failed[-1], flush=True)
            continue
        found[method].append(result)
        said = " / ".join(f"{result.scores[key]:.1f}" for key in KEYS)
        at_work = min(at_once, to_train - trained)  # each of them half done, on average
        each = (time.monotonic() - started) / max(1.0, trained + at_work / 2)
        left = each * (to_train - trained - at_work / 2)
        print(
            f"{done} of {len(options)}: {method}, seed {seed}: {said}"
            + (f"; about {math.ceil(left / 60)} min left" if trained and at_work else ""),
            flush=True,
        )
        write_csv(out / "systems.csv", COLUMNS, rows(found, seeds, oracle))
    if not any(found.values()):
        raise UserError(f"no run came to its end; the first: {failed[0]}")
    rates = "reject rates from the true share of novel images (oracle)" if oracle else "no oracle"
    title = (
        f"{data}, {seeds} seeds, test images, protocol openldn, {budget / 1e3:,.0f} thousand passes, {rates}"
    )
    return fitted(rows(found, seeds, oracle), title, width), failed


def rows(found: dict[str, list[Result]], seeds: int, oracle: bool) -> list[list[str]]:
    """A row a system, the best first, by all images where known classes are called by their names.

    (The protocol's own `all` lets a known class go by any name that no other has.)
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
    for name in LEAVE_OUT:
        if 1 + sum(needed.values()) > width:
            del needed[name]
    notes = []
    if any("*" in row[1] for row in rows):
        notes.append("* by the best matching of test images: its clusters have no names")
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
    """Of a finished run; passes and seconds are counted from the start of each phase."""
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


def _made(data: str, out: Path, options: dict[Job, Options], at_once: int) -> Iterator[tuple[Job, Made]]:
    """Each run's result, as it is there."""
    if at_once == 1:
        device.keep_freed_memory()
        for job, chosen in options.items():
            yield job, _run(data, out / "{}-{}".format(*job), chosen, False)
        return
    threads = max(1, workers.count() // at_once)
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"), _prepare, (threads,)) as pool:
        # No more are handed out than are at work: when somebody stops it, no other begins.
        waiting, at_work = list(options.items()), dict[Future[Made], Job]()
        try:
            while waiting or at_work:
                while waiting and len(at_work) < at_once:
                    job, chosen = waiting.pop(0)
                    at_work[pool.submit(_run, data, out / "{}-{}".format(*job), chosen, True)] = job
                for done in wait(at_work, return_when=FIRST_COMPLETED).done:
                    yield at_work.pop(done), done.result()
        except BrokenProcessPool:
            raise UserError(
                "a run was ended from outside, perhaps for lack of memory; give the same command again to go "
                "on, with --at-once 1 if memory is short"
            ) from None


def _prepare(threads: int) -> None:
    workers.end_with_owner()
    torch.set_num_threads(threads)
    device.keep_freed_memory()


def _finished(path: Path) -> bool:
    return path.exists() and Run.open(path).finished


def _run(data: str, path: Path, chosen: Options, quiet: bool) -> Made:
    fresh = not _finished(path)
    try:
        if path.exists():
            return result_of(pipeline.resume(path, quiet=quiet)), fresh
        path.parent.mkdir(parents=True, exist_ok=True)
        return result_of(pipeline.train(data, chosen, out=path, quiet=quiet)), fresh
    except (Diverged, UserError) as e:  # others may do better
        return str(e), fresh


def _check_ours(out: Path) -> None:
    """A folder that is there already must be one of runs, as a file in it will be written."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; give a folder for the runs as --out")
    # What begins with a dot may be a run half made.
    if any(out.glob("[!.]*")) and not any(out.glob("*/config.json")):
        raise UserError(f"{out} is not empty and holds no runs; give another --out")


def _check_the_same(out: Path, name: str, data: str, chosen: Options) -> None:
    """A run that is there already must be the one that was asked for."""
    if not (out / name).exists():
        return
    run, settings = Run.open(out / name), decide(chosen, parts=recipe(chosen.method).parts)
    settings = replace(settings, precision=run.settings.precision)  # chosen by a measurement
    if (run.options, run.config["data"].get("name"), run.settings) != (chosen, data, settings):
        raise UserError(
            f"{out} holds runs with other choices (data, budget, images or rate) or of another version, "
            f"{name} for one; give another --out, or remove it"
        )


def _about(data: str, data_dir: str | None, images: int | None) -> tuple[int, float]:
    """How many training images there are, and the novel share of unlabelled ones, for `oracle` alone."""
    whole = sources.read_named(data, data_dir)
    if isinstance(whole, LabelledSet) and images is not None:
        whole = whole.subset(images)
    n_classes, labels = len(whole.classes), whole.labels
    novel = float((labels >= n_classes - n_classes // 2).sum())
    known = len(labels) - novel
    return len(labels), novel / (novel + known / 2)

"""What a bench would take on this machine, from a short measured probe: a few steps of each stage."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.table import Table

from openldn import device, systems
from openldn.bench.cells import Cell
from openldn.bench.running import say
from openldn.bench.training import Trained
from openldn.data import reading, workers
from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.job import decide, precision
from openldn.model import new_network
from openldn.training.loop import EPOCH, Training
from openldn.training.settings import Settings

PROBED = (1 / 6, 1 / 2, 5 / 6)  # progress at which a step is measured, after one to warm up


@dataclass(frozen=True)
class Plan:
    """Of one run."""

    images: int
    steps: int
    passes: float
    seconds: float


def planned(measure: Trained) -> Plan:
    """Steps, passes and seconds of a run: its stages are begun and taken a few steps. Nothing is kept."""
    options, system = measure.options, systems.chosen(measure.options)
    source = reading.describe(measure.data, None, options)
    problem = reading.read(source, options).problem
    config = decide(options, system, data=measure.data)
    on = device.pick(options.device)
    whole = Plan(len(problem.images), 0, 0.0, 0.0)
    share = 0.0
    for stage in system.trained:
        share += stage.share
        budget = None if options.budget is None else share * options.budget - whole.passes
        settings = stage.settings(**config["settings"][stage.name])
        assert isinstance(settings, Settings)
        network = new_network(problem, stage, stage.backbone or config["backbone"], on, settings)
        network.mixed_precision = precision(options, on) == "bfloat16"
        own = probed(Training(stage, problem, network, settings), problem, on, budget)
        whole = replace(
            whole,
            steps=whole.steps + own.steps,
            passes=whole.passes + own.passes,
            seconds=whole.seconds + own.seconds,
        )
    return whole


def probed(training: Training, problem: Problem, on: torch.device, budget: float | None) -> Plan:
    """Of one stage. Evaluations are left out."""
    clock, taken = training.clock(budget), list[tuple[float, float]]()
    batches = Batches(
        problem,
        n_labelled=training.composition.labelled,
        n_unlabelled=training.composition.unlabelled,
        labelled_views=training.objective.labelled_views,
        unlabelled_views=training.objective.unlabelled_views,
        seed=(0,),
        device=on,
    )
    most = clock.max_steps or 0
    for progress in PROBED:
        if clock.max_passes is not None:
            clock.passes.total = progress * clock.max_passes
        clock.step = round(progress * most)
        # An update that comes every so many steps is among as many.
        for measured in (False, *[True] * getattr(training.settings, "omega_every", 1)):
            before, started = clock.passes.total, time.monotonic()
            with clock.passes:
                training.step(batches, clock)
            clock.step += 1
            if measured:
                taken.append((time.monotonic() - started, clock.passes.total - before))
    seconds, passes = (sum(values) / len(taken) for values in zip(*taken, strict=True))
    within = most if budget is None else round(budget / passes)
    steps = max(1, min(within, most or within))
    whole = Plan(len(problem.images), steps, steps * passes, steps * seconds)
    if budget is not None:  # which pays for refreshes too
        return whole
    each = training.objective.refresh_passes * len(problem.unlabelled)
    looks = each * refreshes(training, steps)
    return replace(whole, passes=whole.passes + looks, seconds=whole.seconds + looks * seconds / passes)


def refreshes(training: Training, steps: int) -> float:
    """How often a stage looks at all unlabelled images."""
    if training.period is not None:
        return steps // round(EPOCH * training.period)
    return min(training.refreshes or 0, steps)


def table(cells: Sequence[Cell], finished: int, jobs: int) -> Table:
    """A row for each kind of run of seed 0, and the sum over all seeds."""
    shown = Table(
        "row", "images", "steps", "million passes", "minutes", title="Plan, from a few measured steps"
    )
    seeds, threads = {cell.seed for cell in cells}, torch.get_num_threads()
    torch.set_num_threads(max(1, workers.count() // jobs))  # as each run will have
    total = 0.0
    for cell in cells:
        if cell.seed != min(seeds) or not isinstance(cell.measure, Trained):
            continue
        say(f"probing {cell}")
        own = planned(cell.measure)
        total += own.seconds
        numbers = (f"{own.images:,}", f"{own.steps:,}", f"{own.passes / 1e6:,.2f}", duration(own.seconds))
        shown.add_row(", ".join(cell.row), *numbers)
    torch.set_num_threads(threads)
    whole = duration(total * len(seeds) / jobs)
    shown.caption = (
        f"{len(cells)} runs, {finished} of them finished; all of them take about {whole} with {jobs} at a "
        "time, without evaluations"
    )
    return shown


def duration(seconds: float) -> str:
    """Minutes, hours or days."""
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} days"

"""What a person sees while a run is under way: a live bar on a terminal or in a notebook, lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from openldn.maths.metrics import headline


class Watcher:
    """Shows nothing; base of the displays."""

    def counted(self, what: str, done: int, total: int) -> None: ...
    def opened(self, run: Path) -> None: ...
    def said(self, line: str) -> None: ...
    def started(self, stage: str, progress: float, step: int) -> None: ...
    def stepped(self, progress: float, step: int, losses: Mapping[str, float]) -> None: ...
    def evaluated(self, evaluation: Mapping[str, Any]) -> None: ...
    def ended(self, finished: bool) -> None: ...


class Remaining(ProgressColumn):
    """Time left, from the time taken and the progress made since the start."""

    def render(self, task: Task) -> Text:
        return Text(f"{_duration(_left(task.fields['since'], task.fields['began'], task.completed))} left")


class Bar(Watcher):
    """A progress bar: stage, bar, percent, step, time left, accuracies; losses as far as there is room.

    Everything but the losses has a fixed width, so that a narrow terminal loses losses first.
    """

    def __init__(self, console: Console):
        self.console = console
        self.counting: tuple[str, Progress, TaskID] | None = None
        self.training: tuple[Progress, TaskID] | None = None

    def counted(self, what: str, done: int, total: int) -> None:
        if self.counting is None or self.counting[0] != what:
            bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.counting = (what, bar, bar.add_task(what, total=total))
            bar.start()
        _, bar, task = self.counting
        bar.update(task, completed=done)
        if done == total:
            bar.stop()
            self.counting = None

    def opened(self, run: Path) -> None:
        self.console.print(f"The run: {escape(str(run))}", highlight=False, soft_wrap=True)

    def said(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def started(self, stage: str, progress: float, step: int) -> None:
        fixed = Column(no_wrap=True)
        bar = Progress(
            TextColumn("[bold]{task.description}", table_column=fixed),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%", table_column=fixed),
            TextColumn("step {task.fields[step]}", table_column=fixed),
            Remaining(table_column=fixed),
            TextColumn(
                "[green]{task.fields[accuracies]}[/] [cyan]{task.fields[losses]}",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=self.console,
            expand=True,
        )
        task = bar.add_task(
            stage,
            total=1.0,
            step=step,
            since=time.monotonic(),
            began=progress,
            accuracies="",
            losses="",
        )
        bar.update(task, completed=progress)
        bar.start()
        self.training = bar, task

    def stepped(self, progress: float, step: int, losses: Mapping[str, float]) -> None:
        if self.training is not None:
            bar, task = self.training
            bar.update(task, completed=progress, step=step, losses=_short(losses))

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """In the bar, or, when the stage is over, on a line."""
        scores = headline(evaluation)
        if self.training is not None:
            bar, task = self.training
            bar.update(task, accuracies="/".join(f"{value:.1f}" for value in scores.values()))
        else:
            self.said("  " + ", ".join(f"{name} {value:.1f} %" for name, value in scores.items()))

    def ended(self, finished: bool) -> None:
        if self.training is not None:
            self.training[0].stop()
            self.training = None


class Lines(Watcher):
    """A line at the start and at the end of a stage, at evaluations, and every half minute."""

    def __init__(self, console: Console, every: float = 30.0):
        self.console, self.every = console, every
        self.last = self.since = time.monotonic()
        self.counting: tuple[str, float] | None = None
        self.stage, self.began, self.progress, self.step = "", 0.0, 0.0, 0
        self.losses: Mapping[str, float] = {}

    def counted(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.counting is None or self.counting[0] != what:
            self.counting = (what, now)
        taken = now - self.counting[1]
        if now - self.last > self.every or (done == total and taken > self.every / 3):
            self.said(f"{what}: {done}/{total}, {_duration(taken / done * (total - done))} left")

    def opened(self, run: Path) -> None:
        self.said(f"the run: {run}")

    def said(self, line: str) -> None:
        self.last = time.monotonic()
        self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def started(self, stage: str, progress: float, step: int) -> None:
        self.stage, self.began, self.since = stage, progress, time.monotonic()
        self.progress, self.step, self.losses = progress, step, {}
        self.said(f"{stage}: {'starts' if step == 0 else f'goes on at step {step}'}")

    def stepped(self, progress: float, step: int, losses: Mapping[str, float]) -> None:
        self.progress, self.step, self.losses = progress, step, losses
        if time.monotonic() - self.last > self.every:
            self._report("")

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        named = ", ".join(f"{name} {value:.1f}" for name, value in headline(evaluation).items())
        if self.stage and self.progress < 1:
            self._report(f", {named}")
        else:
            self.said(f"{self.stage or 'nothing to train'}: {named}")

    def ended(self, finished: bool) -> None:
        how = "done" if finished else "stopped"
        self.said(f"{self.stage}: {how} at step {self.step}, {_duration(time.monotonic() - self.since)}")

    def _report(self, accuracies: str) -> None:
        left = _duration(_left(self.since, self.began, self.progress))
        losses = f", {short}" if (short := _short(self.losses)) else ""
        self.said(f"{self.stage}: {self.progress:.0%}, step {self.step}, {left} left{accuracies}{losses}")


def watcher(quiet: bool = False) -> Watcher:
    """The right one for where we are: on stderr, so that stdout stays for results."""
    if quiet:
        return Watcher()
    console = Console(stderr=True)
    if console.is_jupyter or (console.is_terminal and sys.stdout.isatty()):
        return Bar(console)
    return Lines(console)


def _left(since: float, began: float, progress: float) -> float | None:
    made = progress - began
    return (time.monotonic() - since) / made * (1 - progress) if made > 0 else None


def _duration(seconds: float | None) -> str:
    """5 s, 2:05, 1:02:05."""
    if seconds is None:
        return "--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def _short(losses: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.2f}" for name, value in losses.items())

"""What a person sees while a run is under way: a live bar on a terminal, a few plain lines elsewhere."""

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
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from openldn.metrics import headline


class Silent:
    """Nobody looks on."""

    def counted(self, what: str, done: int, total: int) -> None: ...
    def opened(self, run: Path) -> None: ...
    def started(self, phase: str, step: int, steps: int) -> None: ...
    def stepped(self, step: int, figures: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, evaluation: Mapping[str, Any]) -> None: ...
    def ended(self) -> None: ...


class Bar(Silent):
    """A progress bar with losses, accuracies and time left."""

    counting: tuple[str, Progress, TaskID] | None = None

    def __init__(self, console: Console):
        self.console = console

    def counted(self, what: str, done: int, total: int) -> None:
        """So many files have been looked at."""
        if self.counting is None or self.counting[0] != what:
            bar = Progress(
                TextColumn("[bold]{task.description:<12}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("left"),
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

    def started(self, phase: str, step: int, steps: int) -> None:
        self.figures: dict[str, float] = {}
        self.bar = Progress(
            TextColumn("[bold]{task.description:<12}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[cyan]{task.fields[losses]}[/] [green]{task.fields[accuracies]}"),
            console=self.console,
        )
        self.task = self.bar.add_task(phase, total=steps, completed=step, losses="", accuracies="")
        self.bar.start()

    def stepped(self, step: int, figures: Mapping[str, float]) -> None:
        self.figures |= figures
        self.bar.update(self.task, completed=step, losses=_short(self.figures))

    def evaluated(self, step: int, evaluation: Mapping[str, Any]) -> None:
        self.bar.update(self.task, completed=step, accuracies=_accuracies(evaluation))

    def ended(self) -> None:
        self.bar.stop()


class Lines(Silent):
    """A line at the start and at the end of a phase, at an evaluation, and every half minute."""

    def __init__(self, console: Console, every: float = 30.0):
        self.console, self.every = console, every
        self.said = time.monotonic()
        self.counting: tuple[str, float] | None = None

    def counted(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        self.counting = (
            self.counting if self.counting is not None and self.counting[0] == what else (what, now)
        )
        taken = now - self.counting[1]
        if now - self.said > self.every or (done == total and taken > self.every / 3):
            self._say(f"{what}: {done}/{total}, {taken / done * (total - done):.0f} s left")

    def opened(self, run: Path) -> None:
        self._say(f"the run: {run}")

    def started(self, phase: str, step: int, steps: int) -> None:
        self.phase, self.first, self.steps = phase, step, steps
        self.began = self.said = time.monotonic()
        self.figures: dict[str, float] = {}
        self.step, self.accuracies = step, ""
        self._say(f"{phase}: {'starts' if step == 0 else f'goes on at step {step}'}, {steps} steps")

    def stepped(self, step: int, figures: Mapping[str, float]) -> None:
        self.figures |= figures
        self.step = step
        if time.monotonic() - self.said > self.every:
            self._report(step)

    def evaluated(self, step: int, evaluation: Mapping[str, Any]) -> None:
        self.accuracies = _accuracies(evaluation)
        if step == self.steps or time.monotonic() - self.said > self.every / 3:
            self._report(step)

    def ended(self) -> None:
        how = "done" if self.step == self.steps else f"stopped at step {self.step}"
        self._say(f"{self.phase}: {how}, {time.monotonic() - self.began:.0f} s")

    def _report(self, step: int) -> None:
        taken = time.monotonic() - self.began
        left = taken / max(1, step - self.first) * (self.steps - step)
        self._say(
            f"{self.phase}: step {step}/{self.steps}, {left:.0f} s left, "
            f"{_short(self.figures)} {self.accuracies}"
        )

    def _say(self, line: str) -> None:
        self.said = time.monotonic()
        self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


def watcher(quiet: bool = False) -> Silent:
    """The right one for where we are: on stderr, so that stdout stays for results."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal and sys.stdout.isatty() else Lines(console)


def _short(figures: Mapping[str, float]) -> str:
    """Losses, and whether similarities tell pairs apart; the rest is in the log."""
    left_out = ("pseudo_labelled", "omega_gradient", "similarity_mean", "pseudo_labels", "refreshed")
    shown = {name.replace("similarity_", ""): v for name, v in figures.items() if name not in left_out}
    return " ".join(f"{name} {value:.3f}" for name, value in shown.items())


def _accuracies(evaluation: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value:.1f}" for name, value in headline(evaluation).items())

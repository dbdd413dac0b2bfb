"""Messages and progress bars on stderr, so that stdout is left for results."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


def say(line: str) -> None:
    """Prints one line."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def byte_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal; yields a function that takes the number of bytes just done."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stdout.isatty()):
        yield lambda more: None
        return
    columns = (TextColumn(f"[bold]{what:<12}"), BarColumn(24), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.update(task, advance=more)

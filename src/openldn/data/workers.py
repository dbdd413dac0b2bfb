"""Worker processes, one per core. They stay alive until they have been idle for a minute."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from typing import Any, TypeVar

# The process pool of scikit-learn. Unlike the standard library's it works in notebooks and in scripts without
# `if __name__ == "__main__"`.
from loky import get_reusable_executor

T = TypeVar("T")
N = TypeVar("N")
IDLE = 60  # seconds after which an idle worker ends


def count() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_owner(owner: int) -> None:
    """An initializer for worker processes: ends the worker when the process `owner` is killed.

    On Windows a worker ends only after its idle time, as its parent's id never changes there.
    """

    def wait() -> None:
        while os.getppid() == owner:
            time.sleep(1)
        os._exit(1)  # safe at any time: files are written completely or not at all

    threading.Thread(target=wait, daemon=True).start()


def submit(f: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Computes f(*args, **kwargs) in a worker process."""
    # The process id makes a forked child start workers of its own: its parent's do not answer it.
    executor: Any = get_reusable_executor(
        max_workers=count(), timeout=IDLE, initializer=end_with_owner, initargs=(os.getpid(),)
    )
    future: Future[T] = executor.submit(f, *args, **kwargs)
    return future


def map_unordered(
    f: Callable[..., T], tasks: Sequence[tuple[tuple[Any, ...], N]], *, in_process: bool
) -> Iterator[tuple[N, T]]:
    """For each (arguments, note) the note and f(*arguments), in the order in which they finish.

    With `in_process` they are computed one by one in this process.
    """
    if in_process:
        for arguments, note in tasks:
            yield note, f(*arguments)
        return
    notes = {submit(f, *arguments): note for arguments, note in tasks}
    try:
        for future in as_completed(notes):
            yield notes[future], future.result()
    finally:  # the caller may have stopped early
        for future in notes:
            future.cancel()

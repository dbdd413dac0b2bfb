"""Worker processes, one a core, that live until they have nothing to do for a while."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from typing import Any, ParamSpec, TypeVar

# What scikit-learn runs its processes with. Unlike the standard library's it works from notebooks and from
# scripts that do not guard their main part.
from joblib.externals.loky import get_reusable_executor

P = ParamSpec("P")
T = TypeVar("T")
N = TypeVar("N")


def count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_owner() -> None:
    """In a worker process: if its owner is killed, it ends too, instead of working on for nobody."""
    owner = multiprocessing.parent_process()
    if owner is None:
        return

    def wait() -> None:
        owner.join()
        os._exit(1)  # files are written whole or not at all, so it may end at any time

    threading.Thread(target=wait, daemon=True).start()


def submit(f: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Has a worker compute f(*args)."""
    executor: Any = get_reusable_executor(max_workers=count(), timeout=60)
    future: Future[T] = executor.submit(f, *args, **kwargs)
    return future


def outcomes(
    f: Callable[..., T], tasks: Sequence[tuple[tuple[Any, ...], N]], *, here: bool
) -> Iterator[tuple[N, T]]:
    """For each (arguments, note) the note and f(*arguments), as they come; `here` is without any worker."""
    if here:
        for arguments, note in tasks:
            yield note, f(*arguments)
        return
    notes = {submit(f, *arguments): note for arguments, note in tasks}
    try:
        for future in as_completed(notes):
            yield notes[future], future.result()
    finally:  # whoever listened may have had enough
        for future in notes:
            future.cancel()

"""Locks between processes: one file, one holder at a time."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from openldn.errors import OpenLDNWarning, UserError


@contextmanager
def held(file: Path, *, busy: str | None) -> Iterator[None]:
    """Holds the lock `file`, against other processes and other threads.

    If somebody else holds it, this raises an error with the message `busy`, or without one warns and waits.
    The file is left in place: removing it would let two processes hold a lock of the same name. On a file
    system without locks nothing is locked.
    """
    lock = FileLock(file)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if busy is not None:
                raise UserError(busy) from None
            warnings.warn(f"waiting for another process to release {file}", OpenLDNWarning, stacklevel=3)
            lock.acquire()
    except OSError as e:
        if e.filename is not None:  # the file cannot be made or opened
            raise
    try:
        yield
    finally:
        lock.release()

"""What keeps a measurement apart from others: a process of its own, and a folder and cache of its own."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from openldn.data import workers
from openldn.errors import UserError

T = TypeVar("T")


def in_new_process(f: Callable[..., T], *args: Any) -> T:
    """f(*args) in a new process, which returns all memory at its end."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, workers.end_with_owner, (os.getpid(),)) as pool:
        try:
            return pool.submit(f, *args).result()
        except BrokenProcessPool:
            raise UserError("the measuring process was killed, perhaps for lack of memory") from None


def memory(name: str) -> float:
    """MiB of this process: VmRSS, resident; VmHWM, its peak; RssAnon and RssFile, without and in files."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        raise UserError("memory is measured on Linux alone") from None
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, with the cache in it; it is removed at the end."""
    folder = path.with_name(f".{path.name}")  # if this is killed, the harness takes no offence at it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = os.environ.get("OPENLDN_CACHE")
    os.environ["OPENLDN_CACHE"] = str(folder / "cache")
    try:
        yield folder
    finally:
        os.environ.pop("OPENLDN_CACHE")
        if before is not None:
            os.environ["OPENLDN_CACHE"] = before
        shutil.rmtree(folder, ignore_errors=True)

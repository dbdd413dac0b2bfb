"""Worker processes: their results, and their end with the process that owns them."""

import subprocess
import sys
import time

import pytest

from openldn.data import workers


def test_each_result_comes_with_its_note() -> None:
    tasks = [((i,), f"note {i}") for i in range(20)]
    expected = {f"note {i}": bytes(i) for i in range(20)}
    assert dict(workers.map_unordered(bytes, tasks, in_process=False)) == expected
    assert dict(workers.map_unordered(bytes, tasks, in_process=True)) == expected


SPAWN = """if __name__ == "__main__":
    import multiprocessing, os, time
    from concurrent.futures import ProcessPoolExecutor
    from openldn.data import workers
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, workers.end_with_owner, (os.getpid(),)) as pool:
        pool.submit(print, "at work", flush=True).result()
        pool.submit(time.sleep, 600).result()"""
LOKY = """
import time
from openldn.data import workers
workers.submit(print, "at work", flush=True).result()
workers.submit(time.sleep, 600).result()"""


@pytest.mark.parametrize("code", [SPAWN, LOKY], ids=["spawn", "loky"])
def test_a_worker_ends_when_its_owner_is_killed(code: str) -> None:
    """The worker holds the other end of our pipe: once it has ended, reading ends too."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "at work\n"
        owner.kill()
        started = time.monotonic()
        assert owner.stdout.read() == ""
        assert time.monotonic() - started < 30


FORK = """
import os
from openldn.data import workers
def fine():
    return workers.submit(os.getppid).result(timeout=30) == os.getpid()
assert fine()
child = os.fork()
if child == 0:
    os._exit(0 if fine() else 1)
assert os.waitpid(child, 0)[1] == 0
assert fine()
print("fine")"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_starts_workers_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100)
    assert done.stdout == "fine\n", done.stderr

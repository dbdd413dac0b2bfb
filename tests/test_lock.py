"""Locks: one holder at a time, whoever else asks, and none where there are none."""

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from openldn import lock
from openldn.errors import OpenLDNWarning, UserError

HOLD = """
import sys, pathlib
from openldn import lock
with lock.held(pathlib.Path(sys.argv[1]), busy="busy"):
    print("held", flush=True)
    sys.stdin.read()"""


def test_another_process_is_refused_until_the_holder_ends_or_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    for kill in (False, True):
        command = [sys.executable, "-c", HOLD, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(UserError, match="come back later"), lock.held(file, busy="come back later"):
                pass
            holder.kill() if kill else holder.communicate()
        with lock.held(file, busy="come back later"):
            pass


def test_another_thread_waits_with_a_warning(tmp_path: Path) -> None:
    file, order, waiting = tmp_path / "lock", list[str](), threading.Event()

    def wait() -> None:
        waiting.set()
        with pytest.warns(OpenLDNWarning, match="waiting for"), lock.held(file, busy=None):
            order.append("second")

    with lock.held(file, busy=None):
        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait(10)
        thread.join(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_the_same_thread_is_refused_too(tmp_path: Path) -> None:
    with lock.held(tmp_path / "lock", busy="x"):
        with pytest.raises(UserError, match="busy"), lock.held(tmp_path / "lock", busy="busy"):
            pass
        with pytest.raises(UserError, match="busy"), lock.held(tmp_path / "lock", busy="busy"):
            pass  # the refusal has not released it


def test_never_held_twice(tmp_path: Path) -> None:
    """Eight threads, many times each."""
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(30):
            try:
                with lock.held(tmp_path / "lock", busy="busy"):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1
            except UserError:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    entered = False
    with lock.held(tmp_path / "lock", busy="busy"):
        entered = True
    assert entered


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), lock.held(tmp_path / "file" / "lock", busy="busy"):
        pass

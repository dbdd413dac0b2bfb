"""The example of a system outside the package works like any other."""

import io
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from openldn import cli, job, systems
from openldn.files import read_tensors
from openldn.progress import Watcher
from openldn.run import Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "new_system.py"
SHORT = ["--images", "200", "--epochs", "1", "--device", "cpu", "--precision", "float32"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def example(*arguments: str, watcher: Watcher | None = None) -> Done:
    """`python examples/new_system.py ...`, in this process. The system is gone afterwards."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(systems, "SYSTEMS", dict(systems.SYSTEMS))
        patch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
        if watcher is not None:
            patch.setattr(job, "watcher", lambda quiet=False: watcher)
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as e:
            code = int(e.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


class Stop(Watcher):
    """Ends a run in its middle."""

    def stepped(self, progress: float, step: int, values: Mapping[str, float]) -> None:
        if progress >= 0.5:
            sys.exit(7)


@pytest.fixture(scope="module")
def name() -> str:
    """What the example calls its system."""
    [found] = re.findall(r"System\(\s*name=\"([^\"]+)\"", EXAMPLE.read_text())
    return str(found)


@pytest.fixture(scope="module")
def trained(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("example") / "run"
    done = example("train", "digits", "--method", name, *SHORT, "--out", str(out))
    assert done.code == 0, done.err
    return out


def test_it_is_listed_with_its_settings(name: str) -> None:
    """In a process of its own, as one would start it."""

    def printed(*arguments: str) -> str:
        command = [sys.executable, str(EXAMPLE), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert f" {name} " in printed("systems")
    own = re.findall(r"^    (\w+): \w+ = ", EXAMPLE.read_text(), re.MULTILINE)
    assert own  # it has settings of its own
    shown = printed("systems", name)
    for setting in [*own, "lr", "batch"]:
        assert f" {setting} " in shown


def test_it_is_evaluated(trained: Path) -> None:
    done = example("evaluate", str(trained), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["protocols"] == Run.open(trained).metrics()[-1]["protocols"]


def test_interrupted_and_resumed_equals_uninterrupted(name: str, trained: Path, tmp_path: Path) -> None:
    out, choices = tmp_path / "run", ["--method", name, *SHORT, "--save-every", "0"]
    stopped = example("train", "digits", *choices, "--out", str(out), watcher=Stop())
    assert stopped.code == 7, stopped.err
    assert not Run.open(out).finished
    done = example("resume", str(out))
    assert done.code == 0, done.err
    whole, resumed = (read_tensors(path / "model.safetensors")[0] for path in (trained, out))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_it_is_there_only_where_it_is_registered(
    name: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program itself does not know it, and says so in one sentence."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["evaluate", str(trained)])
    assert stopped.value.code == 2
    assert re.fullmatch(rf"error: there is no system '{name}'; .*\n", capsys.readouterr().err)

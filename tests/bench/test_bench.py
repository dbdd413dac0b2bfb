"""`openldn bench`: made, gone on with, killed, read on a narrow terminal, asked for wrongly."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from openldn import bench, cli, inference
from openldn.bench import kept, running, shown, tables
from openldn.bench.cells import Result
from openldn.bench.training import curve
from openldn.maths import metrics
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")

BENCH = ["bench", "systems", "--data", "digits", "--images", "300", "--seeds", "1", "--per-image", "5"]


def cells(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The figures in `results.json`, by system and seed."""
    found = json.loads((folder / "results.json").read_text())["cells"]
    return {(cell["row"][-1], cell["seed"]): cell["figures"] for cell in found}


def test_a_table_is_made_goes_on_and_refuses_other_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "systems", "--data", "digits", "--images", "300", "--jobs", "1"]
    arguments += ["--only", "k-means", "supervised", "--out", str(tmp_path / "runs")]
    cli.main([*arguments, "--seeds", "1", "--per-image", "20"])
    run = tmp_path / "runs" / "digits_supervised_0"
    first = (run / "model.safetensors").stat().st_mtime_ns
    cli.main([*arguments, "--seeds", "2", "--per-image", "20"])
    assert (run / "model.safetensors").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "4 runs, 2 of them finished; 1 at a time" in said
    assert "4 of 4: digits, supervised, seed 1" in said
    runs = [Run.open(tmp_path / "runs" / f"digits_supervised_{seed}").metrics()[-1] for seed in range(2)]
    scores = [run["protocols"]["openldn"]["all"] for run in runs]
    figures = cells(tmp_path / "runs")
    assert [figures["supervised", seed]["all"] for seed in range(2)] == [round(s, 2) for s in scores]
    [row] = [
        line for line in (tmp_path / "runs" / "results.md").read_text().splitlines() if "supervised" in line
    ]
    assert f"| {np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} |" in row
    assert 5_000 < figures["supervised", 0]["passes"] <= 6_000
    assert figures["k-means", 0]["passes"] == 0
    assert (tmp_path / "runs" / "picture.svg").read_text().startswith("<?xml")
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--seeds", "1", "--per-image", "10"])
    assert "with other choices (budget was 6000.0, is 3000.0)" in capsys.readouterr().err


def test_a_run_of_another_scale_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its bench was stopped before it had a result."""
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "--out", str(tmp_path)]
    cli.main(arguments)
    found = json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**found, "cells": []}))
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--per-image", "7"])
    assert "is a run with other choices; give another --out" in capsys.readouterr().err
    cli.main(arguments)
    assert cells(tmp_path)["supervised", 0] == found["cells"][0]["figures"]


def test_results_outlive_their_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only `results.json` is needed: it can be moved to another machine, and the bench goes on."""
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "k-means"]
    cli.main([*arguments, "--out", str(tmp_path / "here")])
    capsys.readouterr()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "results.json").rename(tmp_path / "there" / "results.json")
    cli.main([*arguments, "--out", str(tmp_path / "there")])
    assert "2 runs, 2 of them finished" in capsys.readouterr().out
    tables = [(tmp_path / at / "results.md").read_text() for at in ("here", "there")]
    assert tables[0] == tables[1]
    assert not [path for path in (tmp_path / "there").iterdir() if path.is_dir()]


def test_the_oracle_is_asked_for_and_named(tmp_path: Path) -> None:
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "k-means"]
    cli.main([*arguments, "--out", str(tmp_path / "with"), "--novel-share", "oracle"])
    run = Run.open(tmp_path / "with" / "digits_supervised--oracle-_0")
    assert run.config["settings"]["supervised"]["novel_share"] == pytest.approx(2 / 3, abs=0.02)
    assert {name for name, _ in cells(tmp_path / "with")} == {"supervised (oracle)", "k-means"}
    cli.main([*arguments, "--out", str(tmp_path / "without")])
    assert {name for name, _ in cells(tmp_path / "without")} == {"supervised", "k-means"}
    run = Run.open(tmp_path / "without" / "digits_supervised_0")
    assert run.config["settings"]["supervised"]["novel_share"] is None


def test_a_run_that_failed_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has what there is, and says what is not there; so does the exit code."""
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "k-means", "--out", str(tmp_path)]
    cli.main(arguments)
    found = json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**found, "cells": []}))
    (tmp_path / "digits_k-means_0" / "model.safetensors").write_bytes(b"damaged")
    capsys.readouterr()
    with pytest.raises(SystemExit) as e:
        cli.main([*arguments, "--seeds", "2"])
    said = capsys.readouterr()
    assert e.value.code == 2
    assert "k-means (1 of 2 seeds)" in said.out
    assert "1 runs failed, the first" in said.err
    assert "digits, k-means, seed 0" in said.err


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_tables_fit_the_terminal(width: int) -> None:
    figures = {"known": 99.31, "novel": 94.72, "all": 97.03, "anchored": 97.0}
    figures |= {"none_rejected": 88.8, "passes": 573_000, "seconds": 14.0}
    results = [
        Result(("cifar10", name), seed, {**figures, "ordered": name != "dtc"}, {}, {})
        for name in tables.all_systems()
        for seed in range(2)
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown.fitted(bench.find("main"), results, "title", width))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    said = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert sorted(said) == sorted(tables.all_systems())  # a line each, names in full
    assert all("99.3 ± 0.0" in line for line in lines if line.startswith("│"))
    assert any("99.3 ± 0.0 *" in line for line in lines)
    assert ("paper" in text) == (width == 160)
    whole = shown.markdown(bench.find("main"), results)
    assert "95.7 / 95.1 / 95.4" in whole  # the paper's, of the row and the data set
    assert len(whole.splitlines()) == 2 + len(tables.all_systems())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--images", "0"], "images 0 is too small"),
        (["--data", "/tmp"], "there is no data set '/tmp' here; choose one of"),
        (["--seeds", "0"], "--seeds 0 leaves nothing to do"),
        (["--jobs", "0"], "--jobs 0 leaves nothing to do"),
        (["--per-image", "0.5"], "--per-image 0.5 leaves nothing to do"),
        (["--epochs", "5"], "--per-image and --epochs both say how long"),
        (["--only", "x"], "there is no system 'x'"),
        (["--out", "FILE"], "is a file"),
        (["--out", "FULL"], "holds no runs"),
        (["--out", "OTHER"], "does not hold results of `openldn bench systems`"),
    ],
)
def test_bench_says_what_is_wrong(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FILE").touch()
    for name, file in (("FULL", "systems.csv"), ("OTHER", "results.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}" if name == "OTHER" else "mine")
    out = [str(tmp_path / name) if name in ("FILE", "FULL", "OTHER") else name for name in arguments]
    with pytest.raises(SystemExit) as e:
        cli.main([*BENCH, "--out", str(tmp_path / "runs"), *out])
    assert e.value.code == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "FULL" / "systems.csv").read_text() == "mine"


def test_a_run_that_is_killed_is_said_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*BENCH, "--jobs", "2", "--only", "k-means", "--out", str(tmp_path / "runs")]
    (tmp_path / "runs" / ".digits_k-means_0.half-made").mkdir(parents=True)
    with monkeypatch.context() as m:
        m.setattr(running, "measured", die)
        with pytest.raises(SystemExit) as e:
            cli.main(arguments)
    assert e.value.code == 2
    assert "a run was killed" in capsys.readouterr().err
    cli.main(arguments)
    assert "1 of 1: digits, k-means" in capsys.readouterr().out
    cli.main([*BENCH, "--jobs", "1", "--only", "k-means", "--out", str(tmp_path / "alone")])
    # The same in a process of its own.
    assert strip(cells(tmp_path / "alone")) == strip(cells(tmp_path / "runs"))


@pytest.mark.slow
def test_a_bench_that_is_killed_again_and_again_ends_with_the_same_table(tmp_path: Path) -> None:
    """With its workers, at any point: in the middle of runs, between them, while results are written."""
    arguments = [
        "bench",
        "systems",
        "--data",
        "digits",
        "--images",
        "400",
        "--seeds",
        "2",
        "--per-image",
        "60",
    ]
    arguments += ["--only", "openldn-mixmatch", "supervised", "orca", "--jobs", "2"]
    environment = {**os.environ, "OPENLDN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def started(out: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "openldn", *arguments, "--out", str(tmp_path / out)]
        return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)

    since = time.monotonic()
    assert started("whole").wait() == 0
    taken, random, kills = time.monotonic() - since, np.random.default_rng(0), 0
    shutil.rmtree(tmp_path / "cache")  # the other bench trains its first stages itself
    for _ in range(5):
        bench = started("killed")
        try:
            bench.wait(timeout=taken * float(random.uniform(0.2, 0.8)))
        except subprocess.TimeoutExpired:
            os.killpg(bench.pid, signal.SIGKILL)
            bench.wait()
            kills += 1
    assert kills > 1
    assert started("killed").wait() == 0
    assert strip(cells(tmp_path / "killed")) == strip(cells(tmp_path / "whole"))


def strip(found: dict[tuple[str, int], dict[str, Any]]) -> Any:
    return {
        cell: [figures[key] for key in ("known", "novel", "all", "nmi")] for cell, figures in found.items()
    }


def die(*_: object) -> None:
    """In a worker, as if the system had killed it."""
    os._exit(1)


def test_figures_are_of_the_last_stage_and_cost_is_of_all(tmp_path: Path) -> None:
    cli.main([*BENCH, "--jobs", "1", "--only", "openldn-uda", "--out", str(tmp_path), "--per-image", "20"])
    run, figures = Run.open(tmp_path / "digits_openldn-uda_0"), cells(tmp_path)["openldn-uda", 0]
    final = metrics.headline(inference.evaluate(run))
    assert {key: figures[key] for key in final} == {key: round(value, 2) for key, value in final.items()}
    assert 5_400 < figures["passes"] < 6_600  # of two stages
    assert 0 < figures["seconds"] < 60
    [end] = figures["curve"]
    assert end["stage"] == "uda"
    assert end["passes"] == figures["passes"]


def test_the_budget_counts_the_images_that_are_used(tmp_path: Path) -> None:
    cli.main([*BENCH, "--jobs", "1", "--only", "k-means", "--out", str(tmp_path)])
    assert Run.open(tmp_path / "digits_k-means_0").options.budget == 5 * 300


def test_a_curve_adds_up_stages() -> None:
    def line(phase: str, step: int, score: float | None) -> dict[str, Any]:
        own = {"phase": phase, "step": step, "seconds": 2.0 * step, "passes": 10.0 * step}
        scores = {"known": score, "novel": score, "all": score}
        return own if score is None else {**own, "protocols": {"openldn": scores}}

    lines = [
        line("a", 1, None),
        line("a", 2, 30.0),
        line("a", 4, 40.0),
        line("b", 3, 50.0),
        line("final", 3, 50.0),
    ]
    found = curve(lines)
    assert [(p["stage"], p["seconds"], p["passes"], p["all"]) for p in found] == [
        ("a", 4.0, 20.0, 30.0),
        ("a", 8.0, 40.0, 40.0),
        ("b", 14.0, 70.0, 50.0),
    ]


def test_a_fingerprint_follows_imports_and_ignores_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "a.py": "from openldn.b import f\nx = 1  # one\n",
        "b.py": '"""Doc."""\ndef f():\n    """Doc."""\n    return 2\n',
        "c.py": "y = 1\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kept, "ROOT", tmp_path)

    def made() -> str:
        kept._tree.cache_clear()
        kept.fingerprint.cache_clear()
        return kept.fingerprint(("openldn.a",))

    try:
        assert kept.closure(("openldn.a",)) == {"openldn.a", "openldn.b"}
        first = made()
        (tmp_path / "b.py").write_text('def f():\n    """Other words."""\n    return 2  # two\n')
        (tmp_path / "c.py").write_text("y = 2\n")
        assert made() == first
        (tmp_path / "b.py").write_text("def f():\n    return 3\n")
        assert made() != first
    finally:
        kept._tree.cache_clear()
        kept.fingerprint.cache_clear()


def test_a_systems_code_is_its_own_and_the_frame() -> None:
    """A change of another system does not make figures old."""
    trained = tables.Trained.at(tables.Scale(), "digits", 0, method="orca")
    modules = kept.closure(trained.modules)
    assert {"openldn.methods.orca", "openldn.methods.simclr", "openldn.training.loop"} <= modules
    assert {"openldn.data.views", "openldn.maths.losses", "openldn.nets.heads"} <= modules
    assert not {"openldn.methods.uno", "openldn.methods.ds3l", "openldn.cli"} & modules

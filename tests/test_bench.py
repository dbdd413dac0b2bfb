"""The table of all systems: made, gone on with, read on a narrow terminal, asked for wrongly."""

import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from openldn import bench, cli, inference
from openldn.bench import Result, default_systems, fitted, rows
from openldn.maths import metrics
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")


def test_bench_makes_a_table_goes_on_and_refuses_other_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "systems", "--data", "digits", "--images", "300", "--jobs", "1"]
    arguments += ["--only", "k-means", "supervised", "--out", str(tmp_path / "runs")]
    cli.main([*arguments, "--seeds", "1", "--per-image", "20"])
    first = (tmp_path / "runs" / "supervised-0" / "model.safetensors").stat().st_mtime_ns
    cli.main([*arguments, "--seeds", "2", "--per-image", "20"])
    assert (tmp_path / "runs" / "supervised-0" / "model.safetensors").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "4 of 4: supervised, seed 1" in said
    with (tmp_path / "runs" / "systems.csv").open(newline="") as f:
        table = {row["system"]: row for row in csv.DictReader(f)}
    runs = [Run.open(tmp_path / "runs" / f"supervised-{seed}").metrics()[-1] for seed in range(2)]
    scores = [run["protocols"]["openldn"]["all"] for run in runs]
    assert table["supervised"]["all"] == f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}"
    assert 5_000 < 1e3 * float(table["supervised"]["thousand passes"]) <= 6_000
    assert table["k-means"]["thousand passes"] == "0"
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--seeds", "1", "--per-image", "10"])
    assert "other choices" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--seeds", "0"])


BENCH = ["bench", "systems", "--data", "digits", "--images", "300", "--seeds", "1", "--per-image", "5"]


def test_the_oracle_is_asked_for_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "k-means"]
    cli.main([*arguments, "--out", str(tmp_path / "with"), "--novel-share", "oracle"])
    said = capsys.readouterr().out
    assert "(oracle)" in said
    recorded = Run.open(tmp_path / "with" / "supervised-0").config["settings"]["supervised"]
    assert recorded["novel_share"] == pytest.approx(2 / 3, abs=0.02)
    with (tmp_path / "with" / "systems.csv").open(newline="") as f:
        assert {row["system"] for row in csv.DictReader(f)} == {"supervised (oracle)", "k-means"}
    cli.main([*arguments, "--out", str(tmp_path / "without")])
    assert "(oracle)" not in capsys.readouterr().out
    recorded = Run.open(tmp_path / "without" / "supervised-0").config["settings"]["supervised"]
    assert recorded["novel_share"] is None


def test_a_run_that_failed_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has what there is, and says what is not there; so does the exit code."""
    arguments = [*BENCH, "--jobs", "1", "--only", "supervised", "k-means", "--out", str(tmp_path)]
    cli.main(arguments)
    (tmp_path / "k-means-0" / "model.safetensors").write_bytes(b"damaged")
    capsys.readouterr()
    with pytest.raises(SystemExit) as e:
        cli.main([*arguments, "--seeds", "2"])
    said = capsys.readouterr()
    assert e.value.code == 2
    assert "k-means (1 of 2 seeds)" in said.out
    assert "1 runs failed, the first" in said.err
    assert "k-means, seed 0" in said.err


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_tables_fit_the_terminal(width: int) -> None:
    ordered, clusters = (
        Result({"known": 99.31, "novel": 94.72, "all": 97.03}, named, 97.0, 88.8, 573_000, 14.0)
        for named in (True, False)
    )
    found = {name: [ordered, ordered] for name in default_systems()} | {"dtc": [clusters, clusters]}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(fitted(rows(found, 2, oracle=False), "title", width))
    shown = console.export_text()
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    said = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert sorted(said) == sorted(default_systems())  # a line each, names in full
    assert all("99.3 ± 0.0" in line for line in lines if line.startswith("│"))
    assert any("99.3 ± 0.0 *" in line for line in lines)
    assert ("paper" in shown) == (width == 160)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--images", "0"], "images 0 is too small"),
        (["--data", "/tmp"], "there is no data set '/tmp'; choose one of"),
        (["--seeds", "0"], "--seeds 0 leaves nothing to do"),
        (["--jobs", "0"], "--jobs 0 leaves nothing to do"),
        (["--per-image", "0.5"], "--per-image 0.5 leaves nothing to do"),
        (["--only", "x"], "there is no system 'x'"),
        (["--out", "FILE"], "is a file"),
        (["--out", "FULL"], "holds no runs"),
    ],
)
def test_bench_says_what_is_wrong(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "systems.csv").write_text("mine")
    out = [str(tmp_path / name) if name in ("FILE", "FULL") else name for name in arguments]
    with pytest.raises(SystemExit) as e:
        cli.main([*BENCH, "--out", str(tmp_path / "runs"), *out])
    assert e.value.code == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "FULL" / "systems.csv").read_text() == "mine"


def test_a_run_that_is_killed_is_said_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*BENCH, "--jobs", "2", "--only", "k-means", "--out", str(tmp_path / "runs")]
    (tmp_path / "runs" / ".k-means-0.half-made").mkdir(parents=True)
    with monkeypatch.context() as m:
        m.setattr(bench, "_run", die)
        with pytest.raises(SystemExit) as e:
            cli.main(arguments)
    assert e.value.code == 2
    assert "a run was killed" in capsys.readouterr().err
    cli.main(arguments)
    assert "1 of 1: k-means" in capsys.readouterr().out
    cli.main([*BENCH, "--jobs", "1", "--only", "k-means", "--out", str(tmp_path / "alone")])
    one, two = (Run.open(tmp_path / at / "k-means-0").metrics()[-1] for at in ("alone", "runs"))
    assert one["protocols"] == two["protocols"]  # the same in a process of its own


def die(*_: object) -> None:
    """In a worker, as if the system had killed it."""
    os._exit(1)


def test_the_result_is_that_of_the_last_stage(tmp_path: Path) -> None:
    """And passes and seconds are those of all stages."""
    arguments = [*BENCH, "--jobs", "1", "--only", "openldn-uda", "--out", str(tmp_path)]
    cli.main([*arguments, "--per-image", "20"])
    run = Run.open(tmp_path / "openldn-uda-0")
    found = bench.result_of(run)
    assert found.scores == metrics.headline(inference.evaluate(run))
    assert 5_400 < found.passes < 6_600  # of two stages
    assert 0 < found.seconds < 60


def test_the_budget_counts_the_images_that_are_used(tmp_path: Path) -> None:
    cli.main([*BENCH, "--jobs", "1", "--only", "k-means", "--out", str(tmp_path)])
    assert Run.open(tmp_path / "k-means-0").options.budget == 5 * 300

"""The paper's tables and figures: their rows, at a small scale from end to end, and their plans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openldn import bench, cli
from openldn.bench import paper, plan, tables
from openldn.bench.cells import Scale
from openldn.bench.training import Trained
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")

SMALL = ["--data", "digits", "--images", "200", "--seeds", "1", "--jobs", "1"]


def made(name: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    cli.main(["bench", name, *SMALL, *arguments, "--out", str(out)])
    assert (out / "picture.svg").stat().st_size > 5_000
    found: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["cells"]
    return found


@pytest.mark.usefixtures("own_cache")
def test_the_ablation_adds_components_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = made("ablation", tmp_path, "--epochs", "1")
    assert [cell["row"][0] for cell in cells] == [*tables.ABLATION_ROWS]
    found = {cell["row"][0]: cell for cell in cells}
    assert "73.5 / 46.8 / 60.1" in capsys.readouterr().out
    names = ("no-entropy-term", "no-pair-loss", "stage-1", "+-closed-world", "+-iterative-pseudo-labels")
    settings = {name: Run.open(tmp_path / f"{name}_0").config["settings"] for name in names}
    assert not settings["no-entropy-term"]["discover"]["entropy"]
    assert not settings["no-pair-loss"]["discover"]["pair"]
    assert settings["+-closed-world"]["mixmatch"]["refreshes"] == 0
    assert settings["+-iterative-pseudo-labels"]["mixmatch"]["refreshes"] > 0
    lengths = {(name, stage): own["epochs"] for name, of in settings.items() for stage, own in of.items()}
    assert {*lengths.values()} == {1.0}  # of each stage
    # The same stage 1, and it is not trained again.
    ends = [found[name]["figures"]["curve"][0] for name in ("stage 1", "+ closed world")]
    assert ends[0] == ends[1]
    [line, *_] = Run.open(tmp_path / "+-closed-world_0").metrics()
    assert line["cached"]


@pytest.mark.usefixtures("own_cache")
def test_the_map_shows_novel_images_before_and_after(tmp_path: Path) -> None:
    [cell] = made("tsne", tmp_path, "--epochs", "1")
    figures = cell["figures"]
    n = len(figures["classes"])
    assert {*figures["classes"]} <= {5, 6, 7, 8, 9}
    for stage in ("discover", "mixmatch"):
        assert np.shape(figures[f"map {stage}"]) == (n, 2)
        assert -1 <= figures[f"silhouette {stage}"] <= 1
    probabilities = Run.open(tmp_path / "openldn-mixmatch_0").probabilities()
    assert [*probabilities] == ["1-discover", "2-mixmatch"]
    for rows, p in probabilities.values():
        assert len(rows) == len(p)
        assert p.sum(dim=1).numpy() == pytest.approx(1, abs=2e-3)


@pytest.mark.usefixtures("own_cache")
def test_wrong_counts_and_costs(tmp_path: Path) -> None:
    cells = made("unknown-count", tmp_path / "count", "--epochs", "0.5")
    given = [cell["record"]["novel"] for cell in cells]
    assert given == [2, 4, 4, 5, 6, 6, 8]  # of 5
    assert [cell["row"][0] for cell in cells] == [f"{off:+d} %" for off in tables.OFF_BY]
    cells = made("cost", tmp_path / "cost", "--per-image", "80")
    for cell in cells:
        curve = cell["figures"]["curve"]
        assert len(curve) > 8
        assert [point["passes"] for point in curve] == sorted(point["passes"] for point in curve)
    budgets = {cell["record"]["budget"] for cell in cells}
    assert budgets == {80 * 200}


def test_all_rows_of_the_paper_have_a_place() -> None:
    """Each figure that is stored belongs to a row of its bench."""
    for name, data_sets in paper._table().items():
        needs = bench.find(name).needs
        for data, rows in data_sets.items():
            assert data in needs
            for row, scores in rows.items():
                assert len(scores) == 3
                if name in ("ablation", "similarity"):
                    of = {"ablation": tables.ABLATION_ROWS, "similarity": tables.SIMILARITY_ROWS}[name]
                    assert row in of
                else:
                    assert row in tables.all_systems()


def test_with_the_papers_preset_each_system_has_its_own_length_and_images() -> None:
    made = bench.find("systems").cells(Scale(data=("digits",), preset="paper", seeds=1))
    names = {cell.row[1] for cell in made}
    assert {"orca", "uno", "openldn-uda", "fixmatch"} <= names
    assert not {"gcd", "pu-self-training", "simgcd+uda"} & names
    for cell in made:
        assert isinstance(cell.measure, Trained)
        options = cell.measure.options
        assert (options.preset, options.budget, options.epochs, options.images) == ("paper", None, None, None)


def test_a_plan_is_what_a_run_takes(tmp_path: Path) -> None:
    """Steps and passes; a stage that refreshes takes a little more."""
    for method, choices in {
        "openldn": {"epochs": 3},
        "orca": {"epochs": 4},
        "supervised": {"budget": 4_000},
        "openldn-uda": {"budget": 8_000},
    }.items():
        trained = Trained.at(Scale(images=200), "digits", 0, method=method, **choices)
        planned, run = plan.planned(trained), trained.run(tmp_path / method, quiet=True)
        ends = {line["phase"]: line for line in run.metrics() if line["phase"] != "final"}
        steps, passes = (sum(line[key] for line in ends.values()) for key in ("step", "passes"))
        assert planned.steps == pytest.approx(steps, rel=0.1)
        assert planned.passes == pytest.approx(passes, rel=0.1)
        assert planned.images == 200
        assert planned.seconds > 0


def test_a_plan_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench", "ablation", *SMALL, "--epochs", "2", "--plan", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert said.count("probing") == len(tables.ABLATION_ROWS)
    assert "6 runs, 0 of them finished" in said
    assert not (tmp_path / "out").exists()


def test_the_list_says_what_is_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["bench", "list", "--data-dir", str(tmp_path)])
    said = capsys.readouterr().out
    for name, known in bench.BENCHES.items():
        assert name in said
        assert known.paper in said
    assert "cifar100 *" in said
    assert "digits *" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no bench 'nothing'; choose one of main"),
        (["main", "--data", "mnist"], "choose one of cifar10"),
        (["ablation", "--only", "x"], "there is no row 'x'; choose from: no entropy term"),
        (["main", "--data-dir", "EMPTY"], "none of cifar10, cifar100"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path) if part == "EMPTY" else part for part in arguments]
    with pytest.raises(SystemExit) as e:
        cli.main(["bench", *arguments, "--out", str(tmp_path / "out")])
    assert e.value.code == 2
    assert said in capsys.readouterr().err

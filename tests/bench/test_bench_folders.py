"""`bench folders`, `photographs` and `records` on a few digits, and the page that is made of results."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from openldn import bench
from openldn.bench import document, folders, kept, photographs, records, running, shown
from openldn.bench.cells import Cell, Result, Scale

pytestmark = [
    pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning"),
    pytest.mark.usefixtures("own_cache"),
]


def test_a_folder_is_what_a_user_has(tmp_path: Path) -> None:
    folders.write(folders.Folder("digits", 7, 9), 3, None, tmp_path)
    photos = tmp_path / "photos"
    of_class = {at.name: len([*at.iterdir()]) for at in photos.iterdir()}
    assert sorted(of_class.values()) == [5, 5, 5, 7 * 9 - 15]
    assert of_class["unlabelled"] == 48
    with (tmp_path / "truth.csv").open(newline="") as f:
        truth = {row["image"]: row["label"] for row in csv.DictReader(f)}
    assert {*truth} == {f"unlabelled/{file.name}" for file in (photos / "unlabelled").iterdir()}
    assert len({*truth.values()}) == 7
    known = {*of_class} - {"unlabelled"}
    assert sum(label in known for label in truth.values()) == 3 * 4


def test_folders_compare_the_choice_with_what_it_could_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(folders.FOLDERS, "digits", folders.Folder("digits", 4, 12))
    trained = list[Any]()

    class Done:
        def __init__(self, out: Path):
            self.path, self.config = out, {"weights": "frozen", "rehearsals": {"frozen": 1.0}}

    def train(data: Path, options: Any, *, out: Path, quiet: bool) -> Done:
        trained.append(options.weights)
        out.mkdir(parents=True)
        (out / "classes.json").write_text('{"known": [1, 2], "novel": [3, 4, 5]}')
        return Done(out)

    scores = {"default": 70.0, "fine-tuned": 75.0, "scratch": 20.0}
    monkeypatch.setattr(folders.pipeline, "train", train)
    monkeypatch.setattr(
        folders.inference,
        "evaluate",
        lambda run, truth: {
            "protocols": {"openldn": dict.fromkeys(("known", "novel", "all"), scores[run.path.name])}
        },
    )
    cells = folders.cells(Scale(only=("digits",), seeds=1))
    [result] = running.run(folders.BENCH, cells, tmp_path / "out").results
    assert trained == [None, "fine-tuned", "scratch"]  # what the default took is not trained again
    assert (result.figures["frozen"], result.figures["behind"], result.figures["n_novel"]) == (70.0, 5.0, 3)
    table = shown.markdown(folders.BENCH, [result])
    assert "| digits | 70.0 | 75.0 | 20.0 | 70.0 | frozen | 5.0 | 3 of 2 |" in table
    assert "behind the best way with hindsight: 5.0 on average" in folders.summary([result])


def test_photographs_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "DATA", ("digits",))
    systems = ("whitened-clustering", "k-means", "pim")
    cells = photographs.cells(Scale(data=("digits",), only=systems, seeds=1, images=300))
    results = running.run(photographs.BENCH, cells, tmp_path).results
    assert {r.row[1] for r in results} == {*systems}
    for result in results:
        assert result.figures["all"] > 40
        assert result.figures["test all"] > 40
    assert photographs.summary(results).startswith("mean of all on unlabelled images: ")


def test_records_have_the_end_of_each_stage(tmp_path: Path) -> None:
    scale = Scale(data=("digits",), only=("openldn-mixmatch",), seeds=1, epochs=1, images=120)
    results = running.run(records.BENCH, records.cells(scale), tmp_path).results
    [row] = shown.grid(records.BENCH, results)
    figures = results[0].figures
    first = records.ends_of(figures["curve"])["discover"]
    assert row[2] == f"{first['known']:.1f} / {first['novel']:.1f} / {first['all']:.1f}"
    assert [float(cell) for cell in row[3:6]] == pytest.approx(
        [figures[key] for key in ("known", "novel", "all")], abs=0.06
    )


def test_the_upper_bound_has_all_labels(tmp_path: Path) -> None:
    scale = Scale(data=("digits",), only=(records.UPPER_BOUND,), seeds=1, images=600, per_image=50)
    [result] = running.run(records.BENCH, records.cells(scale), tmp_path).results
    assert result.figures["all"] > 85  # of all ten classes
    assert 0.95 < result.figures["passes"] / (50 * 600) < 1.05


# ---------------------------------------------------------------------------------------------- a page


def test_the_page_is_made_of_results_and_marks_older_figures(tmp_path: Path) -> None:
    made = bench.find("ablation")
    folder = tmp_path / "results" / "ablation-digits"
    cells = [
        Cell((name,), seed, Fake(float(seed))) for name in ("stage 1", "no pair loss") for seed in (1, 2)
    ]
    results = running.run(made, cells, folder, 1, Scale(data=("digits",), images=50, epochs=2)).results
    (folder / "notes.md").write_text("- What it says.\n")
    (tmp_path / "results" / "head.md").write_text("# Results\n")
    page = document.text(tmp_path / "results")
    assert page.startswith(
        "# Results\n\n## `ablation`, digits: components added one by one (Table 3 of the paper)"
    )
    assert (
        "`openldn bench ablation --data digits --images 50 --epochs 2`: at most 50 training images, 2 epochs"
        in page
    )
    assert "| stage 1 | 1.5 ± 0.7 |" in page
    assert "66.2 / 40.3 / 53.3" in page
    assert "- What it says." in page
    assert document.OLDER not in page
    stored = json.loads((folder / "results.json").read_text())
    assert stored["cells"][0]["made"]["commit"] == results[0].made["commit"]
    stored["cells"][0]["made"]["code"] = "of old"
    (folder / "results.json").write_text(json.dumps(stored))
    page = document.text(tmp_path / "results")
    assert f"| stage 1 {document.OLDER} |" in page
    assert "| no pair loss |" in page
    assert page.count(f"{document.OLDER} made by older code") == 1


class Fake:
    """A measurement without a run."""

    modules = ("openldn.maths.losses",)

    def __init__(self, value: float):
        self.value, self.record = value, {"data": "digits"}

    def __call__(self, path: Path, quiet: bool) -> dict[str, Any]:
        return dict.fromkeys(("known", "novel", "all"), self.value)

    def where(self, path: Path) -> str:
        return ""


def test_the_projects_own_page_is_up_to_date() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert document.text(docs / "results") == (docs / "results.md").read_text("utf-8")


def test_results_know_their_commit_and_machine() -> None:
    made = kept.origin()
    assert {*made} == {"date", "commit", "openldn", "torch", "machine"}
    assert "cores" in made["machine"]
    assert isinstance(Result(("a",), 0, {}, {}, made).made["commit"], str)

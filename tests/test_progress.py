"""What a person sees while a run is under way, on terminals of any width and in a log."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from openldn import job, pipeline, progress, systems
from openldn.maths import metrics
from openldn.progress import Bar, Lines, Watcher, watcher

STAGES = sorted({stage.name for system in systems.SYSTEMS.values() for stage in system.stages}, key=len)
LONGEST = STAGES[-3:] + [stage.name for stage in systems.find("mean-teacher+mean-teacher").stages[-1:]]
SHORT_LOSSES = {"ce": 0.5, "pair": 0.25}
LONG_LOSSES = {f"a_loss_with_a_long_name_{i}": 1234.5678 for i in range(8)}
EVALUATION = metrics.evaluate([0, 1, 2, 3], [0, 1, 2, 3], n_known=2, n_classes=4, n_ids=4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, for the test to set."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def shown(
    width: int, stage: str, losses: Mapping[str, float], clock: list[float], evaluated: bool
) -> list[str]:
    """The lines of a bar at 40 %, step 123,456, when an hour has passed."""
    console = Console(force_terminal=True, width=width, file=io.StringIO(), color_system=None)
    bar = Bar(console)
    bar.started(stage, 0.0, 0)
    clock[0] += 3600
    bar.stepped(0.4, 123_456, losses)
    if evaluated:
        bar.evaluated(EVALUATION)
    assert bar.training is not None
    made = Console(force_terminal=True, width=width, file=io.StringIO(), color_system=None)
    with made.capture() as capture:
        made.print(bar.training[0].get_renderable())
    bar.ended(True)
    return capture.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("stage", LONGEST)
@pytest.mark.parametrize("losses", [SHORT_LOSSES, LONG_LOSSES], ids=["short", "long"])
def test_the_bar_shows_what_matters_at_any_width(
    width: int, stage: str, losses: dict[str, float], clock: list[float]
) -> None:
    """Stage, bar, percent, step and time left are there in full, on one line; losses are cut first."""
    [line] = shown(width, stage, losses, clock, evaluated=False)
    assert len(line) <= width
    assert re.search(rf"{stage} .*━.* 40% .*step 123456 .*1:30:00 left", line), line
    if losses is SHORT_LOSSES and width >= 80:
        assert "ce 0.50 pair 0.25" in line
    if losses is LONG_LOSSES:
        assert "…" in line


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("stage", LONGEST)
def test_accuracies_are_cut_before_the_bar(width: int, stage: str, clock: list[float]) -> None:
    [line] = shown(width, stage, LONG_LOSSES, clock, evaluated=True)
    accuracies = r"100\.0/100\.0/100\.0" if width >= 80 else ""
    assert re.search(rf"{stage} .*━.* 40% .*step 123456 .*1:30:00 left *{accuracies}", line), line
    assert len(line) <= width


def test_diagnostics_are_logged_but_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set[str]()

    class Recorder(Watcher):
        def stepped(self, progress: float, step: int, losses: Mapping[str, float]) -> None:
            names.update(losses)

    monkeypatch.setattr(job, "watcher", lambda quiet: Recorder())
    run = pipeline.train("digits", method="openldn", epochs=0.2, out=tmp_path / "run", device="cpu")
    assert names == {"ce", "pseudo", "pair", "entropy"}
    assert names | {"similarity_auc", "omega_gradient"} <= run.metrics()[0].keys()


def test_an_evaluation_after_a_stage_is_a_line(clock: list[float]) -> None:
    out = io.StringIO()
    bar = Bar(Console(force_terminal=True, width=80, file=out, color_system=None))
    bar.evaluated(EVALUATION)
    assert "known 100.0 %, novel 100.0 %, all 100.0 %" in out.getvalue()


def lines(**choices: Any) -> tuple[Lines, io.StringIO]:
    out = io.StringIO()
    return Lines(Console(file=out, width=40), **choices), out


def test_a_log_has_a_line_every_half_minute(clock: list[float]) -> None:
    """Whole lines, however long they are, without control sequences."""
    watch, out = lines()
    watch.started("discover", 0.0, 0)
    for i in range(1, 101):
        clock[0] += 1
        watch.stepped(i / 200, i, {"a_long_name_of_a_loss": 0.5, "another_long_name_of_a_loss": 0.25})
    watch.ended(False)
    said = out.getvalue().splitlines()
    assert said[0] == "discover: starts"
    assert said[1].startswith("discover: 16%, step 31, 2:49 left, a_long_name_of_a_loss 0.50 another_")
    assert [line.split(",")[1] for line in said[1:-1]] == [" step 31", " step 62", " step 93"]
    assert said[-1] == "discover: stopped at step 100, 1:40"
    assert "\x1b" not in out.getvalue()


def test_a_log_says_where_a_run_goes_on(clock: list[float]) -> None:
    watch, out = lines()
    watch.started("uda", 0.5, 70)
    clock[0] += 31
    watch.stepped(0.75, 105, {"labelled": 0.5})
    watch.evaluated(EVALUATION)
    watch.ended(True)
    assert out.getvalue().splitlines() == [
        "uda: goes on at step 70",
        "uda: 75%, step 105, 31 s left, labelled 0.50",  # from the progress since then
        "uda: 75%, step 105, 31 s left, known 100.0, novel 100.0, all 100.0, labelled 0.50",
        "uda: done at step 105, 31 s",
    ]


def test_counting_files(clock: list[float]) -> None:
    watch, out = lines()
    for done in range(1, 101):
        clock[0] += 1
        watch.counted("reading images", done, 100)
    assert out.getvalue().splitlines()[0] == "reading images: 31/100, 1:07 left"
    assert out.getvalue().splitlines()[-1] == "reading images: 100/100, 0 s left"
    console = Console(force_terminal=True, width=60, file=io.StringIO(), color_system=None)
    bar = Bar(console)
    for done in range(1, 4):
        bar.counted("reading images", done, 3)
    assert bar.counting is None  # it is over
    assert "3/3" in console.file.getvalue()  # type: ignore[attr-defined]


def test_who_looks_on() -> None:
    assert type(watcher(quiet=True)) is Watcher
    assert type(watcher()) is Lines  # pytest is no terminal

"""Frozen, fine-tuned or from scratch: chosen by known classes that are hidden as if novel."""

from pathlib import Path
from typing import Any

import pytest

import openldn
import toy
from openldn import choice, pipeline, systems
from openldn.data.problem import Problem
from openldn.errors import Diverged, UserError
from openldn.options import Options
from openldn.progress import Watcher

pytestmark = [
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning"),
]


def folder(path: Path) -> Path:
    toy.write_folder(path / "photos", n_classes=8, n_known=4)
    return path / "photos"


def scored(monkeypatch: pytest.MonkeyPatch, scores: dict[Any, float]) -> list[str]:
    """Rehearsals that take no time; returns the ways that were rehearsed."""
    asked = list[str]()

    def rehearsed(way: str, *_: Any) -> float:
        asked.append(way)
        return scores[way]

    monkeypatch.setattr(choice, "rehearsed", rehearsed)
    return asked


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((60, 50, 40), "frozen"),
        ((60, 30, 20), "frozen"),
        ((60, 58.5, 40), "frozen"),
        ((60, 59.5, 40), "fine-tuned"),
        ((60, 70, 70.5), "fine-tuned"),
        ((60, 50, 70), "scratch"),
        ((60, 65, 70), "scratch"),
    ],
)
def test_the_best_way_is_taken_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: tuple[float, ...], expected: Any
) -> None:
    """From scratch has to be clearly ahead."""
    by_way = dict(zip(choice.WAYS, scores, strict=True))
    photos, asked = folder(tmp_path), scored(monkeypatch, by_way)
    monkeypatch.setattr(pipeline, "start", lambda given, options, *_, **__: options)
    for _ in range(2):
        made: Any = openldn.train(photos, novel=2, quiet=True, device="cpu")
        assert (made.weights, made.method) == (expected, choice.WAYS[expected])
    close = [way for way in choice.WAYS if by_way[way] > max(scores) - choice.OUT]
    again = close * (choice.REHEARSALS - 1) if len(close) > 1 else []  # one alone has won
    assert asked == [*choice.WAYS, *again]


def test_every_way_meets_the_same_hidden_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met = list[tuple[str, int, list[int]]]()

    def rehearsed(way: str, problem: Problem, _: Options, seed: int) -> float:
        met.append((way, seed, problem.labels.tolist()))
        return 50.0

    monkeypatch.setattr(choice, "rehearsed", rehearsed)
    monkeypatch.setattr(choice, "MOST", 30)
    monkeypatch.setattr(pipeline, "start", lambda *_, **__: None)
    openldn.train(folder(tmp_path), novel=2, quiet=True, device="cpu")
    by_way = {way: [others for own, *others in met if own == way] for way in choice.WAYS}
    assert len({repr(others) for others in by_way.values()}) == 1
    assert len(by_way["frozen"]) == choice.REHEARSALS
    assert len(by_way["frozen"][0][1]) < 48  # a sample


def test_all_ways_are_rehearsed_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "SEEN", {"fine-tuned": 32, "scratch": 200})
    monkeypatch.setattr(choice, "REHEARSALS", 1)
    said = list[str]()
    monkeypatch.setattr(Watcher, "said", lambda self, line: said.append(line))
    for stage in ("metric-learning", "self-labelling"):
        own = systems.find("fine-tuned").settings(Options())[stage]
        monkeypatch.setattr(type(own), "least_images", 32, raising=True)
    run = openldn.train(folder(tmp_path), novel=2, quiet=True, device="cpu", out=tmp_path / "run")
    [line] = [line for line in said if line.startswith("weights: ")]
    assert f"weights: {run.config['weights']} " in line
    assert run.config["rehearsals"].keys() == choice.WAYS.keys()
    for way in choice.WAYS:
        assert f"{way} " in line
    assert "--weights overrules" in line


def test_a_way_that_was_left_out_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rehearsals, which it does not see, may be harder."""
    scores = {"frozen": [80.0, 40.0], "fine-tuned": [78.0, 42.0], "scratch": [64.0]}

    def rehearsed(way: str, *_: Any) -> float:
        return scores[way].pop(0)

    monkeypatch.setattr(choice, "rehearsed", rehearsed)
    monkeypatch.setattr(choice, "REHEARSALS", 2)
    monkeypatch.setattr(pipeline, "start", lambda given, options, *_, **__: options)
    made: Any = openldn.train(folder(tmp_path), novel=2, quiet=True, device="cpu")
    assert made.weights == "fine-tuned"
    assert not any(scores.values())


def test_a_rehearsal_that_diverges_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverged(*_: Any, **__: Any) -> None:
        raise Diverged("the loss is not finite")

    monkeypatch.setattr(choice, "start", diverged)
    monkeypatch.setattr(pipeline, "start", lambda given, options, *_, **__: options)
    made: Any = openldn.train(folder(tmp_path), novel=2, quiet=True, device="cpu")
    assert made.weights in choice.WAYS


def test_many_novel_classes_in_a_small_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, int]]()

    def rehearsed(way: str, problem: Problem, *_: Any) -> float:
        seen.append((problem.n_novel, len(problem.unlabelled)))
        return 50.0

    monkeypatch.setattr(choice, "rehearsed", rehearsed)
    monkeypatch.setattr(choice, "MOST", 30)
    monkeypatch.setattr(pipeline, "start", lambda *_, **__: None)
    openldn.train(folder(tmp_path), novel=20, quiet=True, device="cpu")
    assert all(0 < n_novel <= n // 2 for n_novel, n in seen)


@pytest.mark.parametrize(
    "given", [{"method": "orca"}, {"epochs": 2.0}, {"budget": 9.0}, {"settings": {"lr": 0.1}}]
)
def test_auto_is_refused_with_what_it_chooses(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="leave out --method, --epochs, --budget and --set"):
        pipeline.decided(Options(weights="auto", **given), {"kind": "folder"})
    with pytest.raises(UserError, match="small has no pretrained weights"):
        pipeline.decided(Options(weights="auto", backbone="small"), {"kind": "folder"})


def test_why_it_is_from_scratch_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(Watcher, "said", lambda self, line: said.append(line))
    monkeypatch.setattr(pipeline, "start", lambda *_, **__: None)
    for given, told in (({"epochs": 2}, 1), ({"method": "orca"}, 0), ({"weights": "scratch"}, 0)):
        said.clear()
        openldn.train(folder(tmp_path / str(given)), novel=2, quiet=True, device="cpu", **given)  # type: ignore[arg-type]
        assert len([line for line in said if line.startswith("system: openldn-uda, from scratch")]) == told


@pytest.mark.parametrize("given", [{"method": "orca"}, {"epochs": 1.0}, {"weights": "frozen"}])
def test_what_is_asked_for_is_not_compared(given: dict[str, Any]) -> None:
    assert pipeline.decided(Options(**given), {"kind": "folder"}).weights != "auto"
    assert pipeline.decided(Options(), {"kind": "folder"}).weights == "auto"
    assert pipeline.decided(Options(), {"kind": "named"}).weights == "scratch"


def test_an_interrupt_names_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of rehearsals are temporary."""

    def stopped(*_: Any) -> float:
        e = KeyboardInterrupt()
        e.run = tmp_path / "gone"  # type: ignore[attr-defined]
        raise e

    monkeypatch.setattr(choice, "rehearsed", stopped)
    with pytest.raises(KeyboardInterrupt) as e:
        openldn.train(folder(tmp_path), novel=2, quiet=True, device="cpu")
    assert not hasattr(e.value, "run")


def test_a_stranger_s_run_downloads_no_backbone() -> None:
    from openldn.device import pick
    from openldn.nets.encoder import encoder

    record = {"name": "somebody/network", "digest": "", "size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}
    for changed, mentions in (({}, "bring it first"), ({"size": 10**6}, "pixels")):
        with pytest.raises(UserError, match=mentions):
            encoder([record | changed], flip=True, on=pick("cpu"), precision="float32", own=None)

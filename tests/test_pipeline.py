"""Whole runs: what they record and leave behind, what stops them, and how they go on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import openldn
import toy
from openldn import device, inference, job, pipeline, systems
from openldn.data.batches import Batch
from openldn.data.benchmark import Benchmark
from openldn.data.problem import Problem, Truth
from openldn.data.reading import Given
from openldn.data.sources import digits
from openldn.errors import Diverged, OpenLDNWarning, UserError
from openldn.files import read_metadata, read_tensors
from openldn.maths import count
from openldn.methods.closed_world import OnPseudoLabels
from openldn.methods.openldn import Discover
from openldn.model import Model
from openldn.nets.classifier import Classifier, Prediction
from openldn.options import Options
from openldn.run import Run
from openldn.training import pretraining

# Short runs find nothing novel yet, and warn of it.
pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")


def start(
    out: Path,
    problem: Problem | None = None,
    truth: Truth | None = None,
    *,
    module: nn.Module | None = None,
    **choices: Any,
) -> Run:
    """A run on the toy images, with the toy backbone unless one is given or named."""
    problem = problem or toy.split()[0]
    length = {} if "budget" in choices else {"epochs": 2}
    options = Options(
        **{"novel": problem.n_novel, "device": "cpu", "precision": "float32", **length, **choices}
    )
    given = Given(problem, truth, (), np.arange(len(problem.images)))
    if module is None and options.backbone is None:
        module = toy.backbone()
    return job.start(given, options, {"kind": "arrays"}, out, backbone=module, quiet=True)


def weights(run: Run) -> dict[str, Tensor]:
    return read_tensors(run.path / "model.safetensors")[0]


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def spent(run: Run) -> dict[str, float]:
    """Image passes by stage."""
    return {line["phase"]: line["passes"] for line in run.metrics() if line["phase"] != "final"}


def evaluated(run: Run) -> list[str]:
    """The stages of the log's evaluations."""
    return [line["phase"] for line in run.metrics() if "protocols" in line]


# ------------------------------------------------------------------------------- a run on own images

Finished = tuple[Path, Run, dict[str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A folder of images, a run on it, and the ground truth of its unlabelled images."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    truth = toy.write_folder(folder)
    choices = {"method": "openldn-uda", "novel": 2, "epochs": 3, "device": "cpu", "precision": "float32"}
    return folder, openldn.train(folder, out=folder.parent / "run", quiet=True, **choices), truth


def test_a_runs_folder(finished: Finished) -> None:
    _, run, truth = finished
    config = json.loads((run.path / "config.json").read_text())
    assert config["options"]["seed"] == 0
    assert {"openldn", "torch", "python", "data", "settings", "system"} <= config.keys()
    split = json.loads((run.path / "split.json").read_text())
    assert sorted(split["unlabelled"]) == sorted(truth)
    assert [*split["labelled"]] == ["class-0", "class-1"]
    classes = json.loads((run.path / "classes.json").read_text())
    assert classes == {"known": ["class-0", "class-1"], "novel": ["novel-1", "novel-2"]}
    for line in run.metrics():
        assert {"phase", "step", "seconds", "passes"} <= line.keys()
    with (run.path / "predictions.csv").open(newline="") as f:
        predictions = [*csv.DictReader(f)]
    assert sorted(row["image"] for row in predictions) == sorted(truth)
    assert {row["kind"] for row in predictions} <= {"known", "novel", "unsure"}
    assert all(0 <= float(row["confidence"]) <= 1 for row in predictions)
    assert {path.name for path in run.path.rglob(".*")} <= {".lock"}


def test_the_model_may_be_read_by_whoever_may_read_the_rest(finished: Finished) -> None:
    _, run, _ = finished
    modes = {file.name: file.stat().st_mode for file in run.path.rglob("*") if file.is_file()}
    modes.pop(".lock", None)
    assert {"config.json", "model.safetensors", "2-uda.safetensors"} <= modes.keys()
    assert len({*modes.values()}) == 1


def test_the_number_of_novel_classes_is_estimated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.write_folder(tmp_path / "photos")
    choices: dict[str, Any] = {"method": "openldn-uda", "epochs": 2, "quiet": True, "device": "cpu"}
    run = openldn.train(tmp_path / "photos", out=tmp_path / "run", **choices)
    counted = json.loads((run.path / "count.json").read_text())["n_novel"]
    assert len(json.loads((run.path / "classes.json").read_text())["novel"]) == counted
    assert run.config["n_novel"] == "auto"
    before = weights(run)
    (run.path / "model.safetensors").unlink()
    monkeypatch.delattr(count, "estimate")  # it is not estimated again
    openldn.resume(run.path, quiet=True)
    assert equal(before, weights(run))
    again = openldn.train(tmp_path / "photos", out=tmp_path / "again", **choices)  # nor in another run
    assert json.loads((again.path / "count.json").read_text())["n_novel"] == counted


def test_a_folder_called_like_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy.write_folder(tmp_path / "digits")
    with pytest.raises(UserError, match=r"\./digits"):
        openldn.train("digits", epochs=1)
    run = openldn.train("./digits", epochs=0.1, novel=2, method="openldn", quiet=True)
    assert run.path == Path("runs/digits-openldn")
    again = openldn.train("./digits", epochs=0.1, novel=2, method="openldn", quiet=True)
    assert again.path == Path("runs/digits-openldn-2")


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    toy.write_folder(tmp_path / "photos")
    with pytest.raises(UserError, match="--labelled"):
        openldn.train(tmp_path / "photos", labelled=0.2)
    with pytest.raises(UserError, match="--size"):
        openldn.train("digits", size=32)


def test_hidden_labels_of_a_named_set_never_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled novel labels give the same weights to the bit, and other scores."""
    original: Benchmark = digits.read(Path())

    def shuffled(folder: Path) -> Benchmark:
        def moved(labels: np.ndarray) -> np.ndarray:
            labels, novel = labels.copy(), labels >= 5
            labels[novel] = np.random.default_rng(0).permutation(labels[novel])
            return labels

        parts = {part: getattr(original, part) for part in ("train", "test")}
        return replace(
            original, **{name: replace(part, labels=moved(part.labels)) for name, part in parts.items()}
        )

    choices = {"epochs": 0.5, "method": "openldn", "quiet": True, "device": "cpu"}
    one = openldn.train("digits", out=tmp_path / "one", **choices)
    monkeypatch.setattr(digits, "read", shuffled)
    two = openldn.train("digits", out=tmp_path / "two", **choices)
    assert equal(weights(one), weights(two))
    assert one.metrics()[-1]["protocols"] != two.metrics()[-1]["protocols"]


# ---------------------------------------------------------------------------------- choices, settings


def test_keyword_arguments_are_options_or_settings(tmp_path: Path) -> None:
    run = openldn.train(
        "digits",
        Options(settings={"lr": 0.001, "margin": 0.25}, seed=3),
        method="orca",
        images=60,
        epochs=0.1,
        margin=0.5,
        **{"simclr.temperature": 0.25},
        out=tmp_path / "run",
        quiet=True,
    )
    assert (run.options.seed, run.options.images) == (3, 60)
    assert run.options.settings == {"lr": 0.001, "margin": 0.5, "simclr.temperature": 0.25}
    recorded = run.config["settings"]
    assert recorded["orca"]["margin"] == 0.5
    assert recorded["simclr"]["temperature"] == 0.25
    assert [own["lr"] for own in recorded.values()] == [0.001, 0.001]
    expected = systems.find("orca").settings(run.options)
    assert recorded == {name: asdict(own) for name, own in expected.items()}
    with pytest.raises(UserError, match=r"orca has no setting 'pair'; it has epochs, .*margin"):
        openldn.train("digits", method="orca", pair=False)


def test_a_changed_setting_changes_the_run(tmp_path: Path) -> None:
    plain = start(tmp_path / "plain", method="openldn")
    for i, own in enumerate([{"lr": 1e-4}, {"omega_every": 1}, {"batch": 50}]):
        assert not equal(weights(plain), weights(start(tmp_path / str(i), method="openldn", settings=own)))


@pytest.mark.parametrize(
    "recorded",
    [
        {},
        {"discover": 3, "uda": 4},
        {"discover": {}},
        {"discover": {}, "uda": {}},
        {"discover": {"unheard of": 1}, "uda": {}},
        {"discover": {"batch": "many"}, "uda": {}},
        {"discover": {}, "uda": {"temperature": 0.0}},
    ],
    ids=["nothing", "numbers", "one stage", "no values", "unknown", "other type", "out of limits"],
)
def test_recorded_settings_that_do_not_fit_are_refused(
    recorded: dict[str, Any], finished: Finished, tmp_path: Path
) -> None:
    """Before anything is trained."""
    path = Path(shutil.copytree(finished[1].path, tmp_path / "run"))
    (path / "model.safetensors").unlink()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "settings": recorded}))
    with pytest.raises(UserError, match=r"config\.json does not fit this version of openldn; train again"):
        openldn.resume(path, quiet=True)
    assert not (path / "model.safetensors").exists()


@pytest.mark.parametrize("own", [{"pair": False}, {"entropy": False}, {"order": "omega-first"}])
@pytest.mark.parametrize("attach", ["both", "neither"])
def test_switches_of_openldn_change_the_run(own: dict[str, Any], attach: str, tmp_path: Path) -> None:
    run, plain = (
        start(tmp_path / name, method="openldn", settings={"attach": attach, **changes})
        for name, changes in (("run", own), ("plain", {}))
    )
    assert not equal(weights(run), weights(plain))
    line = run.metrics()[-1]
    assert ("pair" in line) is own.get("pair", True)
    assert ("entropy" in line) is own.get("entropy", True)
    assert ("omega_gradient" in line) is own.get("pair", True)


@pytest.mark.parametrize("target", ["soft-cosine", "hard-cosine", "nearest", "apart"])
def test_other_similarity_targets_run(target: str, tmp_path: Path) -> None:
    run = start(tmp_path / "run", method="openldn", settings={"target": target})
    logged = [line for line in run.metrics() if "pair" in line]
    assert logged
    assert all(np.isfinite(line["pair"]) for line in logged)
    assert all("omega_gradient" not in line for line in logged)


@pytest.mark.parametrize("given", [0, 1, 3])
def test_a_stage_is_evaluated_as_often_as_was_asked(given: int, tmp_path: Path) -> None:
    """And comes to the same end, however often that is: that of its last stage."""
    problem, truth = toy.split()
    choices = {"method": "openldn-uda", "epochs": 4, "settings": {"batch": 24}}
    run = start(tmp_path / "run", problem, truth, evaluations=given, **choices)
    # The end of a run is always evaluated.
    assert evaluated(run) == ["discover"] * given + ["uda"] * max(1, given) + ["final"]
    model = Model.load(run.path, toy.backbone())
    right = inference.score(model, truth)
    assert run.metrics()[-1]["protocols"] == right["protocols"]
    assert {"step", "seconds", "passes"} <= run.metrics()[-1].keys()


def test_a_stage_is_evaluated_ten_times_unless_it_says_otherwise(tmp_path: Path) -> None:
    problem, truth = toy.split()
    run = start(tmp_path / "run", problem, truth, method="openldn", settings={"batch": 24})
    assert evaluated(run) == ["discover"] * 10 + ["final"]
    orca = start(tmp_path / "orca", problem, truth, method="orca")
    assert evaluated(orca) == ["orca", "final"]
    with pytest.raises(UserError, match="evaluations -1"):
        pipeline.check(Options(evaluations=-1))


def test_evaluations_do_not_change_a_run(tmp_path: Path) -> None:
    problem, truth = toy.split()
    one, two = (start(tmp_path / str(n), problem, truth, method="openldn-uda", evaluations=n) for n in (0, 4))
    assert equal(weights(one), weights(two))
    assert one.metrics()[-1]["protocols"] == two.metrics()[-1]["protocols"]


@pytest.mark.parametrize("rows", ["all", "few"])
def test_passes_are_counted(tmp_path: Path, rows: str) -> None:
    """Forward 1, backward 2, forward mode 2 more than forward; evaluations do not count."""
    problem, truth = toy.split()
    run = start(tmp_path / "run", problem, truth, method="openldn", epochs=4, settings={"omega_rows": rows})
    training = toy.training("openldn", omega_rows=rows)
    l, u = training.composition.labelled, training.composition.unlabelled  # noqa: E741
    steps = run.metrics()[-1]["step"]
    updates = -(-steps // training.settings.omega_every)  # type: ignore[attr-defined]
    learned = l + 2 * u
    judged, along = (learned, learned) if rows == "all" else (l, l + min(l, u))
    assert spent(run) == {"discover": steps * 3 * learned + updates * 3 * (judged + along)}


# ------------------------------------------------------------------------------------------- budgets


def check_budget(run: Run) -> None:
    budget = run.options.budget
    assert budget is not None
    assert 0.97 <= sum(spent(run).values()) / budget <= 1.005


REFRESHED = [
    name for name, own in systems.SYSTEMS.items() if any(hasattr(s.settings, "refreshes") for s in own.stages)
]


@pytest.mark.parametrize("method", REFRESHED)
def test_a_budget_is_kept_where_refreshes_are_expensive(method: str, tmp_path: Path) -> None:
    """A look at the unlabelled images costs as much as a dozen steps."""
    problem, _ = toy.labelled_set(per_class=250, flip=True).split(known=0.5, labelled=0.5, seed=0)
    run = start(tmp_path / "run", problem, method=method, budget=20_000, settings={"batch": 24})
    check_budget(run)


@pytest.mark.parametrize(
    ("method", "budget"),
    [("openldn-uda", 12_000), ("uda", 12_000), ("mixmatch", 12_000), ("pu-self-training", 12_000)],
)
def test_a_budget_is_kept_where_images_are_resized_progressively(
    method: str, budget: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small images cost less, so there are more steps than with images in full size."""
    problem, _ = toy.labelled_set(enlarged=3, flip=True).split(known=0.5, labelled=0.5, seed=0)
    monkeypatch.setattr(job, "for_any_backbone", lambda own: own)  # the toy backbone takes any size
    steps = []
    for resized in (True, False):
        own = {"progressive_resizing": resized, "batch": 24}
        run = start(tmp_path / str(resized), problem, method=method, budget=budget, settings=own)
        lines = [line for line in run.metrics() if line["phase"] == systems.find(method).stages[-1].name]
        before, last = [*{line["step"]: line["passes"] for line in lines}.items()][-2:]
        step = (last[1] - before[1]) / (last[0] - before[0])
        assert abs(sum(spent(run).values()) - budget) <= 0.5 * step + 1
        steps.append(sum({line["phase"]: line["step"] for line in run.metrics()}.values()))
    assert steps[0] > 1.1 * steps[1]


@pytest.mark.parametrize("method", ["orca", "rankstats"])
def test_a_budget_is_kept_where_early_layers_are_frozen(method: str, tmp_path: Path) -> None:
    """Their backward pass is not counted, so there are more steps than with all layers."""
    choices: dict[str, Any] = {"method": method, "budget": 20_000, "settings": {"batch": 24}}
    frozen = start(tmp_path / "frozen", backbone="small", **choices)
    whole = start(tmp_path / "whole", **choices)  # of a user's backbone it is not known what is early
    check_budget(frozen)
    check_budget(whole)
    steps = [{line["phase"]: line["step"] for line in run.metrics()}[method] for run in (frozen, whole)]
    assert steps[0] > 1.2 * steps[1]


@pytest.mark.parametrize("method", ["k-means+uda", "pu-clustering+uda"])
def test_what_a_first_stage_leaves_goes_to_the_second(method: str, tmp_path: Path) -> None:
    run = start(tmp_path / "run", method=method, budget=60_000)
    assert spent(run)["uda"] > 1.2 * 30_000
    check_budget(run)


def test_what_a_first_stage_spends_is_shared(tmp_path: Path) -> None:
    run = start(tmp_path / "run", method="orca+uda", budget=20_000, settings={"batch": 24})
    shares = [passes / 20_000 for passes in spent(run).values()]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


# ----------------------------------------------------------------------------------------- divergence


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, loss and last good checkpoint are named, and that checkpoint is still good."""
    original = Discover.losses

    def losses(
        self: Discover, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        found = dict(original(self, network, average, batch, progress))
        if self.n_steps == 6:
            found["entropy"] = found["entropy"] * float("nan")
        return found

    monkeypatch.setattr(Discover, "losses", losses)
    with pytest.raises(Diverged) as caught:
        start(tmp_path / "run", method="openldn", epochs=8, save_every=0.0)
    message = str(caught.value)
    assert "'entropy'" in message
    assert "step 6 " in message
    assert str(tmp_path / "run" / "checkpoints" / "1-discover.safetensors") in message
    assert "(step 5)" in message
    saved = Run.open(tmp_path / "run").load_state("1-discover")
    assert saved is not None
    assert saved["step"] == 5
    assert all(torch.isfinite(v).all() for v in saved["training"]["network"].values())


def test_divergence_early_in_stage_2_names_the_checkpoint_of_stage_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        OnPseudoLabels,
        "losses",
        lambda self, network, *_: {"labelled": torch.tensor(torch.nan) * network.head.weight.sum()},
    )
    with pytest.raises(Diverged, match=r"last good checkpoint is .*1-discover\.safetensors"):
        start(tmp_path / "run", method="openldn-uda")


# -------------------------------------------------------------------------------- pretraining, cached


def test_pretraining_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "cache"))

    def train(name: str, method: str, **choices: Any) -> Run:
        return start(tmp_path / name, method=method, backbone="small", **choices)

    def cached(run: Run) -> list[str]:
        return [line["phase"] for line in run.metrics() if line.get("cached")]

    def entries() -> int:
        return len([*pretraining.folder().glob("*")])

    assert cached(train("first", "orca")) == []
    assert entries() == 2  # both stages: other runs may begin with them
    second, other = train("second", "simgcd"), train("other", "simgcd", seed=1)
    assert cached(second) == ["simclr"]
    assert cached(other) == []
    assert entries() == 2 + 1 + 2
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "empty"))
    alone = train("alone", "simgcd")
    assert cached(alone) == []
    assert equal(weights(second), weights(alone))
    assert spent(second) == spent(alone)
    for file in pretraining.folder().glob("*"):
        file.write_bytes(b"damaged")
    assert cached(train("again", "simgcd")) == []


def test_cached_pretraining_is_for_the_same_start_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pixel, label, network, precision, length, setting, seed or code has another key."""
    problem, _ = toy.split()
    asked: list[str] = []
    monkeypatch.setattr(pretraining, "fetch", lambda run, name, key: asked.append(key))
    monkeypatch.setattr(pretraining, "keep", lambda run, name, key: None)

    def keys(problem: Problem, method: str = "orca", **choices: Any) -> tuple[str, ...]:
        asked.clear()
        path = tmp_path / str(len([*tmp_path.iterdir()]))
        start(path, problem, method=method, **{"backbone": "small", "budget": 400, **choices})
        return tuple(asked)

    images, labels = problem.images.clone(), problem.labels.clone()
    images[0, 0, 0, 0] ^= 1
    labels[problem.labelled[0]] = (labels[problem.labelled[0]] + 1) % 3
    first = keys(problem)
    assert len(first) == 1
    assert keys(problem, settings={"margin": 0.5}) == first  # which does not matter to SimCLR
    assert keys(problem, "simgcd") == first
    others = [
        keys(replace(problem, images=images)),
        keys(replace(problem, labels=labels)),
        keys(replace(problem, flip=True)),
        keys(problem, seed=1),
        keys(problem, budget=600),
        keys(problem, backbone="medium"),
        keys(problem, precision="bfloat16"),
        keys(problem, settings={"simclr.temperature": 0.2}),
        keys(problem, preset="paper"),
        keys(problem, "dtc"),
    ]
    monkeypatch.setattr(pretraining, "code", lambda: "changed")
    others.append(keys(problem))
    assert len({first, *others}) == 1 + len(others)
    simclr, supervised = keys(problem, "rankstats")
    monkeypatch.setattr(pretraining, "key", lambda before, **on: f"{before}{on['stage']};")
    assert keys(problem, "rankstats") == ("simclr;", "simclr;supervised;")  # it knows what came before
    assert simclr != supervised


def test_a_cache_that_cannot_be_read_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "cache"))
    (pretraining.folder() / "folder.safetensors").mkdir(parents=True)
    pretraining.fetch(run, "1-simclr", "folder")
    run.save_state("other", {"what": "not a stage"})
    (pretraining.folder() / "other.safetensors").write_bytes(run.checkpoint("other").read_bytes())
    pretraining.fetch(run, "1-simclr", "other")
    run.save_state("kept", {"phase": "simclr", "step": 1, "seconds": 1.0, "passes": 1.0})
    (pretraining.folder() / "kept.safetensors").write_bytes(run.checkpoint("kept").read_bytes())

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(pretraining.os, "utime", refuse)
    assert not run.checkpoint("1-simclr").exists()
    pretraining.fetch(run, "1-simclr", "kept")
    assert run.checkpoint("1-simclr").exists()


# ------------------------------------------------------------------------------------ own backbones


class Attentive(nn.Module):
    """A backbone with what users' own may have: attention, a frozen part, a part that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(1, 16, 4, stride=2).requires_grad_(False)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.frozen(x).flatten(2).transpose(1, 2)
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1)


@pytest.mark.parametrize("method", ["openldn", "openldn-uda"])
@pytest.mark.parametrize("order", ["omega-first", "theta-first"])
def test_any_module_may_be_the_backbone(order: str, method: str, tmp_path: Path) -> None:
    backbone = Attentive()
    backbone.unused.eval()
    run = start(tmp_path / "run", module=backbone, method=method, settings={"order": order})
    assert backbone.training  # theirs stays as it was, part by part
    assert not backbone.unused.training
    trained = Model.load(run.path, backbone).network.backbone
    assert isinstance(trained, Attentive)
    assert torch.equal(trained.frozen.weight, backbone.frozen.weight)
    assert not torch.equal(trained.attention.in_proj_weight, backbone.attention.in_proj_weight)
    assert [line["omega_gradient"] for line in run.metrics() if "omega_gradient" in line][-1] > 0


@pytest.mark.parametrize("method", ["openldn-uda", "uda", "pu-self-training"])
def test_a_backbone_may_take_images_of_one_size_alone(method: str, tmp_path: Path) -> None:
    """Progressive resizing is not for them, and the configuration says so."""
    problem, _ = toy.labelled_set(enlarged=4).split(known=0.5, labelled=0.5, seed=0)
    own = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 16), nn.BatchNorm1d(16), nn.ReLU())
    run = start(tmp_path / "run", problem, module=own, method=method, budget=3_000)
    assert run.finished
    recorded = run.config["settings"].values()
    assert not any(own.get("progressive_resizing") for own in recorded)
    assert {own["optimiser"] for own in recorded} == {"adam"}


# --------------------------------------------------------------------------- threads, forks and kills


def test_trainings_in_two_threads_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    X, y = toy.pictures(4, 15)
    y = np.where((y >= 2) | (np.arange(len(y)) % 2 == 1), -1, y)
    found: dict[str, Any] = {}
    backbone = toy.backbone()  # here: it seeds the random numbers of all threads

    def fit(name: str, seed: int) -> None:
        try:
            model = openldn.OpenLDN(2, epochs=1, seed=seed, backbone=backbone, flip=False)
            found[name] = model.fit(X, y).predict_proba(X)
        except BaseException as e:
            found[name] = e

    threads = [threading.Thread(target=fit, args=(f"thread-{seed}", seed)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (0, 1):
        fit(f"alone-{seed}", seed)
        assert isinstance(found[f"thread-{seed}"], np.ndarray), found[f"thread-{seed}"]
        assert (found[f"thread-{seed}"] == found[f"alone-{seed}"]).all()
    assert not (found["alone-0"] == found["alone-1"]).all()


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, openldn, toy
X, y = toy.pictures(4, 15)
y = np.where((y >= 2) | (np.arange(len(y)) % 2 == 1), -1, y)
fit = lambda: openldn.OpenLDN(2, epochs=0.5, closed_world=None, backbone=toy.backbone()).fit(X, y)
before = fit().predict_proba(X)
child = os.fork()
if child == 0:
    same = (fit().predict_proba(X) == before).all()
    os._exit(0 if same else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_has_trained_may_fork_and_train_again(tmp_path: Path) -> None:
    """With one thread: OpenMP's own do not survive a fork."""
    paths = os.pathsep.join([str(Path(openldn.__file__).parents[1]), str(Path(toy.__file__).parent)])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", FORK], env=env, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def program(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "openldn", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_killed_and_resumed_equals_never_interrupted(tmp_path: Path) -> None:
    """Killed twice without warning, a moment after a checkpoint; the other run saves at the end of stages."""
    flags = ["--images", "400", "--epochs", "8", "--device", "cpu", "--precision", "float32"]
    killed = tmp_path / "killed"
    process = program("train", "digits", *flags, "--save-every", "0", "--out", str(killed))
    for name, step in [("1-discover", 5), ("2-uda", 8)]:
        wait_for(process, killed, name, step)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "model.safetensors").exists()
        process = program("resume", str(killed))
    other = program("train", "digits", *flags, "--out", str(tmp_path / "whole"))
    assert process.wait(120) == 0
    assert other.wait(120) == 0
    whole, resumed = (Run.open(tmp_path / name) for name in ("whole", "killed"))
    assert equal(weights(whole), weights(resumed))

    def log(run: Run) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics()]

    assert log(whole) == log(resumed)


def wait_for(process: "subprocess.Popen[bytes]", run: Path, name: str, step: int) -> None:
    """Until the stage's checkpoint is at that step or later."""
    for _ in range(6000):
        file = run / "checkpoints" / f"{name}.safetensors"
        if file.exists():
            with suppress(UserError):  # opened while another one took its place
                tree = json.loads(read_metadata(file)["tree"])
                if dict(tree["pairs"])["step"] >= step:
                    return
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("the run did not get that far")


def test_a_run_that_found_nothing_novel_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = torch.eye(6)[0]
    monkeypatch.setattr(
        Model, "predict", lambda self, images: Prediction(*[first.expand(len(images), 6)] * 2)
    )
    with pytest.warns(OpenLDNWarning, match="no image was predicted to be novel"):
        start(tmp_path / "run", method="openldn-uda")


@pytest.mark.parametrize(("method", "budget"), [("orca", 12_000), ("dtc", 9_000), ("trssl", 6_000)])
def test_a_refresh_that_exhausts_the_budget_ends_the_stage_properly(
    method: str, budget: float, tmp_path: Path
) -> None:
    """With a checkpoint of its last step and a line in the log."""
    run = openldn.train(
        "digits", method=method, budget=budget, out=tmp_path / "run", device="cpu", quiet=True
    )
    stage = systems.find(method).stages[-1].name
    [file] = (run.path / "checkpoints").glob(f"*-{stage}.safetensors")
    lines = [line for line in run.metrics() if line["phase"] == stage]
    assert run.load_state(file.stem)["step"] == lines[-1]["step"]  # type: ignore[index]
    assert sum("protocols" in line for line in lines) == 1


def test_the_paper_s_preset_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "precision", lambda on: "bfloat16")
    on = torch.device("cpu")
    assert job.precision(Options(), on) == "bfloat16"
    assert job.precision(Options(preset="paper"), on) == "float32"
    assert job.precision(Options(preset="paper", precision="bfloat16"), on) == "bfloat16"

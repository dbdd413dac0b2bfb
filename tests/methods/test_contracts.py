"""What every system must keep to, whatever it does.

The toy runs of a system are trained once and looked at by several tests. A run is a folder, so the processes
of pytest-xdist share them.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
from torch import Tensor

import toy
from openldn import job, systems
from openldn.data.pixels import Part
from openldn.data.problem import Problem, Truth
from openldn.data.reading import Given
from openldn.files import read_tensors
from openldn.methods.closed_world import OnPseudoLabels
from openldn.model import Model
from openldn.nets.classifier import infer
from openldn.nets.predictors import RejectAndCluster
from openldn.options import Options
from openldn.progress import Watcher
from openldn.run import Run
from openldn.training.loop import Training

# Runs of a few steps find nothing novel yet, and warn of it.
pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
SYSTEMS = [*systems.SYSTEMS, "orca+uda", "pu-clustering+mixmatch", "fixmatch+uda"]


def trains(name: str) -> bool:
    return any(stage.objective is not None for stage in systems.find(name).stages)


def rejects(name: str) -> bool:
    stage = systems.find(name).stages[-1]
    return isinstance(stage.predictor(stage.settings()), RejectAndCluster)


def each(where: Callable[[str], bool] = lambda name: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("method", [name for name in SYSTEMS if where(name)])


EVERY, TRAINED = each(), each(trains)


class Crash(Exception):
    pass


class CrashOnce(Watcher):
    """Stops a run in the middle of each stage, the first time that it gets there, and notes it in a file."""

    def __init__(self, notes: Path) -> None:
        self.stage, self.crashed, self.notes = "", list[str](), notes

    def started(self, stage: str, progress: float, step: int) -> None:
        self.stage = stage

    def stepped(self, progress: float, step: int, values: Mapping[str, float]) -> None:
        if progress >= 0.5 and self.stage not in self.crashed:
            self.crashed.append(self.stage)
            self.notes.write_text("\n".join(self.crashed))
            raise Crash


# Image passes that these need to solve the toy problem; others need 20,000.
# The longer a network learns the known classes alone, the less its features tell of others.
SHORTER = {"supervised": 8_000, "cgdl": 8_000, "ds3l": 4_000}
LONGER = dict.fromkeys(("mean-teacher", "fixmatch", "mixmatch", "orca"), 40_000)


class Runs:
    """Toy runs of one system, each trained when it is first asked for."""

    def __init__(self, method: str, folder: Path):
        self.method, self.folder = method, folder

    def train(
        self, name: str, problem: Problem, truth: Truth, watcher: Watcher | None = None, **choices: Any
    ) -> Run:
        """A short run, which goes on as often as the watcher stops it. It finds no cached pretraining.

        Where pretrained weights go on learning, a small network does so here: so few pixels say nothing to
        a pretrained one. Frozen networks get them enlarged.
        """
        path = self.folder / name
        self.folder.mkdir(exist_ok=True)
        with filelock.FileLock(self.folder / f"{name}.lock"), pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENLDN_CACHE", str(self.folder / f"{name}-cache"))
            patch.setattr(job, "watcher", lambda quiet: watcher or Watcher())
            if path.exists() and Run.open(path).finished:
                return Run.open(path)
            options = Options(
                **{
                    "method": self.method,
                    "budget": 6_000,
                    "novel": problem.n_novel,
                    "device": "cpu",
                    "precision": "float32",
                    "settings": {"batch": 24} if systems.find(self.method).trained else {},
                    "evaluations": 3,
                    **choices,
                }
            )
            given = Given(problem, truth, (), np.arange(len(problem.images)))
            try:
                return job.start(given, options, {"kind": "arrays"}, path, quiet=True)
            except Crash:
                pass
            while True:
                try:
                    return job.go_on(Run.open(path), problem, truth, quiet=True)
                except Crash:
                    pass

    @property
    def whole(self) -> Run:
        return self.train("whole", *toy.split())

    @property
    def crashed(self) -> Run:
        """A run that crashed once in every stage, and saved after every step."""
        crashes = CrashOnce(self.folder / "crashed.txt")
        return self.train("crashed", *toy.split(), crashes, save_every=0.0)

    @property
    def solved(self) -> Run:
        """A run that is long enough, on images with little noise."""
        budget = (SHORTER | LONGER).get(self.method, 20_000)
        batch = 48 if self.method in LONGER else 24
        settings = {"settings": {"batch": batch}} if systems.find(self.method).trained else {}
        return self.train("solved", *toy.split(noise=8.0), budget=budget, evaluations=1, **settings)

    @property
    def budgeted(self) -> Run:
        """A run of so many steps that half of one is little."""
        if self.method not in SHORTER:
            return self.solved
        return self.train("budgeted", *toy.split(), budget=20_000, evaluations=1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Runs]:
    """The runs of a system, in a folder that all processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "contracts"
    base.mkdir(exist_ok=True)
    return lambda method: Runs(method, base / method)


def weights(run: Run) -> dict[str, Tensor]:
    return read_tensors(run.path / "model.safetensors")[0]


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def log(run: Run) -> list[dict[str, Any]]:
    """The log without what the clock says."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics()]


def spent(run: Run) -> float:
    """Image passes of all stages."""
    last = {line["phase"]: line["passes"] for line in run.metrics() if line["phase"] != "final"}
    return sum(last.values())


# --------------------------------------------------------------------------------- the same run again


@EVERY
def test_hidden_labels_and_ground_truth_do_not_matter(method: str, runs: Callable[[str], Runs]) -> None:
    """Two runs agree to the bit, though the labels of novel images and of all test images differ."""
    whole, rng = toy.labelled_set(), np.random.default_rng(0)
    labels = whole.train.labels.copy()
    labels[labels >= 3] = rng.permutation(labels[labels >= 3])
    shuffled = replace(
        whole,
        train=replace(whole.train, labels=labels),
        test=replace(whole.test, labels=rng.permutation(whole.test.labels)),
    )
    own, (problem, truth) = runs(method), shuffled.split(known=0.5, labelled=0.5, seed=0)
    other = own.train("shuffled", problem, truth)
    assert equal(weights(own.whole), weights(other))
    assert (own.whole.path / "predictions.csv").read_bytes() == (other.path / "predictions.csv").read_bytes()
    assert own.whole.metrics()[-1]["protocols"] != other.metrics()[-1]["protocols"]


@TRAINED
def test_another_seed_gives_other_weights(method: str, runs: Callable[[str], Runs]) -> None:
    own = runs(method)
    assert not equal(weights(own.whole), weights(own.train("seed", *toy.split(), seed=1)))


@TRAINED
def test_resumed_equals_uninterrupted(method: str, runs: Callable[[str], Runs]) -> None:
    whole, resumed = runs(method).whole, runs(method).crashed
    stages = (resumed.path.parent / "crashed.txt").read_text().split()
    assert stages == [stage.name for stage in systems.find(method).stages if stage.objective is not None]
    assert equal(weights(whole), weights(resumed))
    assert (whole.path / "predictions.csv").read_bytes() == (resumed.path / "predictions.csv").read_bytes()


@TRAINED
def test_the_log_depends_neither_on_checkpoints_nor_on_crashes(
    method: str, runs: Callable[[str], Runs]
) -> None:
    """One run was saved at the end of each stage, the other after every step."""
    whole, resumed = runs(method).whole, runs(method).crashed
    assert log(whole) == log(resumed)


@TRAINED
def test_state_survives_the_round_trip(method: str, tmp_path: Path) -> None:
    """Checkpoint, load into a stage made anew, checkpoint: the two files hold the same."""
    run = Run.create(tmp_path / "run", {}, {})
    for number, stage in enumerate(systems.find(method).stages):
        if stage.objective is None:
            continue
        trained, fresh = toy.training(method, number), toy.training(method, number)
        trained.begin(None)
        for progress in (0.0, 0.5):
            one_step(trained, progress)
        if trained.refreshes:
            trained.objective.refresh(trained.model, 0.5)
        if isinstance(trained.objective, OnPseudoLabels):
            images = Part(trained.objective.original.images, trained.objective.original.unlabelled)
            trained.objective.choose(infer(trained.model, images).logits.softmax(dim=1))
        run.save_state("state", trained.state_dict())
        loaded = run.load_state("state")
        assert loaded is not None
        fresh.load_state_dict(loaded)
        run.save_state("again", fresh.state_dict())
        one, two = (read_tensors(run.checkpoint(name)) for name in ("state", "again"))
        assert equal(one[0], two[0])
        assert one[1] == two[1]
        assert torch.equal(trained.problem.labels, fresh.problem.labels)
        assert equal(one_step(trained, 0.75), one_step(fresh, 0.75))


def one_step(training: Training, progress: float) -> dict[str, Tensor]:
    """Losses of a step on the first batch, at a progress of one's choice."""
    batch, objective = toy.batch(training), training.objective
    torch.manual_seed(2)
    losses = objective.losses(training.network, training.model, batch, progress)
    training.optimiser.zero_grad()
    torch.stack([*losses.values()]).sum().backward()
    training.optimiser.step(0.01)
    objective.after_step(training.network, batch, progress)
    return {name: loss.detach() for name, loss in losses.items()}


# ----------------------------------------------------------------------------------------- learning

IN_USE = {"discover": {"pseudo", "pair", "entropy"}, "cgdl": set[str](), "supervised": set[str]()}


@each(lambda name: trains(name) and name not in ("supervised", "cgdl", "fine-tuned"))
def test_unlabelled_images_move_the_network(method: str) -> None:
    """Each loss about unlabelled images has a gradient in the network, and depends on their pixels."""
    for number, stage in enumerate(systems.find(method).stages):
        terms = IN_USE.get(stage.name, {"unlabelled"})
        if not terms or stage.objective is None:
            continue
        own = {"tau": 0.0, "threshold": 0.0}  # nothing is too uncertain
        has = {name: value for name, value in own.items() if hasattr(stage.settings, name)}
        training = toy.training(method, number, **has)
        if not isinstance(training.objective, OnPseudoLabels):
            training.begin(None)
        if training.average is not None:  # a teacher that is the student itself teaches nothing
            with torch.no_grad():
                for p in training.average.network.head.parameters():
                    p.add_(0.1 * torch.randn(p.shape))
        batch = toy.batch(training)
        for view in batch.u:
            view.requires_grad_()
        losses = training.objective.losses(training.network, training.model, batch, 0.5)
        assert terms <= losses.keys()
        learned = [p for p in training.network.backbone.parameters() if p.requires_grad]
        for name in terms:
            for what in (batch.u, learned):
                felt = torch.autograd.grad(losses[name], what, retain_graph=True, materialize_grads=True)
                assert max(float(g.detach().abs().max()) for g in felt) > 0, name


@EVERY
def test_solves_a_small_open_world(method: str, runs: Callable[[str], Runs]) -> None:
    scores = runs(method).solved.metrics()[-1]["protocols"]["openldn"]
    assert scores["known"] > 90
    assert scores["novel"] > 50  # chance is 33


@each(lambda name: trains(name) and name != "pu-clustering")  # it stops early
def test_a_budget_is_kept(method: str, runs: Callable[[str], Runs]) -> None:
    """Pretraining and looks at all images included; with early layers frozen where a system freezes them."""
    run = runs(method).budgeted
    assert 0.97 * run.options.budget <= spent(run) <= 1.005 * run.options.budget


# ---------------------------------------------------------------------------- what a run leaves behind


@EVERY
def test_every_setting_is_recorded(method: str, runs: Callable[[str], Runs]) -> None:
    run, system = runs(method).whole, systems.find(method)
    assert run.config["system"] == system.name
    recorded = run.config["settings"]
    assert recorded == {name: asdict(own) for name, own in system.settings(run.options).items()}
    assert [*recorded] == [stage.name for stage in system.stages]  # those that train nothing too
    assert {recorded[stage.name]["batch"] for stage in system.trained} <= {24}  # as it was set


@EVERY
def test_the_model_comes_back(method: str, runs: Callable[[str], Runs]) -> None:
    """With heads and predictors of its own; its labels are those that the run wrote."""
    (problem, _), run = toy.split(noise=8.0), runs(method).solved
    model = Model.load(run.path)
    p = model.predict(problem.images).p
    assert p.shape == (len(problem.images), problem.n_classes)
    assert p.min() >= 0
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)), atol=1e-4, rtol=0)
    written = [line.split(",")[1] for line in (run.path / "predictions.csv").read_text().splitlines()[1:]]
    assert written == [str(model.classes[i]) for i in p[problem.unlabelled].argmax(dim=1).tolist()]


@each(rejects)
def test_known_accuracy_without_rejecting_is_reported(method: str, runs: Callable[[str], Runs]) -> None:
    (_, truth), run = toy.split(), runs(method).whole
    predicted = infer(Model.load(run.path).network, truth.images).logits[:, :3].argmax(dim=1).numpy()
    known = truth.labels < 3
    expected = 100 * np.mean([a == b for a, b in zip(predicted[known], truth.labels[known], strict=True)])
    last = run.metrics()[-1]
    assert last["none_rejected"] == pytest.approx(expected)
    assert last["none_rejected"] > last["protocols"]["openldn"]["known"] - 1e-6


@each(lambda name: not rejects(name))
def test_systems_that_do_not_reject_report_no_such_accuracy(method: str, runs: Callable[[str], Runs]) -> None:
    assert "none_rejected" not in runs(method).whole.metrics()[-1]

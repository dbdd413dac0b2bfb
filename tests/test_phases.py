"""What every system must keep to, whatever its method."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from openldn import count, loop, pipeline
from openldn.config import Options, decide
from openldn.data.pixels import Images
from openldn.data.problem import Problem, Truth
from openldn.errors import Diverged, OpenLDNWarning, UserError
from openldn.model import Model, new_network
from openldn.nets.classifier import Classifier, Outputs, infer
from openldn.phases import closed_world
from openldn.phases.closed_world import ClosedWorld
from openldn.phases.discover import Discover
from openldn.phases.schedule import learning_rate
from openldn.progress import Silent
from openldn.recipes import RECIPES, Stage, recipe
from openldn.run import Run, read_tensors

# Runs of a few epochs find nothing novel yet, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
CPU = torch.device("cpu")
SYSTEMS = [*RECIPES, "orca+uda", "rest+mixmatch", "fixmatch+uda"]
EVERY = pytest.mark.parametrize("method", SYSTEMS)
TRAINED = pytest.mark.parametrize("method", [m for m in SYSTEMS if m != "k-means"])


def split(seed: int = 0) -> tuple[Problem, Truth]:
    return toy.labelled_set().split(known=0.5, labelled=0.5, seed=seed)


def train(out: Path, problem: Problem, truth: Truth | None = None, **choices: Any) -> Run:
    options = Options(**{"epochs": 4, "novel": problem.n_novel, "device": "cpu", **choices})
    return pipeline.start(
        problem, truth, options, {"kind": "arrays"}, out, backbone=toy.backbone(), quiet=True
    )


def weights(run: Run) -> dict[str, torch.Tensor]:
    return read_tensors(run.path / "model.safetensors")[0]


def equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def phases(method: str, problem: Problem, **choices: Any) -> list[loop.Phase]:
    options = Options(**{"method": method, "epochs": 4, **choices})
    settings = decide(options, parts=recipe(method).parts)
    torch.manual_seed(0)

    def network(stage: Stage) -> Classifier:
        body = stage.backbone or toy.backbone()
        return new_network(problem, body, stage.n_outputs(problem), CPU, stage.head)

    return [stage.build(problem, network(stage), settings) for stage in recipe(method).stages]


@EVERY
def test_same_seed_same_weights_whatever_is_hidden(method: str, tmp_path: Path) -> None:
    """Two runs agree to the bit, though hidden labels and the truth differ; another seed does not."""
    whole, rng = toy.labelled_set(), np.random.default_rng(0)
    labels = whole.labels.copy()
    labels[labels >= 3] = rng.permutation(labels[labels >= 3])
    other_truth = replace(whole, labels=labels, test_labels=rng.permutation(whole.test_labels))
    (problem, truth), (same, shuffled) = (
        made.split(known=0.5, labelled=0.5, seed=0) for made in (whole, other_truth)
    )
    one = train(tmp_path / "one", problem, truth, method=method)
    two = train(tmp_path / "two", same, shuffled, method=method)
    assert equal(weights(one), weights(two))
    if method != "k-means":
        other = train(tmp_path / "other", problem, method=method, seed=1)
        assert not equal(weights(one), weights(other))


class Cut(Silent):
    """Stops a run at a step, as a crash would."""

    class Crash(Exception):
        pass

    def __init__(self, phase: str, step: int):
        self.at, self.step = phase, step

    def started(self, phase: str, step: int, steps: int) -> None:
        self.phase = phase

    def stepped(self, step: int, losses: Mapping[str, float]) -> None:
        if self.phase == self.at and step >= self.step:
            raise self.Crash


@TRAINED
def test_resumed_equals_uninterrupted(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, truth = split()
    whole = train(tmp_path / "whole", problem, truth, method=method)
    for number, phase in enumerate(phases(method, problem)):
        out = tmp_path / f"cut-{number}"
        with monkeypatch.context() as m:
            m.setattr(pipeline, "watcher", lambda quiet, at=phase: Cut(at.name, at.steps // 2))
            with pytest.raises(Cut.Crash):
                train(out, problem, truth, method=method, save_every=0.0)
        resumed = pipeline.go_on(Run.open(out), problem, truth, backbone=toy.backbone(), quiet=True)
        assert equal(weights(whole), weights(resumed))
        assert (out / "predictions.csv").read_bytes() == (whole.path / "predictions.csv").read_bytes()

        def figures(run: Run) -> list[dict[str, Any]]:
            kept = [line for line in run.metrics() if "protocols" in line]
            return [{k: v for k, v in line.items() if k != "seconds"} for line in kept]

        assert figures(whole) == figures(resumed)


@TRAINED
def test_state_survives_the_round_trip(method: str, tmp_path: Path) -> None:
    problem, _ = split()
    run = Run.create(tmp_path / "run", {}, {})
    for phase, fresh in zip(phases(method, problem), phases(method, problem, seed=5), strict=True):
        for progress in (0.0, 0.5):
            seen = toy.batch(phase)
            losses = phase.step(seen, progress)
            phase.optimiser.zero_grad()
            torch.stack([*losses.values()]).sum().backward()
            phase.optimiser.step(0.01)
            phase.after_step(seen, progress)
        if isinstance(phase, ClosedWorld) and phase.settings.refreshes:
            with pytest.warns(OpenLDNWarning):
                phase.choose(lambda images, phase=phase: infer(phase.model, images).logits.softmax(dim=1))
        run.save_state("state", phase.state_dict())
        loaded = run.load_state("state")
        assert loaded is not None
        fresh.load_state_dict(loaded)
        run.save_state("again", fresh.state_dict())
        one, two = (read_tensors(run.checkpoint(name)) for name in ("state", "again"))
        assert equal(one[0], two[0])
        assert one[1] == two[1]
        assert torch.equal(phase.problem.labels, fresh.problem.labels)


@pytest.mark.parametrize("method", [m for m in SYSTEMS if m not in ("k-means", "supervised", "cgdl")])
def test_unlabelled_images_move_the_network(method: str) -> None:
    """Each term that is about unlabelled images has a gradient in what is learned, and depends on them."""
    problem, _ = split()
    for phase in phases(method, problem):
        if phase.name == "supervised":
            continue
        if isinstance(phase, Discover):
            phase.settings = replace(phase.settings, tau=0.0)
        if phase.name == "dtc":
            phase.begin(None)  # targets come from a first look
        if isinstance(phase, ClosedWorld) and hasattr(phase.method, "threshold"):
            phase.method = replace(phase.method, threshold=0.0)  # type: ignore[type-var]
        if isinstance(phase, ClosedWorld):  # a teacher that has not drifted away teaches nothing
            with torch.no_grad():
                phase.average.network.head.weight.add_(0.1 * torch.randn(phase.network.head.weight.shape))
        seen = toy.batch(phase)
        for view in seen.u:
            view.requires_grad_()
        losses = phase.step(seen, 0.5)
        kinds = {"discover": {"pseudo", "pair", "entropy"}, "rest": {"rest"}}
        terms = kinds.get(phase.name, {"unlabelled"})
        assert terms <= losses.keys()
        for name in terms:
            learned = [p for p in phase.network.backbone.parameters() if p.requires_grad]
            for things in (seen.u, learned):
                felt = torch.autograd.grad(losses[name], things, retain_graph=True, materialize_grads=True)
                assert max(float(g.abs().max()) for g in felt) > 0, name


# Image passes that these need to solve it; others need 20,000.
# The longer a network learns the known classes alone, the less its features say of others.
SHORTER = {"supervised": 8_000, "cgdl": 8_000, "ds3l": 4_000}
LONGER = dict.fromkeys(("orca", "mean-teacher", "fixmatch", "openldn-mean-teacher", "orca+uda"), 60_000)


@EVERY
def test_solves_a_small_open_world(method: str, tmp_path: Path) -> None:
    problem, truth = toy.labelled_set(noise=8.0).split(known=0.5, labelled=0.5, seed=0)
    options = Options(method=method, budget=(SHORTER | LONGER).get(method, 20_000), novel=3, device="cpu")
    settings = decide(options, parts=recipe(method).parts)
    # Smaller steps, and so more of them: there are 240 images.
    settings = replace(settings, training=replace(settings.training, batch=48 if method in LONGER else 24))
    run = pipeline.start(
        problem, truth, options, {"kind": "arrays"}, tmp_path / "run", settings=settings, quiet=True
    )
    model, scores = Model.load(run.path), run.metrics()[-1]["protocols"]["openldn"]
    assert scores["known"] > 90
    assert scores["novel"] > 50  # chance is 33
    prediction = model.predict(problem.images)
    assert prediction.p.shape == (len(problem.images), problem.n_classes)
    torch.testing.assert_close(prediction.p.sum(dim=1), torch.ones(len(problem.images)))
    assert prediction.p.min() >= 0


@pytest.mark.parametrize("target", ["soft-cosine", "hard-cosine", "nearest", "apart"])
def test_other_similarity_targets_run(target: str, tmp_path: Path) -> None:
    problem, truth = split()
    run = train(tmp_path / "run", problem, truth, method="openldn", target=target)
    logged = [line for line in run.metrics() if "pair" in line]
    assert logged
    assert all(np.isfinite(line["pair"]) for line in logged)
    assert all("omega_gradient" not in line for line in logged)


@pytest.mark.parametrize("choices", [{"pair": False}, {"entropy": False}, {"order": "omega-first"}])
@pytest.mark.parametrize("attach", ["both", "neither"])
def test_switches_change_the_run(choices: dict[str, Any], attach: str, tmp_path: Path) -> None:
    problem, _ = split()
    run = train(tmp_path / "run", problem, method="openldn", attach=attach, **choices)
    plain = train(tmp_path / "plain", problem, method="openldn", attach=attach)
    assert not equal(weights(run), weights(plain))
    line = run.metrics()[-1]
    assert ("pair" in line) is choices.get("pair", True)
    assert ("entropy" in line) is choices.get("entropy", True)
    assert ("omega_gradient" in line) is choices.get("pair", True)


def test_targets_are_what_they_are_called() -> None:
    """Against loops over pairs."""
    problem, _ = split()
    (phase,) = phases("openldn", problem)
    assert isinstance(phase, Discover)
    torch.manual_seed(0)
    z, p, y = torch.randn(7, 5), (3 * torch.randn(7, 6)).softmax(dim=1), torch.tensor([0, 1, 0])

    def cos(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(a @ b / a.norm() / b.norm())

    pairs = [(cos(p[i], p[j]), cos(z[i], z[j])) for i in range(7) for j in range(7)]

    def entropy(said: float, same: bool) -> float:
        said = min(max(said, 1e-6), 1 - 1e-6)
        return -math.log(said if same else 1 - said)

    def agreement(i: int) -> float:
        others = [j for j in range(7) if j != i and (i >= 3 or (j < 3 and y[i] == y[j]))] or [i]
        return -math.log(float(p[i] @ p[max(others, key=lambda j: cos(z[i], z[j]))]))

    expected = {
        "apart": np.mean([said**2 for said, _ in pairs]),
        "soft-cosine": np.mean([(said - max(like, 0)) ** 2 for said, like in pairs]),
        "hard-cosine": np.mean([entropy(said, like > 0.2) for said, like in pairs]),
        "nearest": np.mean([agreement(i) for i in range(7)]),
    }
    for target, loss in expected.items():
        phase.settings = replace(phase.settings, target=target, threshold=0.2)
        assert float(phase.pair(z, p, y, False)) == pytest.approx(float(loss), rel=1e-4), target


@pytest.mark.parametrize(("right", "ready"), [((10, 5, 6), True), ((10, 4, 10), False), ((0, 10, 10), False)])
def test_a_refresh_waits_until_half_of_each_class_is_known(
    right: tuple[int, ...], ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten labels in each of three classes, so many are got right."""
    problem, _ = split()
    _, phase = phases("openldn-uda", problem)
    assert isinstance(phase, ClosedWorld)
    y = torch.arange(30) // 10
    said = torch.where(torch.arange(30) % 10 < torch.tensor(right)[y], y, (y + 1) % 3)
    phase.problem = replace(problem, images=problem.images[:30], labels=y, names=problem.names[:30])
    outputs = Outputs(torch.zeros(30, 1), torch.nn.functional.one_hot(said, problem.n_classes).float())
    monkeypatch.setattr(closed_world, "infer", lambda network, images: outputs)
    assert phase.ready() is ready


def test_the_number_of_blobs_is_found() -> None:
    """Seven, of which four are known and half labelled."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(7), 60)
    z = torch.from_numpy(5 * np.eye(7)[kinds] + 0.3 * rng.standard_normal((420, 7))).float()
    labels = torch.from_numpy(np.where((kinds < 4) & (np.arange(420) % 2 == 0), kinds, -1))
    assert abs(count.estimate(z, labels, 4, seed=0) - 3) <= 1  # neighbours are averaged


def test_a_collapsed_similarity_net_is_visible() -> None:
    problem, _ = split()
    (phase,) = phases("openldn", problem)
    assert isinstance(phase, Discover)
    with torch.no_grad():
        for w in phase.similarity.parameters():
            w.zero_()
    phase.step(toy.batch(phase), 1 / phase.steps)  # not a step at which Ω is updated
    figures = phase.figures()
    assert figures["similarity_spread"] < 1e-6
    assert figures["similarity_auc"] == 0.5


def test_a_run_is_judged_as_often_as_was_asked(tmp_path: Path) -> None:
    """And comes to the same end, however often that is."""
    problem, truth = split()
    runs = {n: train(tmp_path / str(n), problem, truth, method="openldn-uda", evaluations=n) for n in (0, 2)}
    judged = {n: [x["phase"] for x in run.metrics() if "protocols" in x] for n, run in runs.items()}
    assert judged == {0: ["final"], 2: ["discover"] * 2 + ["uda"] * 2 + ["final"]}
    assert equal(weights(runs[0]), weights(runs[2]))
    assert runs[0].metrics()[-1]["protocols"] == runs[2].metrics()[-1]["protocols"]
    with pytest.raises(UserError, match="-1 evaluations"):
        train(tmp_path / "less", problem, truth, evaluations=-1)


def test_refreshes_follow_the_budget(tmp_path: Path) -> None:
    problem, _ = split()
    calls: list[float] = []

    def count(refreshes: int) -> int:
        calls.clear()
        _, phase = phases("openldn-uda", problem, refreshes=refreshes, epochs=12)
        assert isinstance(phase, ClosedWorld)
        phase.choose = lambda model: calls.append(1.0)  # type: ignore[assignment, misc]
        phase.ready = lambda: True  # type: ignore[method-assign]
        run = Run.create(tmp_path / f"run-{refreshes}", {}, {})
        loop.train(
            phase,
            run,
            number=0,
            seed=0,
            device=CPU,
            previous=None,
            evaluate=None,
            watcher=Silent(),
        )
        return len(calls)

    assert count(0) == 0
    assert count(1) == 1
    assert count(2) == 2


def test_pseudo_labels_are_balanced_and_given_ones_stay() -> None:
    problem, _ = split()
    _, phase = phases("openldn-uda", problem)
    assert isinstance(phase, ClosedWorld)
    c, n = problem.n_classes, len(problem.images)

    def says(images: Images) -> torch.Tensor:
        """Image i is of class i mod C."""
        return torch.nn.functional.one_hot(torch.arange(len(images)) % c, c).float()

    phase.begin(says)
    labels = phase.problem.labels
    assert torch.equal(labels[problem.labelled], problem.labels[problem.labelled])
    per_class = len(problem.labelled) // problem.n_known
    new = labels[problem.unlabelled]
    counts = [int((new == k).sum()) for k in range(c)]
    assert counts[: problem.n_known] == [0] * problem.n_known
    assert counts[problem.n_known :] == [min(per_class, len(problem.unlabelled) // c)] * problem.n_novel
    assert len(labels) == n


def test_nothing_novel_predicted_is_a_warning_not_a_crash(tmp_path: Path) -> None:
    problem, _ = split()
    _, phase = phases("openldn-uda", problem)
    assert isinstance(phase, ClosedWorld)
    with torch.no_grad():
        phase.network.head.weight.zero_()
        phase.network.head.bias.copy_(torch.tensor([9.0] + [0.0] * (problem.n_classes - 1)))
    with pytest.warns(OpenLDNWarning, match="no image was predicted to be novel"):
        phase.begin(lambda images: infer(phase.network, images).logits.softmax(dim=1))
    losses = phase.step(toy.batch(phase), 0.0)
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step, the term and the last good checkpoint are named, and that checkpoint is still good."""
    problem, _ = split()
    original = Discover.step

    def step(self: Discover, batch: Any, progress: float) -> Mapping[str, torch.Tensor]:
        losses = dict(original(self, batch, progress))
        if round(progress * self.steps) == 5:
            losses["entropy"] = losses["entropy"] * float("nan")
        return losses

    monkeypatch.setattr(Discover, "step", step)
    with pytest.raises(Diverged) as caught:
        train(tmp_path / "run", problem, method="openldn", epochs=8, save_every=0.0)
    message = str(caught.value)
    assert "'entropy'" in message
    assert "step 6 " in message
    assert str(tmp_path / "run" / "checkpoints" / "1-discover.safetensors") in message
    assert "(step 5)" in message
    saved = Run.open(tmp_path / "run").load_state("1-discover")
    assert saved is not None
    assert saved["step"] == 5
    assert all(torch.isfinite(v).all() for v in saved["phase"]["network"].values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch) -> None:
    """A bad gradient in one step shows in the next one's loss, or never, if it was the last."""
    problem, _ = split()

    def bad(self: Discover, batch: Any, progress: float) -> None:
        if round(progress * self.steps) == when:
            next(self.network.parameters()).data.fill_(float("nan"))

    monkeypatch.setattr(Discover, "after_step", bad)
    for when in (5, None):
        out = tmp_path / str(when)
        if when is None:
            when = phases("openldn", problem, epochs=8)[0].steps - 1
        with pytest.raises(Diverged, match=r"weights became NaN.*checkpoint"):
            train(out, problem, method="openldn", epochs=8, save_every=0.0)
        saved = Run.open(out).load_state("1-discover")
        assert saved is not None
        assert saved["step"] == when
        assert all(torch.isfinite(v).all() for v in saved["phase"]["network"].values())
        assert not (out / "model.safetensors").exists()


def test_trouble_early_in_stage_2_names_the_checkpoint_of_stage_1(tmp_path: Path, monkeypatch) -> None:
    problem, _ = split()
    monkeypatch.setattr(
        ClosedWorld,
        "step",
        lambda self, batch, progress: {"labelled": torch.tensor(torch.nan) * self.network.head.weight.sum()},
    )
    with pytest.raises(Diverged, match=r"last good checkpoint is .*1-discover\.safetensors"):
        train(tmp_path / "run", problem, epochs=2)


@pytest.mark.parametrize("rows", ["all", "few"])
@pytest.mark.parametrize("views", ["weak-strong", "mixed"])
def test_passes_are_counted(tmp_path: Path, rows: str, views: str) -> None:
    """Forward 1, backward 2, along a direction 2 more than forward; evaluations are nobody's budget."""
    problem, truth = split()
    settings = decide(Options(method="openldn", epochs=4), parts=["discover"])
    settings = replace(settings, discover=replace(settings.discover, omega_rows=rows, views=views))
    options = Options(method="openldn", device="cpu", novel=problem.n_novel)
    run = pipeline.start(
        problem,
        truth,
        options,
        {"kind": "arrays"},
        tmp_path / "run",
        settings=settings,
        backbone=toy.backbone(),
        quiet=True,
    )
    (phase,) = phases("openldn", problem, epochs=4)
    l, u = phase.n_labelled, phase.n_unlabelled  # noqa: E741
    turns = -(-phase.steps // settings.discover.every)
    learned, looked_at = (l + u, u) if views == "mixed" else (l + 2 * u, 0)
    judged, along = (learned, learned) if rows == "all" else (l, l + min(l, u))
    expected = phase.steps * (3 * learned + looked_at) + turns * 3 * (judged + along)
    assert [line["passes"] for line in run.metrics()][-1] == expected


def test_even_one_step_learns() -> None:
    assert learning_rate(1.0, "decay", 0.0) == pytest.approx(0.1)
    assert learning_rate(1.0, "decay", 0.1) == pytest.approx(1.0)
    assert learning_rate(1.0, "decay", 1.0) == 0
    assert [learning_rate(2.0, "fall", progress) for progress in (0.0, 0.25, 1.0)] == [2.0, 1.5, 0.0]


def test_epochs_scale_everything() -> None:
    problem, _ = split()
    short, long = (phases("openldn-mixmatch", problem), phases("openldn-mixmatch", problem, refreshes=4))
    for phase in (*short, *long):
        assert phase.steps >= 1
    for a, b in ((2, 4), (10, 20)):
        few, many = (decide(Options(epochs=e), parts=["discover", "closed_world"]) for e in (a, b))
        assert many.discover.length.epochs == 2 * few.discover.length.epochs
        assert few.discover.length.epochs + few.closed_world.length.epochs == a
    assert decide(Options(epochs=8, method="openldn"), parts=["discover"]).discover.length.epochs == 8


class Attentive(torch.nn.Module):
    """A backbone with what user's own ones may have: attention, a frozen part, a part that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Conv2d(1, 16, 4, stride=2).requires_grad_(False)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.frozen(x).flatten(2).transpose(1, 2)
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1)


@pytest.mark.parametrize("method", ["openldn", "openldn-uda"])
@pytest.mark.parametrize("order", ["omega-first", "theta-first"])
def test_any_module_may_be_the_backbone(order: Any, method: str, tmp_path: Path) -> None:
    problem, _ = split()
    backbone = Attentive()
    backbone.unused.eval()
    options = Options(novel=problem.n_novel, method=method, epochs=2, order=order, device="cpu")
    out = tmp_path / "run"
    run = pipeline.start(problem, None, options, {"kind": "arrays"}, out, backbone=backbone, quiet=True)
    assert backbone.training  # theirs stays as it was, part by part
    assert not backbone.unused.training
    trained = Model.load(run.path, backbone).network.backbone
    assert isinstance(trained, Attentive)
    assert torch.equal(trained.frozen.weight, backbone.frozen.weight)
    assert not torch.equal(trained.attention.in_proj_weight, backbone.attention.in_proj_weight)
    assert [line["omega_gradient"] for line in run.metrics() if "omega_gradient" in line][-1] > 0


def test_a_strangers_model_is_checked_before_it_is_built(tmp_path: Path) -> None:
    from openldn.errors import UserError
    from openldn.run import write_tensors

    problem, _ = split()
    run = train(tmp_path / "run", problem, method="openldn")
    tensors, about = read_tensors(run.path / "model.safetensors")
    for key, value in {
        "size": "1000000",
        "n_outputs": "99999999999",
        "channels": "7",
        "predictor": "x",
    }.items():
        write_tensors(run.path / "model.safetensors", tensors, {**about, key: value})
        with pytest.raises(UserError, match=r"model\.safetensors"):
            Model.load(run.path, toy.backbone())

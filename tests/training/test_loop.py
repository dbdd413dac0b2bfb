"""The training loop: clocks, rounds, refreshes, losses, and going on from a checkpoint."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toy
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.errors import Diverged, UserError
from openldn.model import new_network
from openldn.nets.classifier import Classifier, Predict, Prediction
from openldn.nets.cost import Passes
from openldn.progress import Watcher
from openldn.run import Run
from openldn.training import settings
from openldn.training.loop import Clock, Losses, Training, all_finite, mixed_seed, train
from openldn.training.stage import Objective, Stage

# -------------------------------------------------------------------------------------------- clocks


def clock(max_steps: int | None, max_passes: float | None, step: int, each: float, more: float = 0) -> Clock:
    """After some steps that cost `each` image passes, and refreshes that cost `more` in all."""
    made = Clock(max_steps, max_passes, step=step, steps_cost=step * each, last_cost=each)
    made.passes.total = step * each + more
    return made


def test_progress_is_the_spent_share_of_the_limit() -> None:
    assert [clock(10, None, step, 3).progress for step in (0, 3, 10, 12)] == [0, 0.3, 1, 1]
    assert [clock(None, 100, step, 10).progress for step in (0, 3, 10, 12)] == [0, 0.3, 1, 1]
    assert clock(None, 100, 3, 10, more=25).progress == 0.55  # refreshes are paid for too
    assert clock(4, 100, 3, 10).progress == 0.75  # whichever comes first
    assert clock(40, 100, 3, 10).progress == 0.3


def test_a_number_of_steps_is_met_exactly() -> None:
    assert [clock(10, None, step, 3).expired for step in (0, 9, 10, 11)] == [False, False, True, True]
    assert clock(10, 1e9, 10, 3).expired
    assert clock(1000, 30, 10, 3).expired


@pytest.mark.parametrize("budget", [95, 99, 100, 101, 104.9])
def test_a_budget_is_met_to_within_half_a_step(budget: float) -> None:
    """With steps of ten: after nine of them, or ten."""
    step = next(step for step in range(1, 100) if clock(None, budget, step, 10).expired)
    assert abs(10 * step - budget) <= 5
    if budget > 95:
        assert not clock(None, budget, step - 1, 10).expired


def test_downsized_training_images_count_by_their_area_and_are_downsized_in_steps_alone() -> None:
    class Sees(nn.Module):
        """A backbone that notes the sizes of what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.sizes = toy.backbone(), list[int]()

        def forward(self, x: Tensor) -> Tensor:
            self.sizes.append(x.shape[-1])
            return self.body(x)

    problem, _ = toy.labelled_set(enlarged=12).split(known=0.5, labelled=0.5, seed=0)
    cost = dict[int, float]()
    for resolution, pixels in ((0.01, 32), (0.6, 64), (1.0, 96)):
        training = toy.training("fine-tuned", problem=problem, body=Sees(), resolution=resolution, batch=24)
        seen = [training.network.backbone.sizes, training.model.backbone.sizes]
        training.begin(
            lambda images: Prediction(torch.full((len(images), 6), 1 / 6), torch.ones(len(images), 32))
        )
        for sizes in seen:
            sizes.clear()
        with Passes() as passes:
            training.step([toy.batch(training)], training.clock(None))  # type: ignore[arg-type]
        cost[pixels] = passes.total
        assert {*seen[0]} == {pixels}
        assert training.network.training_size is training.model.training_size is None
    assert cost[32] == pytest.approx(cost[64] / 4) == pytest.approx(cost[96] / 9)


def test_there_is_at_least_one_step() -> None:
    """Even if all was spent before the first."""
    assert not clock(None, 100, 0, 10, more=500).expired
    assert clock(None, 100, 1, 10, more=500).expired
    assert not clock(None, 1e-9, 0, 10).expired


def test_the_expected_number_of_steps_follows_what_steps_cost() -> None:
    assert clock(10, None, 3, 5).expected_steps == 10
    assert clock(None, 100, 0, 10).expected_steps == math.inf  # nobody knows what a step costs
    assert clock(None, 100, 2, 10).expected_steps == 10
    assert clock(None, 100, 2, 10, more=30).expected_steps == 7  # 50 are left, enough for five more
    assert clock(5, 100, 2, 10).expected_steps == 5


# -------------------------------------------------------------------------------------------- losses


def run_of(folder: Path) -> Run:
    return Run.create(folder / "run", {}, {})


def test_mean_losses_do_not_depend_on_when_they_are_read(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    values = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    often, late, resumed = (Losses("stage", run, "1-stage") for _ in range(3))
    for step, (a, b) in enumerate(values, start=1):
        for losses in (often, late):
            losses.add(step, {"a": a, "b": b})
        often.read()
        if step == 12:
            resumed.load_state_dict(often.state_dict())
        if step > 12:
            resumed.add(step, {"a": a, "b": b})
    assert (often.unread, late.unread, resumed.unread) == (0, 30, 18)
    for losses in (late, resumed):
        losses.read()
    expected = dict(zip("ab", values.double().mean(dim=0).tolist(), strict=True))
    for losses in (often, late, resumed):
        assert losses.means() == pytest.approx(expected, rel=1e-12)
    often.forget()
    often.add(31, {"a": torch.tensor(5.0), "b": torch.tensor(6.0)})
    often.read()
    assert often.means() == {"a": 5, "b": 6}  # of steps since then


@pytest.mark.parametrize(("bad", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_is_named_with_its_step(tmp_path: Path, bad: float, shown: str) -> None:
    losses = Losses("discover", run_of(tmp_path), "1-discover")
    for step in range(1, 5):
        losses.add(step, {"ce": torch.tensor(1.0), "pair": torch.tensor(1.0)})
    losses.read()
    for step in range(5, 9):
        losses.add(step, {"ce": torch.tensor(1.0), "pair": torch.tensor(bad if step >= 7 else 1.0)})
    with pytest.raises(Diverged, match=rf"'pair' became {shown} at step 7 of stage discover; there is no"):
        losses.read()


def test_all_finite_looks_into_trees() -> None:
    good = {"a": [torch.ones(2), {"b": (torch.zeros(1), 3)}], "c": torch.tensor(2**40), "d": "text"}
    assert all_finite(good)
    for bad in (math.nan, math.inf):
        assert not all_finite({**good, "e": [1, {"f": torch.tensor([0.0, bad])}]})


def test_seeds_are_well_mixed() -> None:
    seeds = {mixed_seed(a, b, c) for a in range(5) for b in range(5) for c in range(5)}
    assert len(seeds) == 125
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mixed_seed(1, 2, 3) == mixed_seed(1, 2, 3) != mixed_seed(3, 2, 1)
    assert len({seed >> 53 for seed in seeds}) > 90  # not just their last bits differ


# ------------------------------------------------------------------------------------ a stage at work


class Plain(settings.Settings):
    """Without refreshes."""

    batch: int = 20
    optimiser: settings.OptimiserName = "adam"
    ema_share: float = 0.05


class Refreshing(Plain):
    refreshes: int = 4


class Noting(Objective):
    """Cross-entropy of labelled images, with a diary. Its refreshes cost as much as it is told."""

    unlabelled_views = ("weak",)
    refresh_costs, begin_costs = 0.0, 0.0

    def __init__(self, problem: Problem, network: Classifier, settings: Any):
        super().__init__(problem, network, settings)
        self.rows, self.refreshed_at, self.progress = list[list[int]](), list[float](), list[float]()

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        Passes.count(self.begin_costs)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        self.rows.append(batch.rows.tolist())
        self.progress.append(progress)
        logits = network(torch.cat([*batch.x, *batch.u])).logits
        return {"ce": nn.functional.cross_entropy(logits[: len(batch.y)], batch.y)}

    def refresh(self, average: Classifier, progress: float) -> None:
        Passes.count(self.refresh_costs)
        self.refreshed_at.append(progress)


class NotingFromTheStart(Noting):
    refresh_at_start = True


def backbone() -> nn.Module:
    """Steps cost next to nothing: they are many."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())


def at_work(objective: type[Noting] = Noting, own: settings.Settings | None = None, **stage: Any) -> Training:
    problem, _ = toy.split()
    own = own or Plain()
    made = Stage(name="toy", objective=objective, settings=type(own), **stage)
    torch.manual_seed(0)
    return Training(made, problem, new_network(problem, made, backbone(), toy.CPU), own)


def go(
    training: Training, run: Run, budget: float | None = None, watcher: Watcher | None = None, **how: Any
) -> Clock:
    return train(
        training,
        run,
        checkpoint="1-toy",
        number=1,
        seed=0,
        device=toy.CPU,
        budget=budget,
        previous=None,
        evaluate=None,
        evaluations=0,
        watcher=watcher or Watcher(),
        **how,
    )


def diary(training: Training) -> Noting:
    assert isinstance(training.objective, Noting)
    return training.objective


STEP = 3 * 20  # image passes of a step of 20 images


@pytest.mark.parametrize(("epochs", "least", "steps"), [(4, 0, 48), (0.5, 0, 6), (1, 900, 60), (0, 0, 1)])
def test_epochs_are_passes_over_the_unlabelled_images(
    tmp_path: Path, epochs: float, least: int, steps: int
) -> None:
    """Of which there are 180; a step of 20 has 15 of them."""
    training = at_work(own=Plain(epochs=epochs, least_images=least))
    assert training.composition == (5, 15, 15)
    made = go(training, run_of(tmp_path))
    assert made.step == steps == len(diary(training).progress)
    assert made.passes.total == STEP * steps
    assert diary(training).progress == pytest.approx([step / steps for step in range(steps)])


@pytest.mark.parametrize("budget", [10, 1000, 1234, 1259])
def test_a_stage_spends_its_budget_to_within_half_a_step(tmp_path: Path, budget: float) -> None:
    training = at_work()
    made = go(training, run_of(tmp_path), budget)
    assert abs(made.passes.total - budget) <= STEP / 2 or made.step == 1
    assert diary(training).progress == pytest.approx([step * STEP / budget for step in range(made.step)])


def test_a_stage_may_stop_early_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noting, "max_steps", lambda objective: 7)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert go(at_work(own=Plain(epochs=4, least_images=0)), run_of(tmp_path / "a")).step == 7
    assert go(at_work(), run_of(tmp_path / "b"), budget=10_000).passes.total == 7 * STEP


@pytest.mark.parametrize(("refreshes", "apart"), [(0, 1), (1, 1 / 2), (3, 1 / 4), (5, 1 / 6)])
def test_refreshes_are_evenly_spaced(tmp_path: Path, refreshes: int, apart: float) -> None:
    """None at the end, where nothing would learn from it."""
    training = at_work(own=Refreshing(epochs=5, least_images=0, refreshes=refreshes))  # 60 steps
    go(training, run_of(tmp_path))
    assert diary(training).refreshed_at == pytest.approx([(k + 1) * apart for k in range(refreshes)])


@pytest.mark.parametrize("refreshes", [0, 1, 4, 6])
def test_the_first_refresh_may_come_before_the_first_step(tmp_path: Path, refreshes: int) -> None:
    training = at_work(NotingFromTheStart, Refreshing(epochs=5, least_images=0, refreshes=refreshes))
    go(training, run_of(tmp_path))
    assert diary(training).refreshed_at == pytest.approx([k / max(1, refreshes) for k in range(refreshes)])


@pytest.mark.parametrize("budget", [3_000, 6_000, 18_000])
@pytest.mark.parametrize("objective", [Noting, NotingFromTheStart])
def test_refreshes_take_at_most_a_fifth_of_a_budget(
    tmp_path: Path, objective: type[Noting], budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one refresh; where the budget is large, there are as many as were asked for.

    That they are expensive is known before the first: from one at the start, or from the first labels.
    """
    monkeypatch.setattr(objective, "refresh_costs", 300.0)
    monkeypatch.setattr(objective, "begin_costs", 0.0 if objective.refresh_at_start else 300.0)
    training = at_work(objective, Refreshing(refreshes=10))
    made = go(training, run_of(tmp_path), budget)
    at = diary(training).refreshed_at
    assert len(at) <= 10
    assert 300 * len(at) <= 0.2 * budget + 300
    assert len(at) == 10 if budget == 18_000 else len(at) + (not objective.refresh_at_start) >= 2
    apart = [b - a for a, b in zip([0.0, *at], at, strict=False)][1:]
    assert max(apart, default=0) - min(apart, default=0) <= 2 * STEP / budget + 1e-9  # evenly
    assert abs(made.passes.total - budget) <= STEP / 2  # they are a part of the budget


def test_an_expensive_refresh_is_followed_by_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a refresh costs is not known before the first one."""
    monkeypatch.setattr(Noting, "refresh_costs", 600.0)
    training = at_work(own=Refreshing(refreshes=9))
    made = go(training, run_of(tmp_path), 10_000)
    at = diary(training).refreshed_at
    assert at[0] == pytest.approx(0.1, abs=0.01)
    assert at[1:] == pytest.approx([0.4, 0.7], abs=0.02)  # 600 are 6 %, so they are 30 % apart
    assert abs(made.passes.total - 10_000) <= STEP / 2


def test_a_round_is_a_pass_over_the_unlabelled_images_in_a_new_order(tmp_path: Path) -> None:
    training = at_work(own=Plain(epochs=3, least_images=0))  # 36 steps, 12 a round
    go(training, run_of(tmp_path))
    rows = diary(training).rows
    unlabelled = training.problem.unlabelled.tolist()
    for start in (0, 12, 24):
        assert sorted(row for step in rows[start : start + 12] for row in step) == unlabelled
    assert rows[0] != rows[12] != rows[24]
    assert training.round == 2


def test_a_round_ends_with_a_refresh_and_without_any_there_is_one(tmp_path: Path) -> None:
    for refreshes, rounds in ((0, 0), (2, 2)):
        (tmp_path / str(refreshes)).mkdir()
        training = at_work(own=Refreshing(epochs=3, least_images=0, refreshes=refreshes))
        go(training, run_of(tmp_path / str(refreshes)))
        assert training.round == rounds
        rows = diary(training).rows
        for start in (0, 12, 24):  # rounds of twelve steps, or passes of one round
            assert len({row for step in rows[start : start + 12] for row in step}) == 180


# ------------------------------------------------------------------------- averages, decay, resizing


class Averaging(Noting):
    averaged = True


@pytest.mark.parametrize("continues", [False, True])
def test_a_moving_average_of_the_whole_stage_is_a_plain_mean(continues: bool) -> None:
    """A network that continues is itself the first of those that are averaged."""

    class Own(Plain):
        ema_share: float = 100.0

    training = at_work(Averaging, Own(epochs=1, least_images=0, lr=0.05), continues=continues)
    training.begin(None)
    made, seen = training.clock(None), toy.batch(training)
    states = [training.network.head.weight.detach().clone()] if continues else []
    for _ in range(4):
        training.step(dict.fromkeys(range(9), seen), made)  # type: ignore[arg-type]
        made.step += 1
        states.append(training.network.head.weight.detach().clone())
    assert training.model is not training.network
    torch.testing.assert_close(training.model.head.weight, torch.stack(states).mean(dim=0))
    assert not torch.equal(states[0], states[-1])


def test_weights_decay_with_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gradients are zero, nothing else moves them."""

    class Own(Plain):
        weight_decay: float = 0.5

    monkeypatch.setattr(Noting, "losses", lambda self, network, *_: {"zero": 0 * network.head.weight.sum()})
    training = at_work(own=Own(epochs=1, least_images=0, lr=0.1, schedule="linear"))
    frozen = training.network.backbone[1].weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in training.network.named_parameters()}
    made = training.clock(None)
    made.step = made.max_steps // 2
    training.step(dict.fromkeys(range(99), toy.batch(training)), made)  # type: ignore[arg-type]
    for name, p in training.network.named_parameters():
        share = 1.0 if p is frozen else 1 - 0.5 * 0.05
        torch.testing.assert_close(p.detach(), share * before[name])


def test_images_grow_over_a_stage_and_have_their_full_size_at_its_end(tmp_path: Path) -> None:
    class Own(Refreshing):
        progressive_resizing: bool = True

    sizes: list[tuple[str, int]] = []

    class Sizes(Averaging):
        def losses(self, network: Classifier, *rest: Any) -> Mapping[str, Tensor]:
            sizes.append(("step", network.training_size))
            return super().losses(network, *rest)

        def refresh(self, average: Classifier, progress: float) -> None:
            sizes.append(("refresh", average.training_size))

    problem, _ = toy.labelled_set(enlarged=4).split(known=0.5, labelled=0.5, seed=0)
    own = Own(epochs=1, least_images=0, refreshes=2)  # 12 steps
    stage = Stage(name="toy", objective=Sizes, settings=Own)
    training = Training(stage, problem, new_network(problem, stage, toy.backbone(), toy.CPU), own)
    made = go(training, run_of(tmp_path))
    steps, refreshes = ([size for what, size in sizes if what == kind] for kind in ("step", "refresh"))
    assert steps == [16] * 4 + [24] * 4 + [32] * 4
    assert refreshes == [24, 32]  # at a third and at two thirds
    assert training.network.training_size == training.model.training_size == 32
    assert made.passes.total == pytest.approx(4 * STEP * (1 / 4 + 9 / 16 + 1))


# --------------------------------------------------------------------------------------- checkpoints


class Crash(Exception):
    pass


class Crashing(Watcher):
    """Stops a stage at a step, as a crash would."""

    def __init__(self, step: int):
        self.step = step

    def stepped(self, progress: float, step: int, values: Mapping[str, float]) -> None:
        if step >= self.step:
            raise Crash


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize("budget", [None, 4_000])
def test_a_resumed_stage_equals_an_uninterrupted_one(
    tmp_path: Path, budget: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, average, rounds, refreshes, passes and the log; whatever random numbers were drawn between."""
    monkeypatch.setattr(Averaging, "refresh_costs", 100.0)
    own = Refreshing(epochs=None if budget else 5, least_images=None if budget else 0)
    runs, made = [Run.create(tmp_path / name, {}, {}) for name in ("whole", "cut")], []
    whole = at_work(Averaging, own)
    made.append(go(whole, runs[0], budget, read_every=1))
    cut = at_work(Averaging, own)
    with pytest.raises(Crash):
        go(cut, runs[1], budget, Crashing(30), save_every=0.0, read_every=1)
    torch.manual_seed(123)
    again = at_work(Averaging, own)
    runs[1].cut_log()
    made.append(go(again, runs[1], budget, read_every=1))
    assert [(c.step, c.passes.total, c.steps_cost) for c in made[:1]] == [
        (c.step, c.passes.total, c.steps_cost) for c in made[1:]
    ]
    for a, b in ((whole.network, again.network), (whole.model, again.model)):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), name
    assert (whole.round, whole.round_start) == (again.round, again.round_start)
    assert len(diary(cut).refreshed_at) + len(diary(again).refreshed_at) == len(diary(whole).refreshed_at)
    assert comparable(runs[0].metrics()) == comparable(runs[1].metrics())


def test_a_checkpoint_of_another_stage_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.save_state("1-toy", {"step": 3, "training": {}})
    with pytest.raises(UserError, match=r"1-toy\.safetensors does not fit this run"):
        go(at_work(), run, budget=100)


@pytest.mark.parametrize("epochs", [0.5, 2])
def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, epochs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad gradient shows in the next step's loss, or in none if it was the last step, as of 6 here."""

    def bad(self: Noting, network: Classifier, batch: Batch, progress: float) -> None:
        if len(self.progress) == 6:
            next(network.parameters()).data.fill_(math.nan)

    monkeypatch.setattr(Noting, "after_step", bad)
    run = run_of(tmp_path)
    with pytest.raises(Diverged, match=r"weights became NaN or infinite by step 6 .*1-toy.*\(step 5\)"):
        go(at_work(own=Plain(epochs=epochs, least_images=0)), run, save_every=0.0)
    saved = run.load_state("1-toy")
    assert saved is not None
    assert saved["step"] == 5
    assert all_finite(saved)

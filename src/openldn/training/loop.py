"""The only training loop: step, log, evaluate, save, resume. It knows no system.

Each step first seeds torch from (seed, stage, step), and the rows of its batch follow from the same numbers.
So there is no random state to save, and a resumed run equals an uninterrupted one.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.errors import Diverged, UserError
from openldn.maths import torch_private as foreach
from openldn.nets.classifier import Classifier, Predict
from openldn.nets.cost import Passes
from openldn.progress import Watcher
from openldn.run import Run
from openldn.training.moving_average import MovingAverage
from openldn.training.optimisers import discriminative_rates, optimiser
from openldn.training.schedules import downsized, learning_rate, progressive_size
from openldn.training.settings import PretrainedSettings, Settings
from openldn.training.stage import Objective, Stage

Evaluation = dict[str, Any]
EPOCH = 1024  # steps, in which the setting `period` is given
REFRESH_SHARE = 0.2  # of a budget, the most that refreshes may take


@dataclass
class Clock:
    """How far a stage has come: the spent share of its limit, in steps, in image passes, or both."""

    max_steps: int | None
    max_passes: float | None
    step: int = 0
    seconds: float = 0.0
    passes: Passes = field(default_factory=Passes)
    steps_cost: float = 0.0  # image passes of all steps, without refreshes
    last_cost: float = 0.0  # image passes of the last step

    @property
    def progress(self) -> float:
        """From 0 to 1. Schedules and refreshes follow it."""
        by_steps = self.step / self.max_steps if self.max_steps else 0.0
        by_passes = self.passes.total / self.max_passes if self.max_passes else 0.0
        return min(1.0, max(by_steps, by_passes))

    @property
    def expired(self) -> bool:
        """Whether the limit is reached; a budget is met to within half a step."""
        by_steps = self.max_steps is not None and self.step >= self.max_steps
        spent = self.passes.total + 0.5 * self.last_cost
        return self.step > 0 and (by_steps or (self.max_passes is not None and spent >= self.max_passes))

    @property
    def expected_steps(self) -> float:
        """Of the whole stage, as far as can be told by now."""
        by_steps = math.inf if self.max_steps is None else self.max_steps
        by_passes = math.inf
        if self.max_passes is not None and self.steps_cost:
            left = (self.max_passes - self.passes.total) * self.step / self.steps_cost
            by_passes = self.step + left
        return min(by_steps, by_passes)


class Training:
    """A stage at work: a network, an objective, an optimiser, a moving average."""

    def __init__(self, stage: Stage, problem: Problem, network: Classifier, settings: Settings):
        assert stage.objective is not None
        self.stage, self.network, self.settings = stage, network, settings
        slower = None
        if isinstance(settings, PretrainedSettings):
            network.freeze_first(settings.frozen_share, problem.size)
            slower = discriminative_rates(network.backbone, settings.backbone_lr, settings.early_lr)
        self.objective: Objective = stage.objective(problem, network, settings)
        self.objective.to(next(network.parameters()).device)
        self.optimiser = optimiser(
            settings.optimiser, nn.ModuleList([network, self.objective]), slower, settings.l2
        )
        self.average = MovingAverage(network) if self.objective.averaged else None
        self.composition = self.objective.composition()
        self.refreshes: int | None = getattr(settings, "refreshes", None)
        self.period: float | None = getattr(settings, "period", None)
        self.round = self.round_start = 0  # batches are drawn anew in each round
        self.refreshed = 0.0  # progress at the last refresh
        self.refresh_cost = 0.0  # image passes

    @property
    def problem(self) -> Problem:
        return self.objective.problem

    @property
    def model(self) -> Classifier:
        """The network that predictions come from."""
        return self.network if self.average is None else self.average.network

    def clock(self, budget: float | None) -> Clock:
        """A clock with the stage's limit: its settings', or a budget in image passes."""
        n, counted = len(self.problem.unlabelled), self.composition.counted
        most = self.objective.max_steps()
        if budget is not None and self.settings.epochs is None:
            return Clock(most, budget)
        passes = max(self.settings.epochs or 0.0, (self.settings.least_images or 0) / n)
        steps = max(1, round(passes * n / counted))
        return Clock(steps if most is None else min(steps, most), None)

    def begin(self, previous: Predict | None) -> None:
        """Before the first step."""
        with self.downsized():
            self.objective.begin(self.network, previous)
        if self.refreshes and self.objective.refresh_at_start:
            self.objective.refresh(self.network, 0.0)
        if self.average is not None:
            self.average.network.load_state_dict(self.network.state_dict())

    def resize(self, progress: float) -> None:
        """Progressive resizing, where the settings ask for it."""
        if getattr(self.settings, "progressive_resizing", False):
            size = progressive_size(progress, self.problem.size)
            self.network.training_size = self.model.training_size = size

    @contextmanager
    def downsized(self) -> Iterator[None]:
        """Within, images are downsized by `settings.resolution`, where a stage has that."""
        if not isinstance(self.settings, PretrainedSettings):
            yield
            return
        size = self.network.input_size or self.problem.size
        size = downsized(size, self.settings.resolution)
        self.network.training_size = self.model.training_size = size
        try:
            yield
        finally:
            self.network.training_size = self.model.training_size = None

    def step(self, batches: Batches, clock: Clock) -> Mapping[str, Tensor]:
        """One step of the optimiser, and what follows it."""
        progress = clock.progress
        lr = learning_rate(self.settings.lr, self.settings.schedule, progress)
        self.resize(progress)
        batch = batches[clock.step - self.round_start]
        self.optimiser.zero_grad()
        with self.downsized():
            losses = self.objective.losses(self.network, self.model, batch, progress)
            torch.stack([*losses.values()]).sum().backward()
            self.optimiser.step(lr)
            self.objective.after_step(self.network, batch, progress)
        if self.average is not None:
            horizon = self.settings.ema_share * clock.expected_steps  # type: ignore[attr-defined]
            horizon = min(horizon, getattr(self.settings, "ema_steps", math.inf))
            # A network that continues is itself the first of those that are averaged.
            self.average.update(self.network, clock.step + self.stage.continues, horizon)
        if decay := getattr(self.settings, "weight_decay", 0.0):
            trained: list[Tensor] = [p for p in self.network.parameters() if p.requires_grad]
            with torch.no_grad():
                foreach.mul_(trained, 1 - decay * lr)
        return losses

    def end_of_round(self, clock: Clock) -> bool:
        """Whether a round ends here: at a refresh, or, for stages without, after a pass over the images.

        Refreshes are evenly spaced, but so far apart that they take at most a fifth of a budget.
        """
        if clock.expired:
            return False
        if self.period is not None:
            return clock.step - self.round_start >= round(EPOCH * self.period)
        if self.refreshes == 0:
            return False
        if self.refreshes is None:
            each = math.ceil(len(self.problem.unlabelled) / self.composition.counted)
            return clock.step - self.round_start >= each
        apart = 1 / (self.refreshes + (not self.objective.refresh_at_start))
        if clock.max_passes is not None:
            apart = max(apart, self.refresh_cost / clock.max_passes / REFRESH_SHARE)
        return clock.progress - self.refreshed >= apart - 1e-9

    def next_round(self, clock: Clock) -> None:
        """Refreshes, and begins the next round."""
        self.round, self.round_start = self.round + 1, clock.step
        if self.refreshes or self.period is not None:
            progress, before = clock.progress, clock.passes.total
            self.resize(progress)
            self.objective.refresh(self.model, progress)
            self.refreshed, self.refresh_cost = progress, clock.passes.total - before

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "network": self.network.state_dict(),
            "average": {} if self.average is None else self.average.network.state_dict(),
            "objective": self.objective.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "round": [self.round, self.round_start, self.refreshed, self.refresh_cost],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.objective.load_state_dict(state["objective"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])
        self.round, self.round_start, self.refreshed, self.refresh_cost = state["round"]


def train(
    training: Training,
    run: Run,
    *,
    checkpoint: str,
    number: int,
    seed: int,
    device: torch.device,
    budget: float | None,
    previous: Predict | None,
    evaluate: Callable[[Classifier], Evaluation] | None,
    evaluations: int,
    watcher: Watcher,
    save_every: float = 60.0,
    read_every: int = 10,
) -> Clock:
    """Takes a stage to its end, from its checkpoint if there is one.

    It is evaluated `evaluations` times less one: the end is the caller's. Losses are read from the device,
    and checked to be finite, every `read_every` steps and before every save.
    """
    name, clock = training.stage.name, training.clock(budget)
    losses = Losses(name, run, checkpoint)
    if saved := run.load_state(checkpoint):
        try:
            training.load_state_dict(saved["training"])
            losses.load_state_dict(saved["losses"])
            clock.step, clock.seconds = saved["step"], saved["seconds"]
            clock.passes.total, clock.steps_cost, clock.last_cost = (
                saved[name] for name in ("passes", "steps_cost", "last_cost")
            )
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError):
            raise UserError(
                f"{run.checkpoint(checkpoint)} does not fit this run; remove it and resume, or train again"
            ) from None
    else:
        torch.manual_seed(mixed_seed(seed, number))
        with clock.passes:
            training.begin(previous)
        guess = training.objective.refresh_passes * len(training.problem.unlabelled)
        training.refresh_cost = max(clock.passes.total, guess)
    losses.last_good = clock.step

    started = last_save = time.monotonic()
    before = clock.seconds

    def where() -> dict[str, Any]:
        """Position in the stage, for a line of the log or a checkpoint."""
        clock.seconds = round(before + time.monotonic() - started, 3)
        return {"phase": name, "step": clock.step, "seconds": clock.seconds, "passes": clock.passes.total}

    watcher.started(name, clock.progress, clock.step)
    finished = False
    try:
        batches: Batches | None = None
        while not clock.expired:
            if batches is None:
                batches = Batches(
                    training.problem,
                    n_labelled=training.composition.labelled,
                    n_unlabelled=training.composition.unlabelled,
                    labelled_views=training.objective.labelled_views,
                    unlabelled_views=training.objective.unlabelled_views,
                    seed=(seed, number, training.round),
                    device=device,
                )
            torch.manual_seed(mixed_seed(seed, number, clock.step + 1))
            progress, spent = clock.progress, clock.passes.total
            with clock.passes:
                losses.add(clock.step + 1, training.step(batches, clock))
            clock.step += 1
            clock.last_cost = clock.passes.total - spent
            clock.steps_cost += clock.last_cost
            if training.end_of_round(clock):
                with clock.passes:
                    training.next_round(clock)
                batches = None

            last = clock.expired
            save = last or time.monotonic() - last_save > save_every
            log = last or int(100 * clock.progress) > int(100 * progress)
            if log or save or losses.unread >= read_every:
                losses.read()
                watcher.stepped(clock.progress, clock.step, losses.means())
                if log:
                    run.log({**where(), **losses.means(), **training.objective.diagnostics()})
                    losses.forget()
            crossed = int(evaluations * clock.progress) > int(evaluations * progress)
            if evaluate is not None and crossed and not last:
                training.resize(clock.progress)
                result = evaluate(training.model)
                run.log({**where(), **result})
                watcher.evaluated(result)
            if save:
                if last:
                    training.resize(1.0)
                state = training.state_dict()
                if not all_finite(state):
                    raise losses.diverged(f"weights became NaN or infinite by step {clock.step}")
                run.save_state(
                    checkpoint,
                    {
                        **where(),
                        "steps_cost": clock.steps_cost,
                        "last_cost": clock.last_cost,
                        "losses": losses.state_dict(),
                        "training": state,
                    },
                )
                losses.last_good, last_save = clock.step, time.monotonic()
        training.resize(1.0)
        finished = True
    finally:
        watcher.ended(finished)
    return clock


class Losses:
    """Losses of recent steps: kept on the device for a few, then read and checked together.

    Means are over all steps since the last line of the log, so the log does not depend on the clock.
    """

    def __init__(self, stage: str, run: Run, checkpoint: str):
        self.stage, self.run, self.checkpoint = stage, run, checkpoint
        self.last_good = 0
        self._names: list[str] = []
        self._kept: list[Tensor] = []
        self._first = 0
        self._sum, self._n = torch.zeros(0, dtype=torch.float64), 0

    @property
    def unread(self) -> int:
        return len(self._kept)

    def add(self, step: int, losses: Mapping[str, Tensor]) -> None:
        """Keeps the losses of a step."""
        if not self._kept:
            self._first = step
        self._names = [*losses]
        self._kept.append(torch.stack([loss.detach() for loss in losses.values()]))

    def read(self) -> None:
        """Reads what is kept; an error if a loss is not finite."""
        if not self._kept:
            return
        values = torch.stack(self._kept).cpu().double()  # (steps, terms)
        self._kept = []
        bad = torch.nonzero(~values.isfinite())
        if len(bad):
            i, term = bad[0].tolist()
            raise self.diverged(
                f"the loss {self._names[term]!r} became {float(values[i, term])} at step {self._first + i}"
            )
        self._sum = values.sum(dim=0) + (self._sum if self._n else 0)
        self._n += len(values)

    def means(self) -> dict[str, float]:
        """Mean losses since `forget`."""
        return dict(zip(self._names, (self._sum / max(1, self._n)).tolist(), strict=False))

    def forget(self) -> None:
        self._sum, self._n = torch.zeros(0, dtype=torch.float64), 0

    def diverged(self, what: str) -> Diverged:
        """The error to raise; it names the last good checkpoint."""
        file = self.run.checkpoint(self.checkpoint)
        earlier = sorted(file.parent.glob("*.safetensors"))
        if file.exists():
            good = f"the last good checkpoint is {file} (step {self.last_good})"
        else:
            good = f"the last good checkpoint is {earlier[-1]}" if earlier else "there is no checkpoint yet"
        return Diverged(f"{what} of stage {self.stage}; {good}: try another --seed, or --set lr=... lower")

    def state_dict(self) -> dict[str, Any]:
        return {"names": self._names, "sum": self._sum, "n": self._n}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._names, self._sum, self._n = list(state["names"]), state["sum"].double(), int(state["n"])


def all_finite(state: Any) -> bool:
    """Whether every number in a tree of dictionaries, lists and tensors is finite."""
    if isinstance(state, Tensor):
        return not state.is_floating_point() or bool(state.isfinite().all())
    parts = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return all(all_finite(part) for part in parts)


def mixed_seed(*numbers: int) -> int:
    """A well-mixed 63-bit seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""The only training loop: step, log, evaluate, save, resume. It knows no method.

Each step begins by seeding torch from (seed, phase, step), and which rows it gets follows from the same
numbers. So there is no random state to save, and a run that was stopped goes on exactly as it would have.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from openldn.data.batches import Batch, Batches
from openldn.data.problem import Problem
from openldn.errors import Diverged, UserError
from openldn.nets.classifier import Passes, Says
from openldn.optimisers import Optimiser
from openldn.run import Run

Evaluation = dict[str, Any]


class Phase(Protocol):
    """A method at work: something that improves a network one batch at a time.

    `progress` is the share of the phase's steps already made; ramps, schedules and refreshes follow it.
    """

    name: str
    labelled_views: tuple[str, ...]
    unlabelled_views: tuple[str, ...]
    problem: Problem  # the working sets; they may change at the end of an epoch
    n_labelled: int  # images a step
    n_unlabelled: int
    steps: int  # of the whole phase
    epoch: int  # steps of an epoch
    optimiser: Optimiser

    @property
    def model(self) -> nn.Module:
        """The network that predictions come from."""
        ...

    def begin(self, previous: Says | None) -> None:
        """Called once, before the first step, with what the phase before says of images."""
        ...

    def learning_rate(self, progress: float) -> float: ...

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        """Named losses; the loop descends on their sum."""
        ...

    def after_step(self, batch: Batch, progress: float) -> None:
        """What follows the descent (progress is that of the step)."""
        ...

    def after_epoch(self, progress: float) -> None:
        """What follows an epoch, and the last step (progress includes it)."""
        ...

    def figures(self) -> Mapping[str, float]:
        """What to log beside the losses, about the last step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the phase would need to go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Watcher(Protocol):
    """Someone who looks on: a progress bar, a log, a test."""

    def started(self, phase: str, step: int, steps: int) -> None: ...
    def stepped(self, step: int, losses: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, evaluation: Evaluation) -> None: ...
    def ended(self) -> None:
        """The phase is over, at its end or by an error."""
        ...


def train(
    phase: Phase,
    run: Run,
    *,
    number: int,
    seed: int,
    device: torch.device,
    previous: Says | None,
    evaluate: Callable[[nn.Module], Evaluation] | None,
    watcher: Watcher,
    save_every: float = 60.0,
    read_every: int = 10,
    evaluations: int = 10,
) -> None:
    """Takes a phase to its end, from its checkpoint if there is one.

    Losses are read from the device, and checked to be finite, every `read_every` steps and before every save.
    """
    name = f"{number}-{phase.name}"
    step, seconds, passes = 0, 0.0, Passes()
    if saved := run.load_state(name):
        try:
            phase.load_state_dict(saved["phase"])
            step, seconds, passes.total = saved["step"], saved["seconds"], saved["passes"]
        except (RuntimeError, KeyError, ValueError):
            raise UserError(
                f"{run.checkpoint(name)} does not fit this run; remove it and resume, or train again"
            ) from None
    else:
        torch.manual_seed(mixed_seed(seed, number))
        with passes:
            phase.begin(previous)
    last_good = step

    started = last_save = time.monotonic()

    def noted() -> dict[str, Any]:
        """Where the phase is, for a line of the log or a checkpoint."""
        now = round(seconds + time.monotonic() - started, 3)
        return {"phase": phase.name, "step": step, "seconds": now, "passes": passes.total}

    readings = Readings(phase.name, run, name)
    # A run is logged some hundred times and evaluated so often, however long it is.
    log_every = max(1, phase.steps // 100)
    evaluate_every = math.ceil(phase.steps / max(1, evaluations))
    watcher.started(phase.name, step, phase.steps)
    try:
        batches: Batches | None = None
        while step < phase.steps:
            epoch, i = divmod(step, phase.epoch)
            if batches is None or i == 0:
                batches = Batches(
                    phase.problem,
                    n_labelled=phase.n_labelled,
                    n_unlabelled=phase.n_unlabelled,
                    labelled_views=phase.labelled_views,
                    unlabelled_views=phase.unlabelled_views,
                    seed=(seed, number, epoch),
                    device=device,
                )
            progress = step / phase.steps
            torch.manual_seed(mixed_seed(seed, number, step + 1))
            batch = batches[i]

            with passes:
                losses = phase.step(batch, progress)
                phase.optimiser.zero_grad()
                torch.stack([*losses.values()]).sum().backward()
                phase.optimiser.step(phase.learning_rate(progress))
                phase.after_step(batch, progress)
            step += 1
            readings.add(step, losses)

            last = step == phase.steps
            epoch_ended = step % phase.epoch == 0
            save = last or time.monotonic() - last_save > save_every
            if last or save or epoch_ended or step % log_every == 0 or len(readings) >= read_every:
                means = readings.read(last_good)
                figures: Mapping[str, float] = {}
                if last or step % log_every == 0:
                    figures = phase.figures()
                    run.log({**noted(), **means, **figures})
                watcher.stepped(step, {**means, **figures})
            if epoch_ended or last:
                with passes:
                    phase.after_epoch(step / phase.steps)
            if evaluate and (last or step % evaluate_every == 0):
                result = evaluate(phase.model)
                run.log({**noted(), **result})
                watcher.evaluated(step, result)
            if save:
                state = phase.state_dict()
                if not all_finite(state):
                    raise Diverged(
                        f"weights became NaN or infinite by step {step} of phase {phase.name}; "
                        f"{readings.kept(last_good)}: try another --seed or --backbone"
                    )
                run.save_state(name, {**noted(), "phase": state})
                last_good, last_save = step, time.monotonic()
    finally:
        watcher.ended()


class Readings:
    """Losses as they come from the device: kept there for a few steps, then read and checked together."""

    def __init__(self, phase: str, run: Run, checkpoint: str):
        self.phase, self.run, self.checkpoint = phase, run, checkpoint
        self._names: list[str] = []
        self._kept: list[Tensor] = []
        self._first = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, step: int, losses: Mapping[str, Tensor]) -> None:
        """Keeps the losses of a step."""
        if not self._kept:
            self._first = step
        self._names = [*losses]
        self._kept.append(torch.stack([loss.detach() for loss in losses.values()]))

    def read(self, last_good: int) -> dict[str, float]:
        """Mean losses since the last reading; an error if one of them was not finite."""
        values = torch.stack(self._kept).cpu()  # (steps, terms)
        self._kept = []
        bad = torch.nonzero(~values.isfinite())
        if len(bad):
            i, term = bad[0].tolist()
            raise Diverged(
                f"the loss term {self._names[term]!r} became {float(values[i, term])} at step "
                f"{self._first + i} of phase {self.phase}; {self.kept(last_good)}: "
                "try another --seed or --backbone"
            )
        return dict(zip(self._names, values.mean(dim=0).tolist(), strict=True))

    def kept(self, last_good: int) -> str:
        """Which checkpoint is the last good one, in words."""
        file = self.run.checkpoint(self.checkpoint)
        if file.exists():
            return f"the last good checkpoint is {file} (step {last_good})"
        before = sorted(file.parent.glob("*.safetensors"))
        return f"the last good checkpoint is {before[-1]}" if before else "there is no checkpoint yet"


def all_finite(state: Any) -> bool:
    """Whether every number in a tree of dictionaries, lists and tensors is finite."""
    if isinstance(state, Tensor):
        return not state.is_floating_point() or bool(state.isfinite().all())
    parts = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return all(all_finite(part) for part in parts)


def mixed_seed(*numbers: int) -> int:
    """A well-mixed 63-bit seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))

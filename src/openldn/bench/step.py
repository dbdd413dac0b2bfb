"""The cost of the bi-level update in a step of stage 1: time and memory, in units of a plain step.

Each kind of step takes turns with a plain one, on the same images, in float32 on the CPU; a plain step also
in bfloat16, where that is faster. Timing runs in a process of its own, and so does the step of each memory
figure.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale, mean
from openldn.bench.isolation import in_new_process, memory
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, pick, precision
from openldn.maths.losses import pair_loss
from openldn.methods.openldn import DISCOVER, Discover, Settings
from openldn.model import new_network
from openldn.nets import backbones
from openldn.nets.classifier import Classifier, running_statistics_frozen
from openldn.nets.similarity import PairSimilarity
from openldn.training.loop import Training

NETWORKS = {"small": (100, 200, 400), "resnet18": (100, 200)}  # with images per step
ROUNDS = 2  # timed turns

FAST = Settings()
NEVER = replace(FAST, omega_every=10**9)
EVERY = replace(FAST, omega_every=1)
ALL_ROWS = replace(EVERY, omega_rows="all")
PLAIN, BFLOAT16 = "plain", "plain, bfloat16"
OMEGA_ONLY, DOUBLE_BACKWARD = "double backward, Ω only", "double backward"
KINDS = {
    PLAIN: NEVER,
    BFLOAT16: NEVER,
    f"Ω every {FAST.omega_every}th step, few rows (fast)": FAST,
    "Ω every step, few rows": EVERY,
    "Ω every step, all rows": ALL_ROWS,
    "Ω every step, all rows, paper's order": replace(ALL_ROWS, order="omega-first"),
    OMEGA_ONLY: NEVER,
    DOUBLE_BACKWARD: NEVER,
}


@dataclass(frozen=True)
class Step:
    """One kind of step beside a plain one."""

    network: str
    images: int
    kind: str
    seed: int

    @property
    def record(self) -> Mapping[str, Any]:
        return {"network": self.network, "images": self.images, "kind": self.kind, "rounds": ROUNDS}

    @property
    def modules(self) -> Sequence[str]:
        return ("openldn.bench.step",)

    def __call__(self, path: Path, quiet: bool) -> Figures:
        args = self.network, self.images, self.seed
        mib = {kind: in_new_process(peak_memory, *args, kind) for kind in {PLAIN, self.kind}}
        timed = in_new_process(seconds, *args, self.kind, ROUNDS)
        return {
            "seconds": timed[self.kind],
            "plain steps": timed[self.kind] / timed[PLAIN],
            "MiB": mib[self.kind],
            "MiB in plain steps": mib[self.kind] / mib[PLAIN],
            **({"share of peak": 100 * timed["share of peak"]} if "share of peak" in timed else {}),
        }

    def where(self, path: Path) -> str:
        return "measuring"


# ---------------------------------------------------------------------------------------- kinds of steps


def step_of(network: str, n: int, seed: int, kind: str) -> Callable[[], None]:
    """A step on n images, a quarter of them labelled; unlabelled images have two views."""
    torch.manual_seed(seed)
    labels = torch.where(torch.arange(2 * n) % 4 == 0, torch.arange(2 * n) // 4 % 5, -1)
    images = torch.randint(0, 256, (2 * n, 3, 32, 32), dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(2 * n))), tuple("abcde"), n_novel=5)
    net = new_network(problem, DISCOVER, network, pick("cpu"))
    net.mixed_precision = kind == BFLOAT16
    training = training_of(problem, net, replace(KINDS[kind], batch=n))
    (l, u, _), clock = training.composition, training.clock(None)  # noqa: E741
    x = torch.rand(l + 2 * u, 3, 32, 32)
    batch = Batch((x[:l],), torch.arange(l) % 5, tuple(x[l:].split(u)), torch.arange(u))

    def step() -> None:
        if kind in (OMEGA_ONLY, DOUBLE_BACKWARD):
            double_backward(training, batch, omega_only=kind == OMEGA_ONLY)
        training.step([batch], clock)  # type: ignore[arg-type]

    return step


def training_of(problem: Problem, network: Classifier, settings: Settings) -> Training:
    """Stage 1; with the settings `NEVER`, Ω is not even updated at the first step."""
    training = Training(DISCOVER, problem, network, settings)
    assert isinstance(training.objective, Discover)
    if settings.omega_every == NEVER.omega_every:
        training.objective.n_steps = 1
    return training


def double_backward(training: Training, batch: Batch, omega_only: bool) -> None:
    """The textbook hypergradient: all pairs are built, and the look-ahead is a graph to differentiate.

    A plain `backward()`, as in the authors' code, also computes gradients of θ that nobody uses. `omega_only`
    leaves them out.
    """
    network, objective, y = training.network, training.objective, batch.y
    assert isinstance(objective, Discover)
    omega, alpha = objective.outer.omega, objective.settings.alpha
    assert isinstance(omega, PairSimilarity)
    theta = {name: p for name, p in network.named_parameters() if p.requires_grad}
    x, n = torch.cat([*batch.x, *batch.u]), len(y) + len(batch.rows)
    with running_statistics_frozen(network):
        z, logits = network(x)
        terms = objective.terms(z, logits, y, attach=True)
        terms["pair"] = pair_loss(logits[:n].softmax(dim=1), similarities(omega, z[:n]))
        loss = torch.stack([*terms.values()]).sum()
        slopes = torch.autograd.grad(loss, [*theta.values()], create_graph=True)
        ahead = {name: p - alpha * g for (name, p), g in zip(theta.items(), slopes, strict=True)}
        _, logits = functional_call(network, ahead, (x,))
        outer = F.cross_entropy(logits[: len(y)], y)
        objective.outer.optimiser.zero_grad()
        outer.backward(inputs=[*omega.parameters()] if omega_only else None)
    objective.outer.optimiser.step(1e-4)


def similarities(omega: PairSimilarity, z: Tensor) -> Tensor:
    """f_Ω as the paper writes it: a network on pairs of features.  (n, d) -> (n, n)"""
    n = len(z)
    pairs = torch.cat([z.repeat_interleave(n, dim=0), z.repeat(n, 1)], dim=1)  # (n * n, 2d)
    return torch.sigmoid(omega.out(torch.relu(omega.hidden(pairs)))).view(n, n)


# --------------------------------------------------------------------------------------------- measuring


def peak_memory(network: str, n: int, seed: int, kind: str) -> float:
    """MiB that a first step takes at its peak, beyond what was there before."""
    step = step_of(network, n, seed, kind)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = memory("VmRSS")
    step()
    return memory("VmHWM") - before


def seconds(network: str, n: int, seed: int, kind: str, rounds: int) -> dict[str, float]:
    """Median seconds of a plain step and of one of that kind, over turns.

    If a kind updates Ω every so many steps, a turn has as many. Of plain steps also their share of the speed
    of matrix products.
    """
    keep_freed_memory()  # as the command line does
    steps = {one: step_of(network, n, seed, one) for one in (PLAIN, kind)}
    taken: dict[str, list[float]] = {one: [] for one in steps}
    for turn in range(rounds + 1):
        for one, step in steps.items():
            period = FAST.omega_every if KINDS[one] is FAST else 1
            started = time.perf_counter()
            for _ in range(period):
                step()
            if turn:  # the first is a warm-up
                taken[one].append((time.perf_counter() - started) / period)
    found = {one: statistics.median(times) for one, times in taken.items()}
    if kind in (PLAIN, BFLOAT16):
        with FlopCounterMode(display=False) as counter:
            steps[PLAIN]()
        peak = matmul_peak(torch.bfloat16 if kind == BFLOAT16 else torch.float32)
        found["share of peak"] = counter.get_total_flops() / found[kind] / peak
    return found


def matmul_peak(dtype: torch.dtype = torch.float32, size: int = 1024, duration: float = 1.0) -> float:
    """FLOP/s of square matrix products on the CPU, the best of many: an upper bound for training."""
    a = torch.randn(size, size, generator=torch.Generator()).to(dtype)  # does not move the global generator
    best, end = math.inf, time.perf_counter() + duration
    while time.perf_counter() < end:
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


# --------------------------------------------------------------------------------------------- the bench


def cells(scale: Scale) -> list[Cell]:
    """A cell for each network, number of images and kind of step; a seed is a repetition."""
    for network in scale.only:
        backbones.builder(network)  # an error if there is none
    half = precision(pick("cpu")) == "bfloat16"
    return [
        Cell((network, str(n), kind), seed, Step(network, n, kind, seed))
        for network in scale.only or NETWORKS
        for n in NETWORKS.get(network, NETWORKS["resnet18"])
        for kind in KINDS
        if half or kind != BFLOAT16
        for seed in range(scale.seeds)
    ]


def number(heading: str, name: str, form: str) -> Column:
    """The mean of a figure, as `form` has it; empty where there is none."""

    def text(of: Sequence[Result]) -> str:
        return format(mean(of, name), form) if name in of[0].figures else ""

    return Column(heading, text)


BENCH = Bench(
    name="step",
    about="the cost of the bi-level update: a step of stage 1, in units of a plain step",
    fields=("network", "images per step", "step"),
    scale=Scale(seeds=1),
    measured_on="random images of 32 pixels",
    cells=cells,
    columns=(
        number("seconds", "seconds", ".2f"),
        number("seconds, in plain steps", "plain steps", ".2f"),
        number("MiB at the peak", "MiB", ",.0f"),
        number("MiB, in plain steps", "MiB in plain steps", ".2f"),
        number("percent of matmul peak", "share of peak", ".0f"),
    ),
    said=("seconds", "plain steps", "MiB"),
    alone=True,
)

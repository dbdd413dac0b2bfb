"""The cost of the bi-level update in a step of stage 1: time and memory, in units of a plain step.

    python benchmarks/step.py [--networks small resnet18] [--images 100 200 400] [--rounds 3]

All kinds of step take turns on the same images, in float32 on the CPU; a plain step also in bfloat16, where
that is faster. Timing runs in a process of its own, and so does the one step of each memory figure. Results
are kept in --out and are not measured again.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, pick, precision
from openldn.maths.losses import pair_loss
from openldn.methods.openldn import DISCOVER, Discover, Settings
from openldn.model import new_network
from openldn.nets.classifier import Classifier, running_statistics_frozen
from openldn.nets.similarity import PairSimilarity
from openldn.training.loop import Training

FAST = Settings()
ALL_ROWS = replace(FAST, omega_rows="all")
PLAIN, BFLOAT16, EXACT = "plain", "plain, bfloat16", "Ω every step, few rows"
AMORTISED = f"Ω every {FAST.omega_every}th step, few rows (fast)"
OMEGA_ONLY, DOUBLE_BACKWARD = "double backward, Ω only", "double backward"
KINDS = {  # settings of stage 1, and whether Ω is updated at every step
    PLAIN: (FAST, False),
    BFLOAT16: (FAST, False),
    EXACT: (FAST, True),
    "Ω every step, all rows": (ALL_ROWS, True),
    "Ω every step, all rows, paper's order": (replace(ALL_ROWS, order="omega-first"), True),
    OMEGA_ONLY: (ALL_ROWS, False),
    DOUBLE_BACKWARD: (ALL_ROWS, False),
}


def step_of(network: str, n: int, kind: str) -> Callable[[], None]:
    """A step on n images, a quarter of them labelled; unlabelled images have two views."""
    torch.manual_seed(0)
    labels = torch.where(torch.arange(2 * n) % 4 == 0, torch.arange(2 * n) // 4 % 5, -1)
    images = torch.randint(0, 256, (2 * n, 3, 32, 32), dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(2 * n))), tuple("abcde"), n_novel=5)
    net = new_network(problem, DISCOVER, network, pick("cpu"))
    net.mixed_precision = kind == BFLOAT16
    settings, bilevel = KINDS[kind]
    training = training_of(problem, net, replace(settings, batch=n), bilevel)
    (l, u, _), clock = training.composition, training.clock(None)  # noqa: E741
    x = torch.rand(l + 2 * u, 3, 32, 32)
    batch = Batch((x[:l],), torch.arange(l) % 5, tuple(x[l:].split(u)), torch.arange(u))

    def step() -> None:
        if kind in (OMEGA_ONLY, DOUBLE_BACKWARD):
            double_backward(training, batch, omega_only=kind == OMEGA_ONLY)
        training.step([batch], clock)

    return step


def training_of(problem: Problem, network: Classifier, settings: Settings, bilevel: bool) -> Training:
    """Stage 1, in which Ω is updated at every step or never."""
    training = Training(DISCOVER, problem, network, replace(settings, omega_every=1 if bilevel else 10**9))
    if not bilevel:
        training.objective.n_steps = 1  # the first step would update it
    return training


def double_backward(training: Training, batch: Batch, omega_only: bool) -> None:
    """The textbook hypergradient: all pairs are built, and the look-ahead is a graph to differentiate.

    A plain `backward()`, as in the authors' code, also computes gradients of θ that nobody uses. `omega_only`
    leaves them out.
    """
    network, objective, y = training.network, training.objective, batch.y
    assert isinstance(objective, Discover)
    omega, alpha = objective.outer.omega, objective.settings.alpha
    theta = {name: p for name, p in network.named_parameters() if p.requires_grad}
    x, n = torch.cat([*batch.x, *batch.u]), len(y) + len(batch.rows)
    with running_statistics_frozen(network):
        z, logits = network(x)
        terms = objective.terms(z, logits, y, attach=True)
        terms["pair"] = pair_loss(logits[:n].softmax(dim=1), similarities(omega, z[:n]))
        slopes = torch.autograd.grad(sum(terms.values()), [*theta.values()], create_graph=True)
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


# ----------------------------------------------------------------------------------------- measuring


def measure(network: str, n: int, rounds: int) -> dict[str, Any]:
    """Memory and median seconds of each kind of step, and the peak speed of matrix products."""
    kinds = [kind for kind in KINDS if kind != BFLOAT16 or precision(pick("cpu")) == "bfloat16"]
    dtypes = {PLAIN: torch.float32, BFLOAT16: torch.bfloat16}
    return {
        "memory": {kind: in_new_process(peak_memory, network, n, kind) for kind in kinds},
        **in_new_process(seconds, network, n, kinds, rounds),
        "peak": {kind: matmul_peak(dtype) for kind, dtype in dtypes.items() if kind in kinds},
    }


def in_new_process(f: Callable[..., Any], *args: object) -> Any:
    """f(*args) in a process of its own, which returns all memory at its end."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(f, args)


def peak_memory(network: str, n: int, kind: str) -> float:
    """MiB that a step takes at its peak, beyond what was there before."""
    step = step_of(network, n, kind)

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

    before = status("VmRSS")
    step()
    return status("VmHWM") - before


def seconds(network: str, n: int, kinds: list[str], rounds: int) -> dict[str, Any]:
    """Median seconds of each kind over rounds of one step each, and the FLOPs of a plain step."""
    keep_freed_memory()  # as the command line does
    steps = {kind: step_of(network, n, kind) for kind in kinds}
    with FlopCounterMode(display=False) as counter:
        steps[PLAIN]()
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_ in range(rounds + 1):
        for kind, step in steps.items():
            started = time.perf_counter()
            step()
            if round_:  # the first is a warm-up
                taken[kind].append(time.perf_counter() - started)
    medians = {kind: statistics.median(times) for kind, times in taken.items()}
    return {"seconds": medians, "flop": counter.get_total_flops()}


def matmul_peak(dtype: torch.dtype = torch.float32, size: int = 1024, duration: float = 1.0) -> float:
    """FLOP/s of square matrix products on the CPU, the best of many: an upper bound for training."""
    a = torch.randn(size, size, generator=torch.Generator()).to(dtype)  # does not move the global generator
    best, end = math.inf, time.perf_counter() + duration
    while time.perf_counter() < end:
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


# ----------------------------------------------------------------------------------------- reporting


def table(results: dict[str, dict[str, Any]]) -> Table:
    shown = Table(
        "network",
        "images",
        "step",
        "seconds",
        "plain steps",
        "MiB",
        "plain steps",
        "share of matmul peak",
        title="one step of stage 1",
    )
    # The best of all measurements: other load lowers some of them.
    peak = {kind: max(r["peak"].get(kind, 0.0) for r in results.values()) for kind in (PLAIN, BFLOAT16)}
    for name, result in results.items():
        network, n = name.split(":")
        time_of, mib = dict(result["seconds"]), dict(result["memory"])
        time_of[AMORTISED] = time_of[PLAIN] + (time_of[EXACT] - time_of[PLAIN]) / FAST.omega_every
        mib[AMORTISED] = mib[EXACT]
        for kind in (PLAIN, BFLOAT16, AMORTISED, *list(KINDS)[2:]):
            if kind not in time_of:
                continue
            share = result["flop"] / time_of[kind] / peak[kind] if kind in peak else None
            shown.add_row(
                network,
                n,
                kind,
                f"{time_of[kind]:.2f}",
                f"{time_of[kind] / time_of[PLAIN]:.2f}",
                f"{mib[kind]:,.0f}",
                f"{mib[kind] / mib[PLAIN]:.2f}",
                "" if share is None else f"{100 * share:.0f} %",
            )
        shown.add_section()
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["small", "resnet18"], help="backbones")
    parser.add_argument("--images", nargs="+", type=int, default=[100, 200, 400], help="images per step")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps of each kind")
    parser.add_argument("--out", type=Path, default=Path("runs/step.json"), help="file of the results")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    results = {name: r for name, r in results.items() if EXACT in r["seconds"]}  # not of an older version
    for network in args.networks:
        for n in args.images:
            if f"{network}:{n}" not in results:
                print(f"{network}, {n} images", flush=True)
                results[f"{network}:{n}"] = measure(network, n, args.rounds)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(results, indent=1))
    Console(width=130).print(table(results))


if __name__ == "__main__":
    main()

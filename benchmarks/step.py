"""What the bi-level part of a step of stage 1 costs: time and memory, in units of a plain step.

All kinds of step are made in turn, on the same rows, in float32 on the CPU, and a plain one in bfloat16 where
that is faster. They run in a process of their own, and so does the one step of each memory figure. What has
been measured is kept in --out, and a second start goes on from there.
"""

import argparse
import json
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

from openldn.config import PRESETS
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, matmul_peak, pick, precision
from openldn.losses import pair_loss
from openldn.model import new_network
from openldn.nets.classifier import statistics_frozen
from openldn.nets.similarity import PairSimilarity
from openldn.phases.discover import Discover

FAST = PRESETS["fast"].discover
KINDS = {  # settings of stage 1, and whether Ω has its turn
    "plain": (FAST, False),
    "plain, bfloat16": (FAST, False),
    "exact (fast)": (FAST, True),
    "exact (all rows)": (replace(FAST, omega_rows="all"), True),
    "exact (paper's order)": (replace(FAST, omega_rows="all", order="omega-first"), True),
    "double backward": (replace(FAST, omega_rows="all"), None),
    "double backward, every gradient": (replace(FAST, omega_rows="all"), None),
}


def made(network: str, n: int, kind: str) -> Callable[[], None]:
    """A step of that kind on n images, a quarter of them labelled, and the unlabelled ones seen twice."""
    torch.manual_seed(0)
    labels = torch.where(torch.arange(2 * n) % 4 == 0, torch.arange(2 * n) // 4 % 5, -1)
    images = torch.randint(0, 256, (2 * n, 3, 32, 32), dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(2 * n))), tuple("abcde"), n_novel=5)
    settings, due = KINDS[kind]
    net = new_network(problem, network, 10, pick("cpu"))
    net.halved = kind.endswith("bfloat16")
    phase = Discover(problem, net, replace(settings, batch=n, every=1 if due else 10**9))
    l, u = phase.n_labelled, phase.n_unlabelled  # noqa: E741
    x = torch.rand(l + 2 * u, 3, 32, 32)
    batch = Batch((x[:l],), torch.arange(l) % 5, tuple(x[l:].split(u)), torch.arange(u))

    def step() -> None:
        if due is None:
            double_backward(phase, batch, every="every" in kind)
        progress = 1 / phase.steps if not due else 0.0  # the first step is always due
        losses = phase.step(batch, progress)
        phase.optimiser.zero_grad()
        torch.stack([*losses.values()]).sum().backward()
        phase.optimiser.step(1e-3)
        phase.after_step(batch, progress)

    return step


def double_backward(phase: Discover, batch: Batch, every: bool) -> None:
    """The hypergradient the textbook way: all pairs built, the look-ahead a graph, differentiated whole.

    `every` asks for the gradients of θ too, as a plain `backward()` does and the authors' code has it, though
    nobody looks at them; otherwise only what leads to Ω is gone back over.
    """
    network, similarity, y = phase.network, phase.similarity, batch.y
    theta = phase.theta()
    x, n = phase.rows(batch), len(y) + len(batch.rows)
    with statistics_frozen(network):
        z, logits = network(x)
        weak = logits[len(y) : n] if phase.average is None else phase.average.network(batch.u[0]).logits
        terms = phase.losses(z, logits, y, weak, attach=True)
        terms["pair"] = pair_loss(logits[:n].softmax(dim=1), of_pairs(similarity, z[:n]))
        slopes = torch.autograd.grad(sum(terms.values()), [*theta.values()], create_graph=True)
        ahead = {k: p - phase.settings.alpha * g for (k, p), g in zip(theta.items(), slopes, strict=True)}
        _, logits = functional_call(network, ahead, (x,))
        outer = F.cross_entropy(logits[: len(y)], y)
        phase.similarity_optimiser.zero_grad()
        outer.backward(inputs=None if every else [*similarity.parameters()])
    phase.similarity_optimiser.step(1e-4)


def of_pairs(similarity: PairSimilarity, z: Tensor) -> Tensor:
    """f_Ω as the paper writes it: a network on pairs of features.  (n, d) -> (n, n)"""
    n = len(z)
    pairs = torch.cat([z.repeat_interleave(n, dim=0), z.repeat(n, 1)], dim=1)  # (n * n, 2d)
    return torch.sigmoid(similarity.out(torch.relu(similarity.hidden(pairs)))).view(n, n)


def measured(network: str, n: int, rounds: int) -> dict[str, object]:
    """Median seconds of each kind, over rounds in which each is made once after the other; and its memory."""
    kinds = [kind for kind in KINDS if not kind.endswith("bfloat16") or precision(pick("cpu")) == "bfloat16"]
    return {
        "memory": {kind: apart(_memory, network, n, kind) for kind in kinds},
        **apart(_seconds, network, n, kinds, rounds),
        "peak": {
            kind: matmul_peak(dtype=torch.bfloat16 if kind.endswith("bfloat16") else torch.float32)
            for kind in kinds
            if kind.startswith("plain")
        },
    }


def apart(f: Callable[..., Any], *args: object) -> Any:
    """f(*args) in a process of its own, which gives back all memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(f, args)


def _memory(network: str, n: int, kind: str) -> float:
    """MiB that a step takes at its peak, beyond what stood before it."""
    step = made(network, n, kind)

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

    before = status("VmRSS")
    step()
    return status("VmHWM") - before


def _seconds(network: str, n: int, kinds: list[str], rounds: int) -> dict[str, object]:
    keep_freed_memory()  # as the command line does
    steps = {kind: made(network, n, kind) for kind in kinds}
    with FlopCounterMode(display=False) as counted:
        steps["plain"]()
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, step in steps.items():
            started = time.perf_counter()
            step()
            if turn:  # the first round takes memory and chooses kernels
                seconds[kind].append(time.perf_counter() - started)
    return {
        "seconds": {kind: statistics.median(taken) for kind, taken in seconds.items()},
        "flop": counted.get_total_flops(),
    }


def table(results: dict[str, dict[str, object]]) -> Table:
    shown = Table(
        "network",
        "images",
        "step",
        "seconds",
        "times plain",
        "MiB",
        "times plain",
        "of the matmul peak",
        title="one step of stage 1",
    )
    every = FAST.every
    # What the machine can do, when left alone.
    peak = {kind: max(r["peak"].get(kind, 0.0) for r in results.values()) for kind in KINDS}
    for name, result in results.items():
        network, n = name.split(":")
        seconds, mib = dict(result["seconds"]), dict(result["memory"])
        amortised = f"exact (fast), at every {every}th step"
        seconds[amortised] = seconds["plain"] + (seconds["exact (fast)"] - seconds["plain"]) / every
        mib[amortised] = mib["exact (fast)"]
        for kind in ("plain", "plain, bfloat16", amortised, *list(KINDS)[2:]):
            if kind not in seconds:
                continue
            share = result["flop"] / seconds[kind] / peak[kind] if peak.get(kind) else None
            shown.add_row(
                network,
                n,
                kind,
                f"{seconds[kind]:.2f}",
                f"{seconds[kind] / seconds['plain']:.2f}",
                f"{mib[kind]:,.0f}",
                f"{mib[kind] / mib['plain']:.2f}",
                "" if share is None else f"{100 * share:.0f} %",
            )
        shown.add_section()
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["small", "resnet18"])
    parser.add_argument("--images", nargs="+", type=int, default=[100, 200, 400])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/step.json"))
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for network in options.networks:
        for n in options.images:
            if f"{network}:{n}" not in results:
                print(f"{network}, {n} images", flush=True)
                results[f"{network}:{n}"] = measured(network, n, options.rounds)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(results, indent=1))
    Console(width=130).print(table(results))


if __name__ == "__main__":
    main()

"""CIFAR-10 in minutes: the paper's split, the preset `fast`, accuracy stage by stage.

    python benchmarks/cifar10.py --data-dir DIR [--method pu-self-training] [--backbone small] [--seeds 3]
        [--jobs 2]

Half of the classes known; half of their images labelled (every seed), and a tenth (seed 0). The upper bound
is the same network trained with all labels for as long. Accuracy on test images at the last step. Runs are
kept, and resumed if they were stopped. Writes minutes.svg and passes.svg, accuracy against time and against
image passes (1 forward, 2 backward).
"""

import json
import time
from pathlib import Path
from typing import Any

import harness
import torch
import torch.nn.functional as F
from harness import KEYS, spread
from rich.console import Console
from rich.table import Table
from step import matmul_peak
from torch.utils.flop_counter import FlopCounterMode

from openldn import Run, systems
from openldn.data import sources
from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.device import pick, precision
from openldn.job import BACKBONE
from openldn.maths import metrics
from openldn.model import new_network
from openldn.nets.classifier import infer
from openldn.training.optimisers import optimiser
from openldn.training.schedules import learning_rate

Log = list[dict[str, Any]]
UNITS = {"minutes": "minutes", "passes": "million image passes"}


def main() -> None:
    parser = harness.parser(__doc__, seeds=3, out="runs/benchmark-cifar10", jobs=1)
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--method", default="pu-self-training", help="the system")
    parser.add_argument("--backbone", default=BACKBONE["fast"], help="the network")
    parser.add_argument(
        "--epochs", type=float, help="passes over the unlabelled images (default: the preset's)"
    )
    args = parser.parse_args()
    shared = {
        "method": args.method,
        "backbone": args.backbone,
        "data_dir": args.data_dir,
        "epochs": args.epochs,
    }
    choices = [(0.5, seed) for seed in range(args.seeds)] + [(0.1, 0)]
    tasks = [
        (
            args.out / f"{args.method}-{args.backbone}-{share:.0%}-{seed}",
            args.jobs > 1,
            {**shared, "labelled": share, "seed": seed},
        )
        for share, seed in choices
    ]
    curves: dict[str, list[Log]] = {}
    for (share, _), log in zip(choices, harness.pooled(run, tasks, args.jobs), strict=True):
        curves.setdefault(f"{share:.0%} labelled", []).append(log)
        Console(width=110).print(table(curves))
    threads = harness.threads(args.jobs)
    harness.prepare(threads)
    seconds = 60 * total(curves["50% labelled"][0])
    print(f"upper bound, all labels, {seconds / 60:.0f} minutes, {threads} threads: ", end="", flush=True)
    file = args.out / f"ceiling-{args.backbone}.json"
    print(f"{upper_bound(file, args.backbone, args.data_dir, seconds):.1f} % of the test images")
    for unit in UNITS:
        (args.out / f"{unit}.svg").write_text(picture(curves, unit))


def run(path: Path, quiet: bool, choices: dict[str, Any]) -> Log:
    """The log of one run, with minutes and million passes since its start."""
    return log_of(harness.trained(path, "cifar10", quiet=quiet, **choices))


def log_of(run: Run) -> Log:
    lines: Log = []
    before = dict.fromkeys(UNITS, 0.0)  # a log counts from the start of a stage; "final" belongs to the last
    for line in run.metrics():
        if lines and line["phase"] not in (lines[-1]["phase"], "final"):
            before = {unit: lines[-1][unit] for unit in UNITS}
        now = {"minutes": line["seconds"] / 60, "passes": line["passes"] / 1e6}
        lines.append({**line, **{unit: before[unit] + now[unit] for unit in UNITS}})
    return lines


def total(lines: Log, unit: str = "minutes") -> float:
    """Of the whole run, evaluations included."""
    return max(line[unit] for line in lines)


def evaluations(lines: Log) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """The line and the accuracies of each evaluation."""
    return [(line, metrics.headline(line)) for line in lines if "protocols" in line]


def table(curves: dict[str, list[Log]]) -> Table:
    shown = Table(
        "labels",
        "stage",
        *KEYS,
        "minutes since the start",
        "million passes",
        title="CIFAR-10, test images, last step",
    )
    for name, runs in curves.items():
        for stage in dict.fromkeys(line["phase"] for line, _ in evaluations(runs[0])):
            if stage == "final":
                continue
            ends = [[e for e in evaluations(lines) if e[0]["phase"] == stage][-1] for lines in runs]
            cells = [spread([figures[key] for _, figures in ends]) for key in KEYS]
            cells += [spread([line[unit] for line, _ in ends]) for unit in UNITS]
            shown.add_row(name, stage, *cells)
    return shown


def upper_bound(file: Path, backbone: str, data_dir: str | None, seconds: float) -> float:
    """Test accuracy of the network, trained with all labels for so many seconds."""
    if file.exists():
        return float(json.loads(file.read_text()))
    data, device = sources.read_named("cifar10", data_dir), pick("cpu")
    labels = torch.from_numpy(data.train.labels)
    problem = Problem(data.train.pixels, labels, data.train.names, data.classes, n_novel=0)
    (stage,) = systems.find("supervised").stages
    network, half = new_network(problem, stage, backbone, device), precision(device)
    network.mixed_precision, network.flip_tta = half == "bfloat16", True
    muon = optimiser("muon", network)
    batches = Batches(
        problem,
        n_labelled=250,
        n_unlabelled=0,
        labelled_views=("weak",),
        unlabelled_views=(),
        seed=(0, 1, 0),
        device=device,
    )
    started, i, progress, flop, speed = time.monotonic(), 0, 0.0, 0, 0.0
    while progress < 1:
        batch = batches[i]
        with FlopCounterMode(display=False) if i == 0 else torch.enable_grad() as counter:
            F.cross_entropy(network(batch.x[0]).logits, batch.y, label_smoothing=0.1).backward()
        flop = counter.get_total_flops() if i == 0 else flop
        muon.step(learning_rate(2e-3, "warm-up", progress))
        muon.zero_grad()
        i, progress = i + 1, (time.monotonic() - started) / seconds
        speed = i * flop / (time.monotonic() - started)
    right = infer(network, data.test.pixels).logits.argmax(1).numpy() == data.test.labels
    share = speed / matmul_peak(getattr(torch, half))
    print(f"{100 * share:.0f} % of the machine's {half} matmul peak; ", end="", flush=True)
    file.write_text(json.dumps(100 * float(right.mean())))
    return 100 * float(right.mean())


def picture(curves: dict[str, list[Log]], unit: str, width: int = 640, height: int = 360) -> str:
    """Accuracy on test images against minutes or passes, a line for each run and accuracy (SVG)."""
    longest = max(total(lines, unit) for runs in curves.values() for lines in runs)
    figures = [f for runs in curves.values() for lines in runs for _, f in evaluations(lines)]
    least = int(min(f[key] for f in figures for key in KEYS) // 10 * 10)
    colour = {"known": "#1b6ca8", "novel": "#d1495b", "all": "#333333"}

    def x(at: float) -> float:
        return 50 + at / longest * (width - 70)

    def y(percent: float) -> float:
        return height - 40 - (percent - least) / (100 - least) * (height - 60)

    drawn = [
        f'<line x1="50" x2="{width - 20}" y1="{y(p)}" y2="{y(p)}" stroke="#ddd"/>'
        f'<text x="44" y="{y(p) + 4}" text-anchor="end">{p}</text>'
        for p in range(least, 101, 10)
    ]
    drawn += [
        f'<text x="{x(quarter * longest / 4)}" y="{height - 22}" text-anchor="middle">'
        f"{quarter * longest / 4:.2g}</text>"
        for quarter in range(5)
    ]
    for dash, runs in zip(("", "4 3"), curves.values(), strict=False):
        for lines in runs:
            for key in KEYS:
                points = " ".join(f"{x(line[unit]):.1f},{y(f[key]):.1f}" for line, f in evaluations(lines))
                drawn.append(
                    f'<polyline points="{points}" fill="none" stroke="{colour[key]}" '
                    f'stroke-dasharray="{dash}"/>'
                )
    for k, key in enumerate(KEYS):
        drawn.append(f'<text x="{60 + 70 * k}" y="16" fill="{colour[key]}">{key}</text>')
    drawn.append(f'<text x="{width - 20}" y="{height - 6}" text-anchor="end">{UNITS[unit]}</text>')
    drawn.append(
        f'<text x="{60 + 70 * 3}" y="16">lines: 50 % labelled, dashes: 10 %; test images, percent</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">{"".join(drawn)}</svg>\n'
    )


if __name__ == "__main__":
    main()

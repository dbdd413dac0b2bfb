"""CIFAR-10 against the clock: the paper's split, the fast preset, stage by stage.

    python benchmarks/cifar10.py --data-dir DIR [--method rest-refine] [--backbone small] [--seeds 3]
        [--at-once 2]

Half of the classes known; half of their images labelled (every seed) and a tenth (seed 0); and the ceiling,
the same network trained by all labels for as long. Test images, last step. Every run is kept and goes on
where it was stopped; what is finished is not run again. Runs that go on at once share the cores. Writes
minutes.svg and passes.svg, accuracy against either; a pass is one image forward through the network, and
backward counts as two.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from digits import spread
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from openldn import metrics, pipeline
from openldn.config import PRESETS
from openldn.data import sources, workers
from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, matmul_peak, pick, precision
from openldn.model import new_network
from openldn.nets.classifier import infer
from openldn.optimisers import optimiser
from openldn.phases.schedule import learning_rate
from openldn.run import Run

Log = list[dict[str, Any]]
KEYS = ("known", "novel", "all")
UNITS = {"minutes": "minutes", "passes": "million image passes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--method", default="rest-refine")
    parser.add_argument("--backbone", default=PRESETS["fast"].backbone)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time, each on its share of cores")
    parser.add_argument(
        "--epochs", type=float, help="passes over the unlabelled images (default: the preset's)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-cifar10"))
    args = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // args.at_once)
    jobs = [(0.5, seed) for seed in range(args.seeds)] + [(0.1, 0)]
    paths = [args.out / f"{args.method}-{args.backbone}-{share:.0%}-{seed}" for share, seed in jobs]
    curves: dict[str, list[Log]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.at_once, spawn, prepare, (threads,)) as pool:
        waiting = [
            pool.submit(
                run,
                path,
                quiet=args.at_once > 1,
                method=args.method,
                backbone=args.backbone,
                labelled=share,
                seed=seed,
                data_dir=args.data_dir,
                epochs=args.epochs,
            )
            for path, (share, seed) in zip(paths, jobs, strict=True)
        ]
        for done, (share, _) in zip(waiting, jobs, strict=True):
            curves.setdefault(f"{share:.0%} labelled", []).append(done.result())
            Console(width=110).print(table(curves))
    prepare(threads)
    seconds = 60 * total(curves["50% labelled"][0])
    print(
        f"all labels, the same network, {seconds / 60:.0f} minutes, {threads} threads: ", end="", flush=True
    )
    file = args.out / f"ceiling-{args.backbone}.json"
    print(f"{ceiling(file, args.backbone, args.data_dir, seconds):.1f} % of the test images")
    for unit in UNITS:
        (args.out / f"{unit}.svg").write_text(picture(curves, unit))


def prepare(threads: int) -> None:
    """A process works with so many threads, and keeps its memory as the command line does."""
    workers.end_with_owner()
    torch.set_num_threads(threads)
    keep_freed_memory()


def run(path: Path, quiet: bool, **options: Any) -> Log:
    """The log of one run, from the first step to the final evaluation."""
    if path.exists():
        made = pipeline.resume(path, quiet=quiet)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = pipeline.train("cifar10", out=path, quiet=quiet, **options)
    lines: Log = []
    before = dict.fromkeys(UNITS, 0.0)  # a log counts from the start of a phase; "final" goes with the last
    for line in Run.open(made.path).metrics():
        if lines and line["phase"] not in (lines[-1]["phase"], "final"):
            before = {unit: lines[-1][unit] for unit in UNITS}
        now = {"minutes": line["seconds"] / 60, "passes": line["passes"] / 1e6}
        lines.append({**line, **{unit: before[unit] + now[unit] for unit in UNITS}})
    return lines


def total(lines: Log, unit: str = "minutes") -> float:
    """Of training, evaluations included."""
    return max(line[unit] for line in lines)


def evaluations(lines: Log) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """The line and the headline figures of each evaluation."""
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


def ceiling(file: Path, backbone: str, data_dir: str | None, seconds: float) -> float:
    """Test accuracy of the network, trained by all labels for so many seconds."""
    if file.exists():
        return float(json.loads(file.read_text()))
    given = sources.read_named("cifar10", data_dir)
    problem = Problem(
        given.images,
        torch.from_numpy(given.labels),
        tuple(map(str, range(len(given.labels)))),
        given.classes,
        n_novel=0,
    )
    settings = PRESETS["fast"].closed_world
    network = new_network(problem, backbone, 10, pick("cpu"))
    half = precision(pick("cpu"))
    network.halved, network.mirrored = half == "bfloat16", True
    steps = optimiser(settings.optimiser, network)
    batches = Batches(
        problem,
        n_labelled=250,
        n_unlabelled=0,
        labelled_views=("weak",),
        unlabelled_views=(),
        seed=(0, 1, 0),
        device=pick("cpu"),
    )
    started, i, progress, flop, share = time.monotonic(), 0, 0.0, 0, 0.0
    while progress < 1:
        batch = batches[i]
        with FlopCounterMode(display=False) if i == 0 else torch.enable_grad() as counted:
            F.cross_entropy(network(batch.x[0]).logits, batch.y, label_smoothing=0.1).backward()
        flop = counted.get_total_flops() if i == 0 else flop
        steps.step(learning_rate(settings.lr, "decay", progress))
        steps.zero_grad()
        i, progress = i + 1, (time.monotonic() - started) / seconds
        share = i * flop / (time.monotonic() - started)
    right = infer(network, given.test_images).logits.argmax(1).numpy() == given.test_labels
    peak = matmul_peak(dtype=getattr(torch, half))
    print(f"{100 * share / peak:.0f} % of the machine's {half} matmul peak; ", end="", flush=True)
    file.write_text(json.dumps(100 * float(right.mean())))
    return 100 * float(right.mean())


def picture(curves: dict[str, list[Log]], unit: str, width: int = 640, height: int = 360) -> str:
    """Accuracy on test images against minutes or passes, a line for each run and figure."""
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

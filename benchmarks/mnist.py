"""What was chosen for photographs, untouched, on clothes and digits: Fashion-MNIST and MNIST.

    python benchmarks/mnist.py --data-dir DIR [--method rest-refine] [--seeds 1] [--out runs/benchmark-mnist]

Half of the classes known, half of their images labelled; test images, last step; beside it k-means on pixels.
One thread a run, a run a core; every run is kept and goes on where it was stopped.
"""

import argparse
import multiprocessing
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from digits import k_means, one_thread, spread
from rich.console import Console
from rich.progress import track
from rich.table import Table

from openldn import metrics, pipeline
from openldn.device import keep_freed_memory
from openldn.run import Run

SETS = ("fashion-mnist", "mnist")
KEYS = ("known", "novel", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--method", default="rest-refine")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-mnist"))
    args = parser.parse_args()
    jobs = [
        (data, method, seed, args.data_dir, args.out)
        for seed in range(args.seeds)
        for method in (args.method, "k-means on pixels")
        for data in SETS
    ]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread) as pool:
        done = [
            *track(
                pool.map(run, *zip(*jobs, strict=True)), "training", len(jobs), console=Console(stderr=True)
            )
        ]
    table = Table("data", "system", *KEYS, "minutes", title=f"test images, {args.seeds} seeds")
    for data, method in dict.fromkeys((job[0], job[1]) for job in jobs):
        rows = [made for job, made in zip(jobs, done, strict=True) if job[:2] == (data, method)]
        minutes = sum(row["seconds"] for row in rows) / len(rows) / 60
        table.add_row(data, method, *(spread([row[key] for row in rows]) for key in KEYS), f"{minutes:.0f}")
    Console(width=100).print(table)


def run(data: str, method: str, seed: int, data_dir: str | None, out: Path) -> dict[str, float]:
    """Known, novel and all, and seconds."""
    if method == "k-means on pixels":
        return k_means(data, data_dir, seed)
    warnings.simplefilter("ignore")
    keep_freed_memory()
    path = out / f"{data}-{method}-{seed}"
    if path.exists():
        made = pipeline.resume(path, quiet=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = pipeline.train(data, out=path, seed=seed, quiet=True, method=method, data_dir=data_dir)
    lines = Run.open(made.path).metrics()
    last = {line["phase"]: line["seconds"] for line in lines if line["phase"] != "final"}
    return {**metrics.headline(lines[-1]), "seconds": sum(last.values())}


if __name__ == "__main__":
    main()

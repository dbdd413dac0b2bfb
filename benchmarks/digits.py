"""OpenLDN on handwritten digits against what one would do instead: one table, five seeds.

    python benchmarks/digits.py [--seeds 5] [--only SYSTEM ...] [--out runs/benchmark-digits]

Five classes known, half of their images labelled, judged by held-out images. Every run is kept; what is
finished is not run again.
"""

import argparse
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.cluster import KMeans

from openldn import metrics, pipeline
from openldn.data import sources
from openldn.run import Run

SYSTEMS = {
    "openldn-uda": {"method": "openldn-uda"},
    "openldn-mixmatch": {"method": "openldn-mixmatch"},
    "stage 1 alone": {"method": "openldn"},
    "stage 1, no pair loss": {"method": "openldn", "pair": False},
    "stage 1, all pairs driven apart": {"method": "openldn", "target": "apart"},
    "stage 1, no entropy term": {"method": "openldn", "entropy": False},
    "rest-refine": {"method": "rest-refine"},
    "rest-uda": {"method": "rest+uda"},
    "rest alone": {"method": "rest"},
    "supervised + k-means": {"method": "supervised"},
    "k-means on pixels": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-digits"))
    args = parser.parse_args()
    started = time.monotonic()
    jobs = [(name, seed, args.out) for seed in range(args.seeds) for name in args.only]
    # One process a core, one thread a process: small networks gain little from more threads.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread) as pool:
        done = [
            *track(
                pool.map(run, *zip(*jobs, strict=True)), "training", len(jobs), console=Console(stderr=True)
            )
        ]

    table = Table(
        "system", "known", "novel", "all", "seconds", title=f"digits, test images, {args.seeds} seeds"
    )
    for name in args.only:
        rows = [result for (n, _, _), result in zip(jobs, done, strict=True) if n == name]
        cells = [spread([row[key] for row in rows]) for key in ("known", "novel", "all")]
        table.add_row(name, *cells, f"{np.mean([row['seconds'] for row in rows]):.0f}")
    Console(width=100).print(table)
    print(f"in all {(time.monotonic() - started) / 60:.1f} minutes")


def run(name: str, seed: int, out: Path) -> dict[str, float]:
    """Known, novel and all of one system with one seed, and its seconds of training."""
    if SYSTEMS[name] is None:
        return k_means("digits", None, seed)
    warnings.simplefilter("ignore")
    path = out / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    made = pipeline.resume(path, quiet=True) if path.exists() else None
    made = made or pipeline.train("digits", out=path, seed=seed, quiet=True, **SYSTEMS[name])
    lines = Run.open(made.path).metrics()
    last = {line["phase"]: line["seconds"] for line in lines if line["phase"] != "final"}
    return {**metrics.headline(lines[-1]), "seconds": sum(last.values())}


def k_means(name: str, data_dir: str | None, seed: int) -> dict[str, float]:
    """As many clusters as classes; those that fit labelled images best are the known ones, in order."""
    started = time.monotonic()
    problem, truth = sources.read_named(name, data_dir).split(known=0.5, labelled=0.5, seed=seed)
    c, k = problem.n_classes, problem.n_known
    flat = [images.flatten(1).double().numpy() for images in (problem.images, truth.images)]
    clusters = KMeans(c, n_init=10, random_state=seed).fit(flat[0])
    labelled = problem.labelled.numpy()
    counts = metrics.confusion(problem.labels[labelled].numpy(), clusters.labels_[labelled], k, c)
    known = metrics.match(counts)
    novel = iter(range(k, c))
    to_id = np.array([known[j] if j in known else next(novel) for j in range(c)])
    result = metrics.evaluate(truth.labels, to_id[clusters.predict(flat[1])], n_known=k, n_classes=c)
    return {**metrics.headline(result), "seconds": time.monotonic() - started}


def one_thread() -> None:
    import torch

    from openldn.data import workers

    workers.end_with_owner()
    torch.set_num_threads(1)


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()

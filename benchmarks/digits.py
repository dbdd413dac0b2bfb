"""OpenLDN on handwritten digits, with ablations and baselines.

    python benchmarks/digits.py [--seeds 5] [--only SYSTEM ...] [--out runs/benchmark-digits]

Five known classes, half of their images labelled; accuracy on test images. Runs are kept, and resumed if they
were stopped.
"""

import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
from sklearn.cluster import KMeans

from openldn.data import sources, workers
from openldn.maths import metrics

K_MEANS = "k-means on pixels"
SYSTEMS: dict[str, dict[str, Any]] = {
    "openldn-uda": {"method": "openldn-uda"},
    "openldn-mixmatch": {"method": "openldn-mixmatch"},
    "stage 1 alone": {"method": "openldn"},
    "stage 1, no pair loss": {"method": "openldn", "pair": False},
    "stage 1, all pairs apart (control)": {"method": "openldn", "target": "apart"},
    "stage 1, no entropy term": {"method": "openldn", "entropy": False},
    "pu-self-training": {"method": "pu-self-training"},
    "pu-clustering+uda": {"method": "pu-clustering+uda"},
    "pu-clustering": {"method": "pu-clustering"},
    "supervised, k-means on unsure images": {"method": "supervised"},
    K_MEANS: {},
}


def main() -> None:
    parser = harness.parser(__doc__, seeds=5, out="runs/benchmark-digits", jobs=workers.count())
    every = list(SYSTEMS)
    parser.add_argument(
        "--only", nargs="+", default=every, choices=every, metavar="SYSTEM", help="\n".join(["of:", *every])
    )
    args = parser.parse_args()
    started = time.monotonic()
    tasks = [(name, seed, args.out) for seed in range(args.seeds) for name in args.only]
    results = harness.pooled_with_bar(run, tasks, args.jobs)
    columns = {key: key for key in (*harness.KEYS, "seconds")}
    harness.table(f"digits, test images, {args.seeds} seeds", ["system"], columns, tasks, results)
    print(f"{(time.monotonic() - started) / 60:.1f} minutes in all")


def run(name: str, seed: int, out: Path) -> dict[str, float]:
    if name == K_MEANS:
        return k_means("digits", None, seed)
    path = out / f"{name}-{seed}".translate(str.maketrans(" ", "-", ",()"))
    return harness.result(harness.trained(path, "digits", seed=seed, **SYSTEMS[name]))


def k_means(name: str, data_dir: str | None, seed: int) -> dict[str, float]:
    """k-means on pixels; the clusters that fit the labelled images best are the known classes."""
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
    seconds = time.monotonic() - started
    return {**metrics.headline(result), "seconds": seconds, "minutes": seconds / 60}


if __name__ == "__main__":
    main()

"""Stage 1 on digits with known classes hidden: how settings can be chosen without novel labels.

    python benchmarks/hidden.py [--seeds 6]

Takes the labelled digits alone (five classes), hides two of the classes as if they were novel, and labels
half of the images of the others. No novel label and no test image plays a part. Which classes are hidden
varies with the seed.
"""

import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np

from openldn import Options
from openldn.data import sources, workers
from openldn.data.benchmark import Benchmark

STEPS = 600  # of every setting, so that they cost about the same
BATCH = 100
SETTINGS: dict[str, dict[str, Any]] = {
    "batch 100, proportional (fast)": {},
    "batch 100, proportional, no pair loss": {"pair": False},
    "batch 100, half and half": {"composition": "equal"},
    "batch 100, half and half, no pair loss": {"composition": "equal", "pair": False},
    "batch 50, proportional": {"batch": 50},
    "features attached in both steps": {"attach": "both"},
    "features attached in neither": {"attach": "neither"},
    "omega first": {"order": "omega-first"},
}


def main() -> None:
    args = harness.parser(__doc__, seeds=6, jobs=workers.count()).parse_args()
    tasks = [(name, seed) for seed in range(args.seeds) for name in SETTINGS]
    results = harness.pooled_with_bar(run, tasks, args.jobs)
    columns = {"known": "known", "hidden": "novel", "all": "all", "similarity AUC": "auc"}
    harness.table(f"labelled digits, {args.seeds} seeds", ["stage 1"], columns, tasks, results)


def run(name: str, seed: int) -> dict[str, float]:
    """Accuracies, and the last AUC of the similarities, in percent."""
    problem, truth = labelled_only(seed).split(known=0.6, labelled=0.5, seed=seed)
    settings = SETTINGS[name]
    n_labelled, n_unlabelled = len(problem.labelled), len(problem.unlabelled)
    share = 0.5 if settings.get("composition") == "equal" else n_labelled / (n_labelled + n_unlabelled)
    options = Options(
        method="openldn",
        seed=seed,
        novel=problem.n_novel,
        precision="float32",
        epochs=STEPS * settings.get("batch", BATCH) * (1 - share) / n_unlabelled,
        settings={"batch": BATCH, **settings},
    )
    with tempfile.TemporaryDirectory() as folder:
        made = harness.trained_on(problem, truth, Path(folder) / "run", options)
        lines, result = made.metrics(), harness.result(made)
    auc = [line["similarity_auc"] for line in lines if line.get("similarity_auc") is not None]
    return {**result, "auc": 100 * float(np.mean(auc[-20:])) if auc else float("nan")}


def labelled_only(seed: int) -> Benchmark:
    """The labelled images as a benchmark: classes in random order, a quarter of the images for testing."""
    problem, _ = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=seed)
    rows = problem.labelled
    order = np.random.default_rng([seed, 1]).permutation(problem.n_known)
    images, labels = problem.images[rows], order[problem.labels[rows].numpy()]
    test = np.arange(len(rows)) % 4 == 0
    parts = ((images[part], labels[part]) for part in (~test, test))
    return Benchmark.in_memory("labelled digits", *parts, classes=tuple(range(problem.n_known)), flip=False)


if __name__ == "__main__":
    main()

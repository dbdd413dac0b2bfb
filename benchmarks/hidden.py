"""How settings of stage 1 are chosen: by known classes hidden as if novel.

    python benchmarks/hidden.py [--seeds 6]

Takes the labelled digits alone (five classes), hides two of the classes, labels half of the other images, and
asks how well everything is recognised: no novel label and no test image plays a part. One row a setting, mean
and spread over seeds; which classes are hidden varies.
"""

import argparse
import multiprocessing
import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from digits import one_thread, spread
from rich.console import Console
from rich.progress import track
from rich.table import Table

from openldn import metrics, pipeline
from openldn.config import Length, Options, decide
from openldn.data import sources
from openldn.data.problem import LabelledSet

STEPS = 600  # every setting makes as many, so that they cost about the same
SETTINGS: dict[str, dict[str, Any]] = {
    "batch 100, proportional (fast)": {},
    "the same, no pair loss": {"pair": False},
    "batch 100, half and half": {"composition": "equal"},
    "the same, no pair loss ": {"composition": "equal", "pair": False},
    "batch 50, proportional": {"batch": 50},
    "features attached in both steps": {"attach": "both"},
    "features attached in neither": {"attach": "neither"},
    "omega first": {"order": "omega-first"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    jobs = [(name, seed) for seed in range(args.seeds) for name in SETTINGS]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread) as pool:
        results = pool.map(run, *zip(*jobs, strict=True))
        done = [*track(results, "training", len(jobs), console=Console(stderr=True))]
    table = Table("stage 1", "known", "hidden", "all", "similarity AUC", title=f"{args.seeds} seeds")
    for name in SETTINGS:
        rows = [result for (n, _), result in zip(jobs, done, strict=True) if n == name]
        table.add_row(name, *(spread([row[key] for row in rows]) for key in ("known", "novel", "all", "auc")))
    Console(width=110).print(table)


def run(name: str, seed: int) -> dict[str, float]:
    """Known, hidden and all accuracy of one setting, and the last AUC of its similarities."""
    warnings.simplefilter("ignore")
    problem, truth = labelled_only(seed).split(known=0.6, labelled=0.5, seed=seed)
    settings = decide(Options(method="openldn", seed=seed), parts=["discover"])
    discover = replace(settings.discover, **SETTINGS[name])
    n_labelled, n_unlabelled = len(problem.labelled), len(problem.unlabelled)
    share = 0.5 if discover.composition == "equal" else n_labelled / (n_labelled + n_unlabelled)
    length = Length(epochs=STEPS * discover.batch * (1 - share) / n_unlabelled)
    settings = replace(settings, discover=replace(discover, length=length))
    with tempfile.TemporaryDirectory() as folder:
        options = Options(method="openldn", seed=seed, novel=problem.n_novel)
        out = Path(folder) / "run"
        lines = pipeline.start(
            problem, truth, options, {"kind": "arrays"}, out, settings=settings, quiet=True
        ).metrics()
    auc = [line["similarity_auc"] for line in lines if line.get("similarity_auc") is not None]
    return {**metrics.headline(lines[-1]), "auc": 100 * float(np.mean(auc[-20:])) if auc else float("nan")}


def labelled_only(seed: int) -> LabelledSet:
    """What a user has: the labelled images. The order of the classes is drawn, a quarter is the test part."""
    problem, _ = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=seed)
    rows = problem.labelled
    order = np.random.default_rng([seed, 1]).permutation(problem.n_known)
    labels = order[problem.labels[rows].numpy()]
    test = np.arange(len(rows)) % 4 == 0
    images = problem.images[rows]
    return LabelledSet(
        name="labelled digits",
        images=images[~test],
        labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        classes=tuple(range(problem.n_known)),
        flip=False,
    )


if __name__ == "__main__":
    main()

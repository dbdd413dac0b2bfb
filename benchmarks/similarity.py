"""What the similarity network of stage 1 learns on digits, and whether that is why the pair loss helps.

    python benchmarks/similarity.py [--seeds 3]

Digits as in digits.py, stage 1 alone with one budget. Beside accuracy on test images: how well similarities
tell labelled pairs of one class from others (AUC in percent, over the last third of training), the same for
pairs of novel test images in the end, and for the cosine of the network's own predictions of these. Figures
that need novel labels are there to understand, not to choose by.
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
import torch
from digits import one_thread, spread
from rich.console import Console
from rich.progress import track
from rich.table import Table

from openldn import metrics, pipeline
from openldn.config import Options, decide
from openldn.data import sources
from openldn.losses import cosine
from openldn.model import Model
from openldn.nets.classifier import infer
from openldn.nets.similarity import PairSimilarity

PER_IMAGE = 400  # image passes, as openldn bench has them
SLOW = {"similarity_lr": 1e-4, "every": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "fast": {},
    "Ω at a tenth of the rate": {"similarity_lr": 1e-4},
    "the same, at every step": SLOW,
    "the same, features attached in both steps": {**SLOW, "attach": "both"},
    "the same, features attached in neither": {**SLOW, "attach": "neither"},
    "Ω, order and batch as in paper": {
        **SLOW,
        "order": "omega-first",
        "omega_rows": "all",
        "composition": "equal",
    },
    "all pairs driven apart (control)": {"target": "apart"},
}
KEYS = ("known", "novel", "labelled", "pairs", "predictions", "mean", "spread")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    jobs = [(name, seed) for seed in range(args.seeds) for name in SETTINGS]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread) as pool:
        results = pool.map(run, *zip(*jobs, strict=True))
        done = [*track(results, "training", len(jobs), console=Console(stderr=True))]
    table = Table(
        "stage 1",
        "known",
        "novel",
        "AUC, labelled pairs",
        "AUC, novel pairs",
        "of predictions",
        "similarities: mean",
        "spread",
        title=f"digits, {args.seeds} seeds",
    )
    for name in SETTINGS:
        rows = [result for (n, _), result in zip(jobs, done, strict=True) if n == name]
        table.add_row(name, *(spread([row[key] for row in rows]) for key in KEYS))
    Console(width=150).print(table)


def run(name: str, seed: int) -> dict[str, float]:
    """All figures of one setting, in percent."""
    warnings.simplefilter("ignore")
    problem, truth = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=seed)
    options = Options(
        method="openldn", seed=seed, novel=problem.n_novel, budget=PER_IMAGE * len(problem.images)
    )
    settings = decide(options, parts=["discover"])
    settings = replace(settings, discover=replace(settings.discover, **SETTINGS[name]))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        made = pipeline.start(problem, truth, options, {"kind": "arrays"}, out, settings=settings, quiet=True)
        lines, model = made.metrics(), Model.load(made.path)
        state = made.load_state("1-discover")
    assert state is not None
    similarity = PairSimilarity(model.network.head.in_features)
    similarity.load_state_dict(state["phase"]["similarity"])
    novel = truth.labels >= problem.n_known
    said = infer(model.network, truth.images)
    with torch.no_grad():
        s = similarity(said.z[torch.from_numpy(novel)])
    p = said.logits.softmax(dim=1)[torch.from_numpy(novel)]
    logged = [line for line in lines if "similarity_auc" in line]
    last = logged[-len(logged) // 3 :]
    figures = metrics.headline(lines[-1])
    return {
        "known": figures["known"],
        "novel": figures["novel"],
        "labelled": 100 * float(np.mean([line["similarity_auc"] for line in last])),
        "pairs": 100 * metrics.pair_auc(s, truth.labels[novel]),
        "predictions": 100 * metrics.pair_auc(cosine(p), truth.labels[novel]),
        "mean": 100 * float(np.mean([line["similarity_mean"] for line in last])),
        "spread": 100 * float(np.mean([line["similarity_spread"] for line in last])),
    }


if __name__ == "__main__":
    main()

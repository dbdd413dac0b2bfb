"""How settings are chosen: by known classes of CIFAR-10 (or of another set) hidden as if novel.

    python benchmarks/hidden_classes.py --data-dir DIR [--data cifar10] [--images 10000] [--hide 1 4]
        [--labelled 0.5] [--epochs 3 | --budget 600000] [--pixels 16] [--precision bfloat16] [--only fast]

Of the five known classes some (by default two, a vehicle and an animal) lose their labels, and so does a
quarter of the other labelled images. By these, whose classes a user knows, a run is judged. They lie among
the unlabelled images with those of the novel classes, of which nobody looks at a label. Recall is counted;
how many images a class is said to have, and how many there are if all classes are equally large, give F1. One
thread a run, a run a core; every run is kept in --out and goes on where it was stopped.
"""

import argparse
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from digits import one_thread
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from openldn import pipeline
from openldn.config import Length, Options, decide
from openldn.data import sources
from openldn.data.pixels import Part
from openldn.data.problem import UNLABELLED, LabelledSet, Problem
from openldn.model import Model
from openldn.recipes import recipe
from openldn.run import Run

AUTOMOBILE, DEER = 1, 4
# A system, and what is changed in its stages. The length in epochs is that of the first one, a budget all's.
SETTINGS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "fast": ("openldn", {}),
    "no pair loss": ("openldn", {"discover": {"pair": False}}),
    "all pairs apart": ("openldn", {"discover": {"target": "apart"}}),
    "no entropy term": ("openldn", {"discover": {"entropy": False}}),
    "balanced targets": ("openldn", {"discover": {"targets": "balanced"}}),
    "mixed views": ("openldn", {"discover": {"views": "mixed"}}),
    "mixed views, balanced targets": ("openldn", {"discover": {"views": "mixed", "targets": "balanced"}}),
    "tau 0": ("openldn", {"discover": {"tau": 0.0}}),
    "batch 200": ("openldn", {"discover": {"batch": 200}}),
    "lr 1e-3": ("openldn", {"discover": {"lr": 1e-3}}),
    "lr 5e-4": ("openldn", {"discover": {"lr": 5e-4}}),
    "fast and uda": ("openldn-uda", {}),
    "fast and mixmatch": ("openldn-mixmatch", {}),
    "fast and mixmatch, weight 5": ("openldn-mixmatch", {"closed_world": {"mixmatch_weight": 5.0}}),
    "fast and mixmatch, weight 25": ("openldn-mixmatch", {"closed_world": {"mixmatch_weight": 25.0}}),
    "fast and mixmatch, weight 75": ("openldn-mixmatch", {"closed_world": {"mixmatch_weight": 75.0}}),
    "supervised": ("supervised", {}),
    "rest": ("rest", {}),
    "rest, batch 200": ("rest", {"rest": {"batch": 200}}),
    "rest, lr 4e-3": ("rest", {"rest": {"lr": 4e-3}}),
    "rest, half labelled": ("rest", {"rest": {"often": 1e9}}),
    "rest and refine": ("rest-refine", {}),
    "rest and refine, softer": ("rest-refine", {"refine": {"temperature": 0.67}}),
    "rest and refine, lr 1e-3": ("rest-refine", {"refine": {"lr": 1e-3}}),
    "rest and uda": ("rest+uda", {}),
    "rest and uda, half": ("rest+uda", {"closed_world": {"length": Length(epochs=4)}}),
    "rest and uda, never refreshed": ("rest+uda", {"closed_world": {"refreshes": 0}}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--data", default="cifar10", help="a named set of ten classes")
    parser.add_argument("--hide", type=int, nargs="+", default=[AUTOMOBILE, DEER])
    parser.add_argument("--labelled", type=float, default=0.5)
    parser.add_argument("--images", type=int, help="so many training images alone")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--budget", type=float, help="instead of epochs: image passes of all stages together")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--pixels", type=int, default=16)
    parser.add_argument("--only", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("runs/hidden-classes"))
    args = parser.parse_args()
    args.data_dir = args.data_dir and os.path.abspath(args.data_dir)
    jobs = [(name, args) for name in args.only]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread) as pool:
        done = [
            *track(
                pool.map(run, *zip(*jobs, strict=True)), "training", len(jobs), console=Console(stderr=True)
            )
        ]
    keys = ("F1 known", "F1 hidden", "recall known", "recall hidden", "seconds")
    length = f"{args.epochs:g} epochs first" if args.budget is None else f"{args.budget:,.0f} passes"
    title = f"{args.data} at {args.pixels} pixels, known classes {args.hide} hidden, {length}"
    table = Table("setting", *keys, title=title)
    for name, result in zip(args.only, done, strict=True):
        table.add_row(name, *(f"{result[key]:.1f}" for key in keys))
    Console(width=110).print(table)


def run(name: str, args: argparse.Namespace) -> Mapping[str, float]:
    """What one setting comes to, in percent, and its time."""
    problem, judged = hidden(args)
    method, changes = SETTINGS[name]
    options = Options(
        method=method, novel=problem.n_novel, device="cpu", precision=args.precision, budget=args.budget
    )
    settings = decide(options, parts=recipe(method).parts)
    if args.budget is None:
        for stage in ("discover", "rest"):
            first = replace(getattr(settings, stage), length=Length(epochs=args.epochs))
            settings = replace(settings, **{stage: first})
    for stage, change in changes.items():
        settings = replace(settings, **{stage: replace(getattr(settings, stage), **change)})
    length = args.budget or args.epochs
    made_of = [args.data, name, args.labelled, length, args.images, args.pixels, *args.hide, args.precision]
    path = args.out / "-".join(map(str, made_of)).replace(" ", "_").replace(",", "")
    if path.exists():
        made = pipeline.go_on(Run.open(path), problem, None, quiet=True)
    else:
        made = pipeline.start(problem, None, options, {"kind": "arrays"}, path, settings=settings, quiet=True)
    said = Model.load(path).predict(Part(problem.images, problem.unlabelled)).ids.numpy()
    place = torch.zeros(len(problem.images), dtype=torch.int64)
    place[problem.unlabelled] = torch.arange(len(problem.unlabelled))
    ids, classes = said[place[judged[0]].numpy()], judged[1].numpy()
    return {**scores(said, ids, classes, problem), "seconds": made.metrics()[-1]["seconds"]}


def hidden(args: argparse.Namespace) -> tuple[Problem, Tensor]:
    """The problem with labels taken away, and which rows lost which class: known ones first.  (2, m)"""
    whole, hide, pixels = sources.read_named(args.data, args.data_dir), args.hide, args.pixels
    assert isinstance(whole, LabelledSet)
    if args.images is not None:
        whole = whole.subset(args.images)
    problem, _ = whole.split(known=0.5, labelled=args.labelled, seed=0)
    kept = [k for k in range(problem.n_known) if k not in hide]
    order = torch.tensor([[*kept, *hide].index(k) for k in range(problem.n_known)])
    rows = problem.labelled
    classes = order[problem.labels[rows]]
    taken = (classes >= len(kept)) | (torch.arange(len(rows)) % 4 == 0)
    labels = torch.full_like(problem.labels, UNLABELLED)
    labels[rows[~taken]] = classes[~taken]
    images = problem.images[torch.arange(len(problem.images))]
    if pixels != images.shape[3]:
        parts = images.split(5000)
        images = torch.cat([F.interpolate(part.float(), pixels, mode="area").round() for part in parts])
    return (
        replace(
            problem,
            images=images.to(torch.uint8),
            labels=labels,
            classes=tuple(problem.classes[k] for k in kept),
            n_novel=problem.n_novel + len(hide),
        ),
        torch.stack([rows[taken], classes[taken]]),
    )


def scores(
    said: NDArray[np.int64], ids: NDArray[np.int64], classes: NDArray[np.int64], problem: Problem
) -> dict[str, float]:
    """F1 and recall of known classes by their own ids, of hidden ones by the novel ids that fit best."""
    n, known = problem.n_classes, problem.n_known
    each = len(problem.images) / n
    labelled = np.bincount(problem.labels[problem.labelled].numpy(), minlength=n)
    counted = np.bincount(said, minlength=n)
    recall = np.array([np.bincount(ids[classes == k], minlength=n) / np.sum(classes == k) for k in range(5)])
    there = (each - labelled)[: len(recall), None]
    f1 = 2 * recall * there / (counted + there)  # (classes, ids)
    rows, columns = linear_sum_assignment(-f1[known:, known:])
    fits = rows + known, columns + known
    return {
        "F1 known": 100 * float(np.mean(np.diag(f1)[:known])),
        "F1 hidden": 100 * float(np.mean(f1[fits])),
        "recall known": 100 * float(np.mean(np.diag(recall)[:known])),
        "recall hidden": 100 * float(np.mean(recall[fits])),
    }


if __name__ == "__main__":
    main()

"""Known classes of CIFAR-10 (or another set) hidden: how settings can be chosen without novel labels.

    python benchmarks/hidden_classes.py --data-dir DIR [--data cifar10] [--images 10000] [--hide 1 4]
        [--labelled 0.5] [--epochs 3 | --budget 600000] [--size 16] [--precision bfloat16] [--only fast]

Some of the five known classes (by default an animal and a vehicle) lose their labels, and so does a quarter
of the other labelled images. A run is evaluated on these images, whose classes a user knows. They are among
the unlabelled images, together with those of the novel classes, whose labels play no part. Recall is counted.
Precision follows from the number of images predicted in a class, if all classes are equally large; both give
F1. Runs are kept, and resumed if they were stopped.
"""

import argparse
import os
from dataclasses import replace
from typing import Any

import harness
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from openldn import Options, systems
from openldn.data import sources, workers
from openldn.data.pixels import Part
from openldn.data.problem import UNLABELLED, Problem
from openldn.model import Model

AUTOMOBILE, DEER = 1, 4
# A system and its settings. --epochs is the length of the first stage, --budget that of the whole system.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "fast": ("openldn", {}),
    "no pair loss": ("openldn", {"pair": False}),
    "all pairs apart": ("openldn", {"target": "apart"}),
    "no entropy term": ("openldn", {"entropy": False}),
    "tau 0": ("openldn", {"tau": 0.0}),
    "batch 200": ("openldn", {"batch": 200}),
    "lr 1e-3": ("openldn", {"lr": 1e-3}),
    "lr 5e-4": ("openldn", {"lr": 5e-4}),
    "fast, uda": ("openldn-uda", {}),
    "fast, mixmatch": ("openldn-mixmatch", {}),
    "fast, mixmatch, weight 5": ("openldn-mixmatch", {"unlabelled_weight": 5.0}),
    "fast, mixmatch, weight 25": ("openldn-mixmatch", {"unlabelled_weight": 25.0}),
    "fast, mixmatch, weight 75": ("openldn-mixmatch", {"unlabelled_weight": 75.0}),
    "supervised": ("supervised", {}),
    "pu": ("pu-clustering", {}),
    "pu, batch 200": ("pu-clustering", {"batch": 200}),
    "pu, lr 4e-3": ("pu-clustering", {"lr": 4e-3}),
    "pu, half labelled": ("pu-clustering", {"oversampling": 1e9}),
    "pu, self-training": ("pu-self-training", {}),
    "pu, self-training, softer": ("pu-self-training", {"self-training.temperature": 0.67}),
    "pu, self-training, lr 1e-3": ("pu-self-training", {"self-training.lr": 1e-3}),
    "pu, uda": ("pu-clustering+uda", {}),
    "pu, uda, half": ("pu-clustering+uda", {"uda.epochs": 4.0, "uda.least_images": 0}),
    "pu, uda, never refreshed": ("pu-clustering+uda", {"refreshes": 0}),
}


def main() -> None:
    parser = harness.parser(__doc__, out="runs/hidden-classes", jobs=workers.count())
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--data", default="cifar10", help="a named set of ten classes")
    parser.add_argument("--hide", type=int, nargs="+", default=[AUTOMOBILE, DEER], help="known classes")
    parser.add_argument("--labelled", type=float, default=0.5, help="share of the known classes' images")
    parser.add_argument("--images", type=int, help="use only so many training images")
    parser.add_argument("--epochs", type=float, default=3.0, help="of the first stage")
    parser.add_argument(
        "--budget", type=float, help="instead of --epochs: image passes of all stages together"
    )
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--size", type=int, default=16, help="downsize images to this many pixels")
    every = list(SETTINGS)
    parser.add_argument(
        "--only", nargs="+", default=every, choices=every, metavar="SETTING", help="\n".join(["of:", *every])
    )
    args = parser.parse_args()
    args.data_dir = args.data_dir and os.path.abspath(args.data_dir)
    tasks = [(name, args) for name in args.only]
    results = harness.pooled_with_bar(run, tasks, args.jobs)
    keys = ("F1 known", "F1 hidden", "recall known", "recall hidden", "seconds")
    length = f"{args.epochs:g} epochs of stage 1" if args.budget is None else f"{args.budget:,.0f} passes"
    title = f"{args.data} at {args.size} pixels, known classes {args.hide} hidden, {length}"
    harness.table(title, ["setting"], {key: key for key in keys}, tasks, results)


def run(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Scores in percent, and seconds."""
    problem, (rows, classes) = hidden(args)
    method, settings = SETTINGS[name]
    first = systems.find(method).stages[0].name
    if args.budget is None and first in ("discover", "pu"):
        settings = {f"{first}.epochs": args.epochs, f"{first}.least_images": 0, **settings}
    options = Options(
        method=method,
        novel=problem.n_novel,
        device="cpu",
        precision=args.precision,
        budget=args.budget,
        settings=settings,
    )
    length = args.budget or args.epochs
    parts = [args.data, name, args.labelled, length, args.images, args.size, *args.hide, args.precision]
    path = args.out / "-".join(map(str, parts)).replace(" ", "_").replace(",", "")
    made = harness.trained_on(problem, None, path, options)
    predicted = Model.load(path).predict(Part(problem.images, problem.unlabelled)).ids.numpy()
    place = torch.zeros(len(problem.images), dtype=torch.int64)
    place[problem.unlabelled] = torch.arange(len(problem.unlabelled))
    ids = predicted[place[rows].numpy()]
    return {**scores(predicted, ids, classes.numpy(), problem), **harness.duration(made)}


def hidden(args: argparse.Namespace) -> tuple[Problem, Tensor]:
    """The problem without some of its labels, and the rows and classes of these; known ones first.  (2, m)"""
    whole, hide = sources.read_named(args.data, args.data_dir), args.hide
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
    if args.size != images.shape[3]:
        parts = images.split(5000)
        images = torch.cat([F.interpolate(part.float(), args.size, mode="area").round() for part in parts])
    hidden_problem = replace(
        problem,
        images=images.to(torch.uint8),
        labels=labels,
        classes=tuple(problem.classes[k] for k in kept),
        n_novel=problem.n_novel + len(hide),
    )
    return hidden_problem, torch.stack([rows[taken], classes[taken]])


def scores(
    predicted: NDArray[np.int64], ids: NDArray[np.int64], classes: NDArray[np.int64], problem: Problem
) -> dict[str, float]:
    """F1 and recall of known classes by their own ids, of hidden ones by the novel ids that fit best.

    `predicted` is of all unlabelled images; `ids` and `classes` are of those that lost their labels.
    """
    n, known = problem.n_classes, problem.n_known
    each = len(problem.images) / n
    labelled = np.bincount(problem.labels[problem.labelled].numpy(), minlength=n)
    counted = np.bincount(predicted, minlength=n)
    recall = np.array([np.bincount(ids[classes == k], minlength=n) / np.sum(classes == k) for k in range(5)])
    there = (each - labelled)[: len(recall), None]
    f1 = 2 * recall * there / (counted + there)  # (classes, ids)
    rows, columns = linear_sum_assignment(-f1[known:, known:])
    matched = rows + known, columns + known
    return {
        "F1 known": 100 * float(np.mean(np.diag(f1)[:known])),
        "F1 hidden": 100 * float(np.mean(f1[matched])),
        "recall known": 100 * float(np.mean(np.diag(recall)[:known])),
        "recall hidden": 100 * float(np.mean(recall[matched])),
    }


if __name__ == "__main__":
    main()

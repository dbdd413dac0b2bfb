"""Photographs: systems on features of a frozen ImageNet network, side by side.

    python benchmarks/photographs.py [--data-dir DIR] [--only pets cub cars cifar100] [--seeds 3]
        [--systems NAME ...] [--learning]

The first half of the classes known, half of their images labelled; the number of novel classes is given (but
fast-hdbscan finds its own). Known, novel and all accuracy on the
unlabelled images and on test images. `--learning` adds, for one seed, a network that learns from scratch and
one that goes on learning from pretrained weights; they take hours. Results are kept, and not computed again.

The data sets are in DIR ($OPENLDN_DATA by default): oxford-pets and cifar100 as their publishers have them,
and class folders cub/{train,test}/CLASS/*.jpg and stanford-cars/{train,test}/CLASS/*.jpg.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
import torch.nn.functional as F
from harness import KEYS, spread
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from openldn import Options, inference, job
from openldn.data import sources, store
from openldn.data.benchmark import Benchmark
from openldn.data.features import MeanOverViews
from openldn.data.sources import class_folders
from openldn.device import pick
from openldn.maths import metrics
from openldn.maths.principal import principal_axes
from openldn.nets.predictors import alignment
from openldn.options import LARGEST
from openldn.progress import watcher
from openldn.systems import find

SIZE = 224
FROZEN = ("k-means", "ss-k-means", "pim", "turtle", "fast-hdbscan", "whitened-clustering")
LEARNING = ("pu-self-training", "fine-tuned")


def main() -> None:
    parser = harness.parser(__doc__, seeds=3, out="runs/benchmark-photographs", jobs=1)
    parser.add_argument("--data-dir", default=os.environ.get("OPENLDN_DATA"), help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=[*SETS], choices=[*SETS], help="data sets")
    parser.add_argument("--systems", nargs="*", default=[*FROZEN], help="systems on frozen features")
    parser.add_argument("--learning", action="store_true", help="also systems that train a network")
    args = parser.parse_args()
    harness.prepare(harness.threads(1))
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name in args.only:
        listed = SETS[name](Path(args.data_dir))
        benchmark = opened(listed)
        shown = benchmark.train.pixels.shape
        print(f"{name}: {shown[0]} training images of {shown[2]} pixels, {len(benchmark.classes)} classes")
        for system in (*args.systems, *(LEARNING if args.learning else ())):
            for seed in range(1 if system in LEARNING else args.seeds):
                file = args.out / name / f"{system}-{seed}.json"
                if not file.exists():
                    # From scratch, photographs are small: that is the preset's size.
                    small = system in LEARNING and find(system).weights == "scratch"
                    images = opened(listed, LARGEST["fast"]) if small else benchmark
                    found = measured(images, system, seed, file.with_suffix(""))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(found))
                results.setdefault((name, system), []).append(json.loads(file.read_text()))
    shown_results(results, args.only)


# ----------------------------------------------------------------------------------------- the data sets


SETS: dict[str, Callable[[Path], Benchmark]] = {
    "pets": lambda data_dir: sources.read_named("oxford-pets", data_dir),
    "cub": lambda data_dir: class_folders.read("cub", data_dir / "cub"),
    "cars": lambda data_dir: class_folders.read("stanford-cars", data_dir / "stanford-cars"),
    "cifar100": lambda data_dir: sources.read_named("cifar100", data_dir),
}


def opened(benchmark: Benchmark, size: int = SIZE) -> Benchmark:
    """With its images decoded at one size; those that cannot be read are an error."""
    if benchmark.train.files is None:
        return benchmark
    parts = []
    for part in (benchmark.train, benchmark.test):
        assert part.files is not None
        root = f"{part.root}/{benchmark.name}"
        images, skipped = store.decode(part.files, root=root, size=size, channels=3, watch=watcher().counted)
        assert not skipped, skipped
        parts.append(replace(part, images=images))
    return replace(benchmark, train=parts[0], test=parts[1])


# ------------------------------------------------------------------------------------------ a measurement


def measured(benchmark: Benchmark, system: str, seed: int, path: Path) -> dict[str, float]:
    """Accuracies on unlabelled and test images, and seconds for features and for all the rest."""
    problem, truth = benchmark.split(known=0.5, labelled=0.5, seed=seed)
    method = "k-means" if system == "fast-hdbscan" else system
    weights = find(method).weights if system in LEARNING else "frozen"
    options = Options(method=method, seed=seed, weights=weights, novel=problem.n_novel)
    feature_seconds = 0.0
    encoder = job.new_encoder(options, find(options.method), problem, pick(), None)
    if encoder is not None:
        started = time.monotonic()
        features = [encoder.features(images, watcher().counted) for images in (problem.images, truth.images)]
        feature_seconds = time.monotonic() - started
    started = time.monotonic()
    true = benchmark.train.labels[problem.unlabelled.numpy()]
    if system == "fast-hdbscan":
        z, z_test = (MeanOverViews(part)[torch.arange(len(part))] for part in features)
        ids, ids_test = hdbscan(z, z_test, problem)
        ids, n_ids = ids[problem.unlabelled], max(int(ids.max()) + 1, len(benchmark.classes))
        scores = [score(y, p, truth, n_ids) for y, p in ((true, ids), (truth.labels, ids_test))]
    else:
        run = harness.trained_on(problem, truth, path, options)
        [*_, final] = run.metrics()
        ids = torch.from_numpy(inference.predicted_ids(run))
        on_unlabelled = score(true, ids, truth, problem.n_classes, final["ordered"])
        scores = [on_unlabelled, metrics.headline(final)]
    seconds = time.monotonic() - started
    unlabelled, test = ({f"{part} {key}": own[key] for key in KEYS} for part, own in zip(PARTS, scores))
    return {**unlabelled, **test, "seconds": seconds, "feature seconds": feature_seconds}


PARTS = ("unlabelled", "test")


def score(
    true: NDArray[np.int64], ids: torch.Tensor, truth: Any, n_ids: int, ordered: bool = True
) -> dict[str, float]:
    """Known, novel and all, the paper's protocol."""
    found = metrics.evaluate(
        true,
        ids.numpy(),
        n_known=truth.n_known,
        n_classes=truth.n_classes,
        n_ids=n_ids,
        ordered=ordered,
    )
    return {key: float(value) for key, value in metrics.headline(found).items()}


def hdbscan(z: torch.Tensor, z_test: torch.Tensor, problem: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """fast-hdbscan in its semi-supervised mode, on 20 principal components; noise goes to the nearest centre.

    It finds the number of clusters itself. Its semi-supervised selection does not compile (issue 39 of the
    project), so these functions run uncompiled.
    """
    import fast_hdbscan.cluster_trees as trees
    import fast_hdbscan.hdbscan as front
    from fast_hdbscan import HDBSCAN

    class PlainDict(dict[Any, Any]):
        empty = staticmethod(lambda **types: PlainDict())

    trees.Dict = PlainDict
    for name in [name for name in dir(trees) if "bcubed" in name or name == "score_condensed_tree_nodes"]:
        plain = getattr(getattr(trees, name), "py_func", getattr(trees, name))
        setattr(trees, name, plain)
        if hasattr(front, name):
            setattr(front, name, plain)
    mean, axes = principal_axes(F.normalize(z, dim=1), 20)
    x, x_test = ((F.normalize(part, dim=1) - mean) @ axes for part in (z, z_test))
    made = HDBSCAN(min_cluster_size=5, semi_supervised=True)
    clusters = torch.from_numpy(
        np.asarray(made.fit(x.double().numpy(), problem.labels.numpy()).labels_)
    ).long()
    k = max(int(clusters.max()) + 1, 1)
    centres = torch.stack([x[clusters == c].mean(dim=0) for c in range(k)])
    nearest, nearest_test = (torch.cdist(part, centres).argmin(dim=1) for part in (x, x_test))
    wide = problem.with_novel(max(k, problem.n_classes) - problem.n_known)
    place = torch.empty(wide.n_classes, dtype=torch.int64)
    place[alignment(nearest[problem.labelled], wide)] = torch.arange(wide.n_classes)
    return place[nearest], place[nearest_test]


def shown_results(results: dict[tuple[str, str], list[dict[str, float]]], sets: list[str]) -> None:
    """A row per data set and system, and the means over data sets."""
    headings = ("unlabelled: known", "novel", "all", "test: known", "novel", "all", "seconds", "features")
    keys = [f"{part} {key}" for part in PARTS for key in KEYS] + ["seconds", "feature seconds"]
    table = Table("images", "system", *headings, title="Percent, mean ± standard deviation over seeds")
    for (name, system), found in results.items():
        table.add_row(name, system, *(spread([one[key] for one in found]) for key in keys))
    for system in dict.fromkeys(system for _, system in results):
        of = [results[name, system] for name in sets if (name, system) in results]
        if len(of) == len(sets):
            means = [float(np.mean([np.mean([one[key] for one in found]) for found in of])) for key in keys]
            table.add_row("mean", system, *(f"{mean:.1f}" for mean in means))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()

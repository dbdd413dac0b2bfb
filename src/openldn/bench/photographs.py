"""Photographs from a pretrained network: systems on frozen features, fine-tuned, and from scratch.

The first half of the classes is known, and half of their images are labelled. The number of novel classes is
given (but fast-hdbscan finds its own). Accuracy is of unlabelled and of test images. The first cell of a data
set also says how long its features take.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openldn import inference, job, systems
from openldn.bench import pictures
from openldn.bench.cells import Bench, Cell, Figures, Result, Scale, by_row, figure, mean
from openldn.bench.tables import check_data, present
from openldn.bench.training import FRAME, code_of, rounded, same
from openldn.data import reading
from openldn.data.features import MeanOverViews
from openldn.data.problem import Problem, Truth
from openldn.device import pick
from openldn.errors import UserError
from openldn.maths import metrics
from openldn.maths.principal import principal_axes
from openldn.nets.predictors import alignment
from openldn.options import Options
from openldn.progress import watcher
from openldn.run import Run

DATA = ("oxford-pets", "cub", "stanford-cars", "cifar100")
HDBSCAN = "fast-hdbscan"
FROZEN = ("whitened-clustering", "pim", "turtle", "k-means", "ss-k-means", HDBSCAN)
LEARNING = ("fine-tuned", "pu-self-training")  # of one seed: they take much longer


@dataclass(frozen=True)
class Photographed:
    """One system on one data set."""

    data: str
    system: str
    seed: int
    images: int | None
    data_dir: str | None

    @property
    def options(self) -> Options:
        method = "k-means" if self.system == HDBSCAN else self.system
        own = systems.find(method).weights
        weights = own if self.system in LEARNING else "frozen"
        return Options(
            method=method, seed=self.seed, weights=weights, images=self.images, data_dir=self.data_dir
        )

    @property
    def record(self) -> Mapping[str, Any]:
        only = {} if self.images is None else {"images": self.images}
        return {"data": self.data, "system": self.system, **only}

    @property
    def modules(self) -> Sequence[str]:
        own = ["openldn.bench.photographs"] if self.system == HDBSCAN else code_of(self.options)
        return [*FRAME, *own, *([] if self.system == "pu-self-training" else ["openldn.nets.encoder"])]

    def __call__(self, path: Path, quiet: bool) -> Figures:
        options = self.options
        source = reading.describe(self.data, None, options)
        given = reading.read(source, options, watch=watcher(quiet).counted)
        problem, truth = given.problem, given.truth
        assert truth is not None
        options = replace(options, novel=problem.n_novel)
        found: Figures = {}
        encoder = job.new_encoder(options, systems.chosen(options), problem, pick(), None)
        if encoder is not None:
            started = time.monotonic()
            parts = [
                encoder.features(images, watcher(quiet).counted) for images in (problem.images, truth.images)
            ]
            if (taken := time.monotonic() - started) > 10:  # else they were in the store
                found["feature_seconds"] = round(taken, 1)
        true = reading.named(source, options).train.labels[given.kept][problem.unlabelled.numpy()]
        started = time.monotonic()
        if self.system == HDBSCAN:
            z, z_test = (MeanOverViews(part)[torch.arange(len(part))] for part in parts)
            ids, ids_test = hdbscan(z, z_test, problem)
            n_ids = max(int(ids.max()) + 1, truth.n_classes)
            on_unlabelled = score(true, ids[problem.unlabelled], truth, n_ids)
            on_test = score(truth.labels, ids_test, truth, n_ids)
        else:
            run = trained(given, options, source, path)
            [*_, final] = run.metrics()
            ids = torch.from_numpy(inference.predicted_ids(run))
            on_unlabelled = score(true, ids, truth, problem.n_classes, final["ordered"])
            on_test = metrics.headline(final)
        found["seconds"] = round(time.monotonic() - started, 1)
        return {**rounded(on_unlabelled), **{f"test {k}": v for k, v in rounded(on_test).items()}, **found}

    def where(self, path: Path) -> str:
        lines = Run.open(path).metrics() if (path / "config.json").exists() else []
        return f"{lines[-1]['phase']}, step {lines[-1]['step']}" if lines else "starting"


def trained(given: reading.Given, options: Options, source: Mapping[str, Any], path: Path) -> Run:
    """The finished run at `path`: trained, or resumed if it exists."""
    if path.exists():
        return job.go_on(same(Run.open(path), options), given.problem, given.truth, quiet=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return job.start(given, options, source, path, quiet=True)


def score(
    true: NDArray[np.int64], ids: Tensor, truth: Truth, n_ids: int, ordered: bool = True
) -> dict[str, float]:
    """Known, novel and all, the paper's protocol."""
    found = metrics.evaluate(
        true, ids.numpy(), n_known=truth.n_known, n_classes=truth.n_classes, n_ids=n_ids, ordered=ordered
    )
    return metrics.headline(found)


def hdbscan(z: Tensor, z_test: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """fast-hdbscan in its semi-supervised mode, on 20 principal components; noise goes to the nearest centre.

    It finds the number of clusters itself. Its semi-supervised selection does not compile (issue 39 of the
    project), so these functions run uncompiled.
    """
    try:
        import fast_hdbscan.cluster_trees as trees
        import fast_hdbscan.hdbscan as front
        from fast_hdbscan import HDBSCAN as Made
    except ImportError:
        raise UserError("fast-hdbscan is not installed: pip install openldn[benchmarks]") from None

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
    found = Made(min_cluster_size=5, semi_supervised=True).fit(x.double().numpy(), problem.labels.numpy())
    clusters = torch.from_numpy(np.asarray(found.labels_)).long()
    k = max(int(clusters.max()) + 1, 1)
    centres = torch.stack([x[clusters == c].mean(dim=0) for c in range(k)])
    nearest, nearest_test = (torch.cdist(part, centres).argmin(dim=1) for part in (x, x_test))
    wide = problem.with_novel(max(k, problem.n_classes) - problem.n_known)
    place = torch.empty(wide.n_classes, dtype=torch.int64)
    place[alignment(nearest[problem.labelled], wide)] = torch.arange(wide.n_classes)
    return place[nearest], place[nearest_test]


def cells(scale: Scale) -> list[Cell]:
    """Quick systems first, one data set after the other; those that learn have one seed."""
    for name in scale.data:
        check_data(name, DATA)
    for name in scale.only:
        if name not in (*FROZEN, *LEARNING):
            raise UserError(f"there is no row {name!r}; choose from {', '.join((*FROZEN, *LEARNING))}")
    data = present(scale.data or DATA, scale, asked=bool(scale.data))
    rows = [(name, system) for of in (FROZEN, LEARNING) for name in data for system in of]
    return [
        Cell((name, system), seed, Photographed(name, system, seed, scale.images, scale.data_dir))
        for name, system in rows
        if not scale.only or system in scale.only
        for seed in range(1 if system in LEARNING else scale.seeds)
    ]


def summary(results: Sequence[Result]) -> str:
    """Means over the data sets of `all` on unlabelled images, of systems that were run on each."""
    rows = by_row(results)
    sets = {data for data, _ in rows}
    means = dict[str, float]()
    for system in (*FROZEN, *LEARNING):
        of = [mean(rows[data, system], "all") for data in sets if (data, system) in rows]
        if len(of) == len(sets):
            means[system] = sum(of) / len(of)
    best_first = sorted(means.items(), key=lambda item: -item[1])
    return "mean of all on unlabelled images: " + ", ".join(f"{name} {m:.1f}" for name, m in best_first)


BENCH = Bench(
    name="photographs",
    about="systems on features of a frozen ImageNet network, fine-tuned, and from scratch",
    fields=("data", "system"),
    needs=DATA,
    measured_on="all training images, of 224 pixels (CIFAR-100: 160; from scratch: 32)",
    cells=cells,
    columns=(
        *(figure(f"unlabelled: {key}", key) for key in ("known", "novel", "all")),
        *(figure(f"test: {key}", f"test {key}") for key in ("known", "novel", "all")),
        figure("seconds", optional=True),
        figure("seconds for features", "feature_seconds", optional=True),
    ),
    single=LEARNING,
    best_first="all",
    notes=summary,
    picture=pictures.bars,
    alone=True,
)

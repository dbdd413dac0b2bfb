"""Settings compared on known classes that are hidden as if they were novel; no novel label plays a part.

Digits: the labelled digits alone (five classes). Two of the classes, other ones for each seed, are hidden.
Half of the images of the others are labelled. A quarter of the images serve as test images.

Other sets: two of the known classes lose their labels, and so does a quarter of the other labelled images. A
run is evaluated on these images, whose classes a user knows. They are among the unlabelled images, together
with those of the novel classes. Recall is counted. Precision follows from the number of images predicted in a
class, if all classes are equally large; both give F1.
"""

import statistics
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
from openldn.bench.cells import Bench, Cell, Figures, Scale, figure
from openldn.bench.training import code_of, rounded, same
from openldn.data import sources
from openldn.data.benchmark import Benchmark
from openldn.data.problem import UNLABELLED, Problem, Truth
from openldn.data.reading import Given
from openldn.errors import UserError
from openldn.maths import metrics
from openldn.options import Options
from openldn.run import Run

STEPS = 600  # on digits, of every setting, so that they cost about the same
BATCH = 100
DIGITS: dict[str, dict[str, Any]] = {
    "batch 100, proportional (fast)": {},
    "batch 100, proportional, no pair loss": {"pair": False},
    "batch 100, half and half": {"composition": "equal"},
    "batch 100, half and half, no pair loss": {"composition": "equal", "pair": False},
    "batch 50, proportional": {"batch": 50},
    "features attached in both steps": {"attach": "both"},
    "features attached in neither": {"attach": "neither"},
    "omega first": {"order": "omega-first"},
}

HIDDEN = (1, 4)  # of CIFAR-10's known classes a vehicle and an animal
IMAGES, SIZE, EPOCHS = 10_000, 16, 3.0  # on other sets; epochs are of the first stage
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
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
"""A system and its settings."""


class Hidden:
    """A run on a problem made by hand."""

    def trained(self, problem: Problem, truth: Truth | None, options: Options, path: Path) -> Run:
        """The finished run at `path`: trained, or resumed if it exists."""
        if path.exists():
            return job.go_on(same(Run.open(path), options), problem, truth, quiet=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        given = Given(problem, truth, (), np.arange(len(problem.images)))
        return job.start(given, options, {"kind": "arrays"}, path, quiet=True)

    def where(self, path: Path) -> str:
        """Stage and step, from the log."""
        lines = Run.open(path).metrics() if (path / "config.json").exists() else []
        return f"{lines[-1]['phase']}, step {lines[-1]['step']}" if lines else "starting"


def seconds(run: Run) -> float:
    """Of training, summed over the stages."""
    ends = {line["phase"]: line["seconds"] for line in run.metrics() if line["phase"] != "final"}
    return round(float(sum(ends.values())), 1)


# ------------------------------------------------------------------------------------------------- digits


@dataclass(frozen=True)
class OnDigits(Hidden):
    """Stage 1 on the labelled digits."""

    setting: str
    seed: int

    @property
    def record(self) -> Mapping[str, Any]:
        return {"data": "digits", "settings": DIGITS[self.setting], "steps": STEPS, "batch": BATCH}

    @property
    def modules(self) -> Sequence[str]:
        return ["openldn.bench.hidden", *code_of(Options(method="openldn"))]

    def __call__(self, path: Path, quiet: bool) -> Figures:
        problem, truth = labelled_digits(self.seed).split(known=0.6, labelled=0.5, seed=self.seed)
        settings = {"batch": BATCH, **DIGITS[self.setting]}
        n, n_unlabelled = len(problem.images), len(problem.unlabelled)
        share = 0.5 if settings.get("composition") == "equal" else n_unlabelled / n  # of a batch
        options = Options(
            method="openldn",
            seed=self.seed,
            novel=problem.n_novel,
            precision="float32",
            epochs=STEPS * settings["batch"] * share / n_unlabelled,
            settings=settings,
        )
        run = self.trained(problem, truth, options, path)
        lines = run.metrics()
        final = metrics.headline(lines[-1])
        auc = [line["similarity_auc"] for line in lines if line.get("similarity_auc") is not None][-20:]
        found = {"known": final["known"], "hidden": final["novel"], "all": final["all"]}
        if auc:
            found["similarity AUC"] = 100 * statistics.fmean(auc)
        return {**rounded(found), "seconds": seconds(run)}


def labelled_digits(seed: int) -> Benchmark:
    """The labelled images as a benchmark: classes in random order, a quarter of the images for testing."""
    problem, _ = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=seed)
    rows = problem.labelled
    order = np.random.default_rng([seed, 1]).permutation(problem.n_known)
    images, labels = problem.images[rows], order[problem.labels[rows].numpy()]
    test = np.arange(len(rows)) % 4 == 0
    train, rest = ((images[part], labels[part]) for part in (~test, test))
    return Benchmark.in_memory("labelled digits", train, rest, tuple(range(problem.n_known)), flip=False)


# --------------------------------------------------------------------------------------------- other sets


@dataclass(frozen=True)
class OnOthers(Hidden):
    """A system and its settings on another named set."""

    data: str
    setting: str
    seed: int
    images: int
    size: int
    epochs: float | None
    per_image: float | None
    data_dir: str | None

    @property
    def options(self) -> Options:
        method, settings = OTHERS[self.setting]
        first = systems.find(method).stages[0].name
        if self.epochs is not None and first in ("discover", "pu"):
            settings = {f"{first}.epochs": self.epochs, f"{first}.least_images": 0, **settings}
        return Options(method=method, seed=self.seed, precision="float32", settings=settings)

    @property
    def record(self) -> Mapping[str, Any]:
        options = self.options
        size = {"images": self.images, "size": self.size, "per_image": self.per_image}
        choices = {"method": options.method, "settings": dict(options.settings), "hidden": list(HIDDEN)}
        return {"data": self.data, **size, **choices}

    @property
    def modules(self) -> Sequence[str]:
        return ["openldn.bench.hidden", *code_of(self.options)]

    def __call__(self, path: Path, quiet: bool) -> Figures:
        problem, rows, classes = hidden(
            sources.read_named(self.data, self.data_dir).subset(self.images), self.seed, self.size
        )
        budget = None if self.per_image is None else self.per_image * len(problem.images)
        run = self.trained(problem, None, replace(self.options, novel=problem.n_novel, budget=budget), path)
        ids = torch.full_like(problem.labels, UNLABELLED)
        ids[problem.unlabelled] = torch.from_numpy(inference.predicted_ids(run))
        return {**rounded(scores(problem, ids, rows, classes)), "seconds": seconds(run)}


def hidden(benchmark: Benchmark, seed: int, size: int) -> tuple[Problem, Tensor, Tensor]:
    """The problem without some of its labels, and the rows (m,) and classes (m,) that these had.

    Images are downsized. Classes that stay known come first.
    """
    problem, _ = benchmark.split(known=0.5, labelled=0.5, seed=seed)
    kept = [k for k in range(problem.n_known) if k not in HIDDEN]
    order = torch.tensor([[*kept, *HIDDEN].index(k) for k in range(problem.n_known)])
    rows = problem.labelled
    classes = order[problem.labels[rows]]
    taken = (classes >= len(kept)) | (torch.arange(len(rows)) % 4 == 0)
    labels = torch.full_like(problem.labels, UNLABELLED)
    labels[rows[~taken]] = classes[~taken]
    images = problem.images[torch.arange(len(problem.images))]
    if size != images.shape[3]:
        parts = images.split(5000)
        images = torch.cat([F.interpolate(part.float(), size, mode="area").round() for part in parts])
    return (
        replace(
            problem,
            images=images.to(torch.uint8),
            labels=labels,
            classes=tuple(problem.classes[k] for k in kept),
            n_novel=problem.n_novel + len(HIDDEN),
        ),
        rows[taken],
        classes[taken],
    )


def scores(problem: Problem, ids: Tensor, rows: Tensor, classes: Tensor) -> dict[str, float]:
    """F1 and recall of known classes by their own ids, of hidden ones by the novel ids that fit best.

    `ids` (n,) are those of all images, UNLABELLED for labelled ones; `rows` and `classes` are of the images
    that lost their labels.
    """
    from scipy.optimize import linear_sum_assignment

    n, known = problem.n_classes, problem.n_known
    counts = metrics.confusion(classes, ids[rows], known + len(HIDDEN), n).T  # (classes, ids)
    recall = counts / counts.sum(axis=1, keepdims=True)
    labelled = np.bincount(problem.labels[problem.labelled], minlength=n)
    there = (len(problem.images) / n - labelled)[: len(recall), None]
    predicted = np.bincount(ids[problem.unlabelled], minlength=n)
    f1: NDArray[np.float64] = 2 * recall * there / (predicted + there)
    matched, to = linear_sum_assignment(-f1[known:, known:])
    return {
        f"{name} {of}": 100 * float(values.mean())
        for name, score in (("F1", f1), ("recall", recall))
        for of, values in (("known", np.diag(score)[:known]), ("hidden", score[matched + known, to + known]))
    }


# ---------------------------------------------------------------------------------------------- the bench


def cells(scale: Scale) -> list[Cell]:
    """A cell for each setting and seed; the settings depend on the data."""
    made = list[Cell]()
    for data in scale.data or ("digits",):
        if sources.read_named(data, scale.data_dir).train.files is not None:
            raise UserError(f"{data} has image files, which this bench does not read; give digits or cifar10")
        rows = [*(DIGITS if data == "digits" else OTHERS)]
        for name in scale.only:
            if name not in rows:
                raise UserError(f"there is no row {name!r} of {data}; choose from: {'; '.join(rows)}")
        made += [
            Cell((data, name), seed, measure(data, name, seed, scale))
            for seed in range(scale.seeds)
            for name in scale.only or rows
        ]
    return made


def measure(data: str, setting: str, seed: int, scale: Scale) -> OnDigits | OnOthers:
    """Of a setting, as the scale has it; the length of digits is their own."""
    if data == "digits":
        return OnDigits(setting, seed)
    epochs = scale.epochs or (EPOCHS if scale.per_image is None else None)
    images, size = scale.images or IMAGES, scale.size or SIZE
    return OnOthers(data, setting, seed, images, size, epochs, scale.per_image, scale.data_dir)


BENCH = Bench(
    name="hidden",
    about="settings compared on known classes hidden as if they were novel",
    fields=("data", "setting"),
    scale=Scale(seeds=6),
    needs=("digits", "cifar10"),
    cells=cells,
    columns=(
        figure("known"),
        figure("hidden"),
        figure("all"),
        figure("similarity AUC"),
        *(figure(f"{name} {of}") for name in ("F1", "recall") for of in ("known", "hidden")),
        figure("minutes", "seconds", per=60, optional=True),
    ),
    said=("known", "hidden", "F1 known", "F1 hidden"),
)

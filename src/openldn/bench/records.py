"""Records: whole data sets, systems at a length that gives them their due, accuracy stage by stage.

Time is that of one run with the threads that it has: give `--jobs 1` for all cores.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from openldn import device, job
from openldn.bench import paper, pictures
from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale, figure
from openldn.bench.tables import COST, check_data, present
from openldn.bench.training import FRAME, Trained
from openldn.data import reading
from openldn.data.batches import Batches
from openldn.errors import UserError
from openldn.methods import supervised
from openldn.model import new_network
from openldn.nets.classifier import infer
from openldn.options import Options
from openldn.progress import watcher
from openldn.training.loop import Training
from openldn.training.settings import Settings

ROWS: dict[str, dict[str, Any]] = {
    "pu-self-training": {"method": "pu-self-training"},
    "openldn-uda": {"method": "openldn-uda"},
    "openldn-mixmatch": {"method": "openldn-mixmatch"},
}
UPPER_BOUND = "all labels (upper bound)"
PASSES = 46.0  # per image: about what `pu-self-training` makes on CIFAR-10
DATA = ("cifar10", "cifar100", "svhn", "tiny-imagenet", "mnist", "fashion-mnist")


@dataclass(frozen=True)
class UpperBound:
    """The same network, trained on the labels of all training images."""

    data: str
    options: Options
    per_image: float

    @property
    def record(self) -> Mapping[str, Any]:
        return {"data": self.data, "per_image": self.per_image, "backbone": self.options.backbone}

    @property
    def modules(self) -> Sequence[str]:
        return (*FRAME, "openldn.bench.records", "openldn.methods.supervised")

    def __call__(self, path: Path, quiet: bool) -> Figures:
        options, on = self.options, device.pick()
        source = reading.describe(self.data, None, options)
        given = reading.read(source, options, watch=watcher(quiet).counted)
        assert given.truth is not None
        true = torch.from_numpy(reading.named(source, options).train.labels[given.kept])
        classes = given.truth.classes
        problem = replace(given.problem, labels=true, classes=classes, n_novel=0)
        [stage] = supervised.SYSTEM.stages
        settings = Settings(batch=250, epochs=None)
        torch.manual_seed(options.seed)
        network = new_network(problem, stage, options.backbone or job.BACKBONE["fast"], on)
        network.mixed_precision, network.flip_tta = job.precision(options, on) == "bfloat16", problem.flip
        training = Training(stage, problem, network, settings)
        clock = training.clock(self.per_image * len(problem.images))
        batches = Batches(
            problem,
            n_labelled=settings.batch,
            n_unlabelled=0,
            labelled_views=("weak",),
            unlabelled_views=(),
            seed=(options.seed,),
            device=on,
        )
        started = time.monotonic()
        while not clock.expired:
            torch.manual_seed(clock.step)
            before = clock.passes.total
            with clock.passes:
                training.step(batches, clock)
            clock.step, clock.last_cost = clock.step + 1, clock.passes.total - before
        right = infer(network, given.truth.images).logits.argmax(dim=1).numpy() == given.truth.labels
        seconds = round(time.monotonic() - started, 1)
        passes = round(clock.passes.total)
        return {"all": round(100 * float(right.mean()), 2), "passes": passes, "seconds": seconds, "curve": []}

    def where(self, path: Path) -> str:
        return "training"


def cells(scale: Scale) -> list[Cell]:
    """A cell for each data set, row and seed; lengths are the preset's unless the scale says otherwise."""
    for name in scale.data:
        check_data(name)
    for name in scale.only:
        if name not in (*ROWS, UPPER_BOUND):
            raise UserError(f"there is no row {name!r}; choose from: {'; '.join((*ROWS, UPPER_BOUND))}")
    return [
        Cell((data, name), seed, measure(scale, data, name, seed))
        for seed in range(scale.seeds)
        for data in present(scale.data or DATA, scale, asked=bool(scale.data))
        for name in scale.only or ROWS
    ]


def measure(scale: Scale, data: str, name: str, seed: int) -> Trained | UpperBound:
    """How a cell is measured."""
    if name != UPPER_BOUND:
        return Trained.at(scale, data, seed, **{"evaluations": 5, **ROWS[name]})
    options = Options(
        seed=seed,
        weights="scratch",
        images=scale.images,
        backbone=scale.backbone,
        size=scale.size,
        data_dir=scale.data_dir,
    )
    return UpperBound(data, options, scale.per_image or PASSES)


def after(number: int) -> Column:
    """Known / novel / all at the end of a stage, as means over seeds."""

    def text(of: Sequence[Result]) -> str:
        ends = [list(ends_of(r.figures["curve"]).values()) for r in of]
        if any(len(end) <= number + 1 for end in ends):
            return ""
        means = (sum(end[number][key] for end in ends) / len(ends) for key in ("known", "novel", "all"))
        return " / ".join(f"{mean:.1f}" for mean in means)

    return Column(f"after stage {number + 1}: known / novel / all", text, optional=True)


def ends_of(curve: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last evaluation of each stage."""
    return {point["stage"]: point for point in curve}


BENCH = Bench(
    name="records",
    about="whole data sets, systems at a length that gives them their due",
    fields=("data", "system"),
    needs=DATA,
    cells=cells,
    columns=(
        after(0),
        figure("known"),
        figure("novel"),
        figure("all"),
        figure("all, anchored", "anchored"),
        *COST,
        paper.column("main"),
    ),
    picture=pictures.curves,
)

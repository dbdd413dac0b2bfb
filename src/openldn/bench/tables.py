"""The tables and figures of the OpenLDN paper, at a scale for two cores unless another is given.

`--preset paper` with no other scale is the paper's own: its networks, images and lengths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from openldn import inference, systems
from openldn.bench import paper, pictures
from openldn.bench.cells import Bench, Cell, Figures, Result, Scale, figure
from openldn.bench.training import Trained, figures
from openldn.data import reading, sources
from openldn.errors import UserError
from openldn.run import Run
from openldn.systems import SYSTEMS

ACCURACIES = (figure("known"), figure("novel"), figure("all"))
COST = (
    figure("thousand passes", "passes", per=1e3, optional=True),
    figure("minutes", "seconds", per=60, optional=True),
)
OURS = ("openldn", "pu-self-training")


def all_systems() -> tuple[str, ...]:
    """All that learn from scratch, but two that differ from `openldn-uda` in their second stage alone; and
    two combinations.
    """
    left_out = ("openldn-fixmatch", "openldn-mean-teacher")
    names = [name for name, system in SYSTEMS.items() if system.weights == "scratch" and name not in left_out]
    return (*names, "orca+uda", "simgcd+uda")


def known_as_any(of: Sequence[Result]) -> str:
    """Known accuracy, with a mark where it is by matching."""
    text = ACCURACIES[0].text(of)
    return text if of[0].figures["ordered"] else f"{text} *"


SYSTEM_COLUMNS = (
    replace(ACCURACIES[0], text=known_as_any),
    *ACCURACIES[1:],
    figure("all, anchored", "anchored"),
    figure("known, none rejected", "none_rejected", optional=True),
    *COST,
)


def matched(results: Sequence[Result]) -> str:
    """What the mark means, if it is there."""
    if all(r.figures["ordered"] for r in results):
        return ""
    return "* by Hungarian matching: its clusters have no names"


def of_systems(default: Sequence[str], data: Sequence[str], **choices: Any) -> Callable[[Scale], list[Cell]]:
    """A cell for each data set, system and seed; the budget of passes is the same for all systems.

    In the preset `paper` each has its own paper's recipe instead; those without one are left out.
    """

    def cells(scale: Scale) -> list[Cell]:
        chosen = scale.data or tuple(data) or ("digits",)
        for name in chosen:
            check_data(name, data)
        names = [systems.find(name).name for name in scale.only or default]
        if scale.preset == "paper" and not scale.only:
            names = [name for name in names if not systems.find(name).no_recipe]
        return [
            of_system(scale, name, method, seed, choices)
            for seed in range(scale.seeds)
            for name in present(chosen, scale, asked=bool(scale.data))
            for method in names
        ]

    return cells


def of_system(scale: Scale, data: str, method: str, seed: int, choices: Mapping[str, Any]) -> Cell:
    """A cell; systems that reject do so by the true share of novel images if the scale says `oracle`."""
    measure = Trained.at(scale, data, seed, method=method, **choices)
    stages = systems.find(method).stages
    if not scale.oracle or not any(hasattr(stage.settings, "novel_share") for stage in stages):
        return Cell((data, method), seed, measure)
    about = reading.about(reading.describe(data, None, measure.options), measure.options)
    options = replace(measure.options, settings={"novel_share": about.novel_share})
    return Cell((data, f"{method} (oracle)"), seed, replace(measure, options=options))


def check_data(name: str, offered: Sequence[str] = ()) -> None:
    """An error if there is no such data set, or none of this bench."""
    if name not in sources.NAMED or (offered and name not in offered):
        raise UserError(
            f"there is no data set {name!r} here; choose one of {', '.join(offered or sources.NAMED)}"
        )


def present(names: Sequence[str], scale: Scale, asked: bool) -> list[str]:
    """The data sets that are on this machine; one that was asked for must be."""
    found = [name for name in names if asked or sources.find(name, scale.data_dir) is not None]
    if not found:
        raise UserError(
            f"none of {', '.join(names)} is in {sources.home(scale.data_dir)}; `openldn datasets` says how "
            "to get them; --data-dir says where they are"
        )
    return found


# --------------------------------------------------------------------------------- tables of systems


MAIN = Bench(
    name="main",
    about="all systems on five data sets, half of the labels",
    paper="Tables 1 and 2",
    fields=("data", "system"),
    scale=Scale(images=5_000, per_image=60),
    needs=("cifar10", "cifar100", "imagenet-100", "tiny-imagenet", "oxford-pets"),
    cells=of_systems(all_systems(), ("cifar10", "cifar100", "imagenet-100", "tiny-imagenet", "oxford-pets")),
    columns=(*SYSTEM_COLUMNS, paper.column("main")),
    best_first="anchored",
    notes=matched,
    picture=pictures.bars,
)
SYSTEMS_BENCH = Bench(
    name="systems",
    about="all systems on one data set: same images, labels, network and budget",
    fields=("data", "system"),
    scale=Scale(per_image=400),
    needs=("digits",),
    cells=of_systems(all_systems(), ()),
    columns=MAIN.columns,
    best_first="anchored",
    notes=matched,
    picture=pictures.bars,
)
FEW_LABELS = Bench(
    name="few-labels",
    about="a tenth of the labels",
    paper="Tables 5 to 7 (appendix)",
    fields=("data", "system"),
    scale=Scale(images=5_000, per_image=60),
    needs=("cifar10", "cifar100", "svhn"),
    cells=of_systems(
        ("fixmatch", "ds3l", "dtc", "rankstats", "uno", "orca", "openldn-mixmatch", "openldn-uda", *OURS),
        ("cifar10", "cifar100", "svhn"),
        labelled=0.1,
    ),
    columns=(*SYSTEM_COLUMNS, paper.column("few-labels")),
    best_first="anchored",
    notes=matched,
    picture=pictures.bars,
)
FINE_GRAINED = Bench(
    name="fine-grained",
    about="models of aircraft and cars, species of plants",
    paper="Table 8 (appendix)",
    fields=("data", "system"),
    scale=Scale(images=5_000, per_image=60),
    needs=("fgvc-aircraft", "stanford-cars", "herbarium19"),
    cells=of_systems(
        ("orca", "openldn-mixmatch", "openldn-uda", *OURS), ("fgvc-aircraft", "stanford-cars", "herbarium19")
    ),
    columns=(*SYSTEM_COLUMNS, paper.column("fine-grained")),
    best_first="anchored",
    notes=matched,
    picture=pictures.bars,
)


# --------------------------------------------------------------------------------- OpenLDN alone


STAGE_1, TWO_STAGES = "openldn", "openldn-mixmatch"


def variants(rows: Mapping[str, Mapping[str, Any]], data: str) -> Callable[[Scale], list[Cell]]:
    """A cell for each variant and seed. Stage 1 has the scale's epochs, and stage 2 as many again."""

    def cells(scale: Scale) -> list[Cell]:
        for name in scale.only:
            if name not in rows:
                raise UserError(f"there is no row {name!r}; choose from: {'; '.join(rows)}")
        [chosen] = present(scale.data[:1] or (data,), scale, asked=True)
        check_data(chosen)
        return [
            Cell((name,), seed, variant(scale, chosen, seed, rows[name]))
            for seed in range(scale.seeds)
            for name in scale.only or rows
        ]

    return cells


def variant(scale: Scale, data: str, seed: int, choices: Mapping[str, Any]) -> Trained:
    """OpenLDN with some settings; `method` is stage 1 alone unless given."""
    method = choices.get("method", STAGE_1)
    both = len(systems.find(method).stages)
    choices = {"evaluations": 1, **choices, "method": method}
    if scale.epochs is not None:
        choices["epochs"] = both * scale.epochs
    return Trained.at(replace(scale, epochs=None, per_image=None), data, seed, **choices)


ABLATION_ROWS: dict[str, dict[str, Any]] = {
    "no entropy term": {"settings": {"entropy": False}},
    "no pair loss": {"settings": {"pair": False}},
    "all pairs apart (control)": {"settings": {"target": "apart"}},
    "stage 1": {},
    "+ closed world": {"method": TWO_STAGES, "settings": {"refreshes": 0}},
    "+ iterative pseudo-labels": {"method": TWO_STAGES},
}
SIMILARITY_ROWS: dict[str, dict[str, Any]] = {
    "no pair loss": {"settings": {"pair": False}},
    "soft cosine": {"settings": {"target": "soft-cosine"}},
    "hard cosine, 0.50": {"settings": {"target": "hard-cosine", "cosine_threshold": 0.5}},
    "hard cosine, 0.95": {"settings": {"target": "hard-cosine", "cosine_threshold": 0.95}},
    "nearest neighbour": {"settings": {"target": "nearest"}},
    "all pairs apart (control)": {"settings": {"target": "apart"}},
    "learned (OpenLDN)": {},
}
AUTHORS = figure("all, authors' metric", "authors_all", optional=True)
ABLATION = Bench(
    name="ablation",
    about="components added one by one",
    paper="Table 3",
    fields=("OpenLDN",),
    scale=Scale(images=10_000, epochs=15),
    needs=("cifar100",),
    cells=variants(ABLATION_ROWS, "cifar100"),
    columns=(*ACCURACIES, AUTHORS, *COST, paper.column("ablation", "cifar100")),
    picture=pictures.bars,
)
SIMILARITY = Bench(
    name="similarity",
    about="six targets of the pair loss, and a control",
    paper="Table 4",
    fields=("pair similarities",),
    scale=Scale(images=10_000, epochs=15),
    needs=("cifar100",),
    cells=variants(SIMILARITY_ROWS, "cifar100"),
    columns=(*ACCURACIES, AUTHORS, *COST, paper.column("similarity", "cifar100")),
    picture=pictures.bars,
)


# ------------------------------------------------------------------------ what is varied along an axis


OFF_BY = (-50, -25, -10, 0, 10, 25, 50)


def wrong_counts(scale: Scale) -> list[Cell]:
    """A cell for each error of the number of novel classes, in percent."""
    [data] = present(scale.data[:1] or ("cifar100",), scale, asked=True)
    check_data(data)
    benchmark_classes = sources.NAMED[data].classes
    n_novel = benchmark_classes - (benchmark_classes + 1) // 2
    return [
        Cell(
            (f"{off:+d} %",),
            seed,
            variant(
                scale, data, seed, {"method": TWO_STAGES, "novel": max(1, round(n_novel * (1 + off / 100)))}
            ),
        )
        for seed in range(scale.seeds)
        for off in OFF_BY
    ]


UNKNOWN_COUNT = Bench(
    name="unknown-count",
    about="OpenLDN told a wrong number of novel classes, half to one and a half times the true one",
    paper="Figure 4",
    fields=("number given",),
    scale=Scale(images=10_000, epochs=10),
    needs=("cifar100",),
    cells=wrong_counts,
    columns=(*ACCURACIES, AUTHORS, *COST),
    picture=pictures.lines,
)
REFRESHES = (0, 1, 2, 5, 10, 20)
REFRESH = Bench(
    name="refresh",
    about="how often pseudo-labels are renewed in stage 2",
    paper="Figure 5 (appendix)",
    fields=("refreshes",),
    scale=Scale(images=10_000, epochs=10),
    needs=("cifar100",),
    cells=variants(
        {str(n): {"method": TWO_STAGES, "settings": {"refreshes": n, "gate": False}} for n in REFRESHES},
        "cifar100",
    ),
    columns=(*ACCURACIES, *COST),
    picture=pictures.lines,
)


def costs(scale: Scale) -> list[Cell]:
    """OpenLDN and ORCA with the same budget, evaluated often."""
    [data] = present(scale.data[:1] or ("cifar100",), scale, asked=True)
    check_data(data)
    return [
        Cell((method,), seed, Trained.at(scale, data, seed, method=method, evaluations=20))
        for seed in range(scale.seeds)
        for method in scale.only or (TWO_STAGES, "openldn-uda", "orca")
    ]


COST_BENCH = Bench(
    name="cost",
    about="accuracy against time and image passes, with ORCA and its pretraining",
    paper="Figure 3",
    scale=Scale(images=10_000, per_image=150),
    needs=("cifar100",),
    cells=costs,
    columns=(*ACCURACIES, *COST),
    picture=pictures.curves,
)


# ---------------------------------------------------------------------------------------------- t-SNE


@dataclass(frozen=True)
class Projected(Trained):
    """The class probabilities of novel images in two dimensions, after each stage."""

    most: int = 1_000  # images

    def __call__(self, path: Path, quiet: bool) -> Figures:
        run = self.run(path, quiet)
        found = figures(run)
        labels, parts = novel_probabilities(run, self.most)
        for stage, p in parts.items():
            found[f"map {stage}"] = np.round(projected(p, self.options.seed), 2).tolist()
            found[f"silhouette {stage}"] = silhouette(p, labels)
        return {**found, "classes": labels.tolist()}


def novel_probabilities(run: Run, most: int) -> tuple[Any, dict[str, Any]]:
    """True classes of some unlabelled images of novel classes (m,); their probabilities by stage (m, C)."""
    given = inference.reread(run)
    benchmark = reading.named(run.config["data"], run.options)
    assert given.truth is not None
    found = dict[str, Any]()
    for name, (rows, p) in run.probabilities().items():
        true = benchmark.train.labels[given.kept][rows.numpy()]
        novel = np.flatnonzero(true >= given.truth.n_known)[:most]
        found[name.partition("-")[2]] = p.numpy()[novel]
    return true[novel], found


def projected(p: Any, seed: int) -> Any:
    """t-SNE.  (m, C) -> (m, 2)"""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(p) - 1) / 3)
    return TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(p)


def silhouette(p: Any, labels: Any) -> float:
    """How compact and separate the true classes are, from -1 to 1."""
    from sklearn.metrics import silhouette_score

    return round(float(silhouette_score(p, labels)), 3)


def maps(scale: Scale) -> list[Cell]:
    """One run for each seed."""
    [data] = present(scale.data[:1] or ("cifar10",), scale, asked=True)
    check_data(data)
    made = [(seed, variant(scale, data, seed, {"method": TWO_STAGES})) for seed in range(scale.seeds)]
    return [Cell((TWO_STAGES,), seed, Projected(one.data, one.options)) for seed, one in made]


TSNE_BENCH = Bench(
    name="tsne",
    about="class probabilities of novel images before and after closed-world training",
    paper="Figure 2",
    scale=Scale(images=10_000, epochs=15),
    needs=("cifar10",),
    cells=maps,
    columns=(
        *ACCURACIES,
        figure("silhouette, stage 1", "silhouette discover", digits=2),
        figure("silhouette, stage 2", "silhouette mixmatch", digits=2),
    ),
    picture=pictures.maps,
)
BENCHES = (
    MAIN,
    SYSTEMS_BENCH,
    FEW_LABELS,
    FINE_GRAINED,
    ABLATION,
    SIMILARITY,
    COST_BENCH,
    TSNE_BENCH,
    UNKNOWN_COUNT,
    REFRESH,
)

"""What the similarity network of stage 1 learns, and whether that is why the pair loss helps.

Stage 1 alone, the same budget for all rows. Beside accuracy on test images: the AUC of similarities for "same
class", in percent, among labelled pairs (over the last third of training) and among pairs of novel test
images (at the end), and that of the cosine of predictions among the latter. Figures that need novel labels
serve to understand the method, not to choose settings.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openldn import inference, systems
from openldn.bench.cells import Bench, Cell, Figures, Scale, figure
from openldn.bench.training import Trained, figures, rounded
from openldn.data import sources
from openldn.errors import UserError
from openldn.maths.losses import cosine
from openldn.maths.metrics import pair_auc
from openldn.methods.openldn import Discover, Settings
from openldn.nets.classifier import infer
from openldn.run import Run

SLOW = {"similarity_lr": 1e-4, "omega_every": 1}
ROWS: dict[str, dict[str, Any]] = {
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
    "all pairs apart (control)": {"target": "apart"},
}


@dataclass(frozen=True)
class Paired(Trained):
    """Stage 1, and its similarities."""

    @property
    def modules(self) -> Sequence[str]:
        return [*super().modules, "openldn.bench.pairs"]

    def __call__(self, path: Path, quiet: bool) -> Figures:
        run = self.run(path, quiet)
        return {**figures(run), **rounded(labelled_pairs(run)), **rounded(novel_pairs(run))}


def labelled_pairs(run: Run) -> dict[str, float]:
    """Over the last third of training: AUC among labelled pairs; mean and spread of all similarities."""
    logged = [line for line in run.metrics() if line.get("similarity_auc") is not None]
    last = logged[-len(logged) // 3 :]
    names = {"labelled pairs": "similarity_auc", "mean": "similarity_mean", "spread": "similarity_spread"}
    return {name: 100 * statistics.fmean(line[key] for line in last) for name, key in names.items()}


def novel_pairs(run: Run) -> dict[str, float]:
    """AUC among pairs of novel test images, by similarities and by the cosine of predictions."""
    given, state = inference.reread(run), run.load_state("1-discover")
    problem, truth, network = given.problem, given.truth, inference.load_model(run).network
    assert truth is not None
    assert state is not None
    [stage] = systems.chosen(run.options).stages
    stage_1 = Discover(problem, network, Settings(**run.config["settings"][stage.name]))
    stage_1.load_state_dict(state["training"]["objective"])
    novel = torch.from_numpy(truth.labels >= truth.n_known)
    outputs, classes = infer(network, truth.images), truth.labels[novel.numpy()]
    with torch.no_grad():
        s = stage_1.outer.omega(outputs.z[novel].to(next(network.parameters()).device)).cpu()
    p = outputs.logits.softmax(dim=1)[novel]
    return {"novel pairs": 100 * pair_auc(s, classes), "predictions": 100 * pair_auc(cosine(p), classes)}


def cells(scale: Scale) -> list[Cell]:
    """A cell for each row and seed."""
    for name in scale.only:
        if name not in ROWS:
            raise UserError(f"there is no row {name!r}; choose from: {'; '.join(ROWS)}")
    [data] = scale.data[:1] or ("digits",)
    sources.read_named(data, scale.data_dir)  # an error if it is not there
    made = [
        (name, Trained.at(scale, data, seed, method="openldn", precision="float32", settings=ROWS[name]))
        for seed in range(scale.seeds)
        for name in scale.only or ROWS
    ]
    return [Cell((name,), one.options.seed, Paired(one.data, one.options)) for name, one in made]


BENCH = Bench(
    name="pairs",
    about="what the similarity network of stage 1 learns",
    fields=("stage 1",),
    scale=Scale(per_image=400),
    needs=("digits",),
    cells=cells,
    columns=(
        figure("known"),
        figure("novel"),
        figure("AUC, labelled pairs", "labelled pairs"),
        figure("AUC, novel pairs", "novel pairs"),
        figure("AUC of predictions, novel pairs", "predictions"),
        figure("similarities: mean", "mean"),
        figure("similarities: spread", "spread"),
        figure("minutes", "seconds", per=60, optional=True),
    ),
    said=("known", "novel", "labelled pairs", "novel pairs"),
)

"""What the similarity network of stage 1 learns on digits, and whether that is why the pair loss helps.

    python benchmarks/similarity.py [--seeds 3]

Digits as in digits.py, stage 1 alone, the same budget for all. Beside accuracy on test images: the AUC of
similarities for "same class", in percent, among labelled pairs (over the last third of training) and among
pairs of novel test images (at the end), and that of the cosine of predictions among the latter. Figures that
need novel labels serve to understand the method, not to choose settings.
"""

import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch

from openldn import Options, systems
from openldn.data import sources, workers
from openldn.maths.losses import cosine
from openldn.maths.metrics import pair_auc
from openldn.methods.openldn import Discover
from openldn.model import Model
from openldn.nets.classifier import infer

PER_IMAGE = 400  # image passes, as in `openldn bench`
SLOW = {"similarity_lr": 1e-4, "omega_every": 1}
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
    "all pairs apart (control)": {"target": "apart"},
}
COLUMNS = {
    "known": "known",
    "novel": "novel",
    "AUC, labelled pairs": "labelled pairs",
    "AUC, novel pairs": "novel pairs",
    "AUC of predictions, novel pairs": "predictions",
    "similarities: mean": "mean",
    "similarities: spread": "spread",
}


def main() -> None:
    args = harness.parser(__doc__, seeds=3, jobs=workers.count()).parse_args()
    tasks = [(name, seed) for seed in range(args.seeds) for name in SETTINGS]
    results = harness.pooled_with_bar(run, tasks, args.jobs)
    harness.table(f"digits, {args.seeds} seeds", ["stage 1"], COLUMNS, tasks, results)


def run(name: str, seed: int) -> dict[str, float]:
    """All figures of one setting, in percent."""
    problem, truth = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=seed)
    options = Options(
        method="openldn",
        seed=seed,
        novel=problem.n_novel,
        precision="float32",
        budget=PER_IMAGE * len(problem.images),
        settings=SETTINGS[name],
    )
    with tempfile.TemporaryDirectory() as folder:
        made = harness.trained_on(problem, truth, Path(folder) / "run", options)
        lines, result, model = made.metrics(), harness.result(made), Model.load(made.path)
        state = made.load_state("1-discover")
    assert state is not None
    stage_1 = Discover(problem, model.network, systems.find("openldn").settings(options)["discover"])
    stage_1.load_state_dict(state["training"]["objective"])
    novel = truth.labels >= problem.n_known
    outputs, classes = infer(model.network, truth.images), truth.labels[novel]
    with torch.no_grad():
        s = stage_1.outer.omega(outputs.z[torch.from_numpy(novel)])
    p = outputs.logits.softmax(dim=1)[torch.from_numpy(novel)]
    logged = [line for line in lines if "similarity_auc" in line]
    last = logged[-len(logged) // 3 :]

    def percent(key: str) -> float:
        return 100 * float(np.mean([line[key] for line in last]))

    return {
        **result,
        "labelled pairs": percent("similarity_auc"),
        "novel pairs": 100 * pair_auc(s, classes),
        "predictions": 100 * pair_auc(cosine(p), classes),
        "mean": percent("similarity_mean"),
        "spread": percent("similarity_spread"),
    }


if __name__ == "__main__":
    main()

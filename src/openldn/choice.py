"""Frozen, fine-tuned or from scratch: what does best on known classes that are hidden as if novel.

Each way is rehearsed on the user's own images (`data/rehearsal.py`), and all of them on the same hidden
classes. A rehearsal is shorter than the real thing and sees a sample of the images.
"""

import csv
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from openldn import device
from openldn.data import reading, rehearsal, store
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.files import read_json, write_json
from openldn.job import default_features, start
from openldn.maths import count, metrics
from openldn.options import Options, Weights
from openldn.progress import Watcher
from openldn.training import pretraining

WAYS: dict[Weights, str] = {
    "frozen": "whitened-clustering",
    "fine-tuned": "fine-tuned",
    "scratch": "pu-self-training",
}
"""The system for each use of pretrained weights. A way that comes first is quicker."""
SEEN: dict[Weights, float] = {"frozen": 0, "fine-tuned": 6_000, "scratch": 30_000}
"""Images that a network sees in a rehearsal, all in all. Half as many labels want half of the length."""
HANDICAP: dict[Weights, float] = {"frozen": 0.0, "fine-tuned": -1.0, "scratch": 2.0}
"""Points to be ahead by. With all of the labels, fine-tuning gains more than in a rehearsal."""
MOST = 2_000  # images of a rehearsal
REHEARSALS, LONGEST = 3, 90.0  # at most so many, in so many seconds; but at least one
OUT = 15.0  # points: a way that is so far behind is not rehearsed again


@dataclass(frozen=True)
class Choice:
    """What to do about pretrained weights, and how well each way found labels that were hidden."""

    weights: Weights
    scores: dict[Weights, float]  # percent

    def __str__(self) -> str:
        if not self.scores:
            return f"weights: {self.weights} (too few labels to compare); --weights overrules"
        scores = ", ".join(f"{name} {score:.0f} %" for name, score in self.scores.items())
        return f"weights: {self.weights} (known classes hidden as if novel: {scores}); --weights overrules"


def choose(
    read: Callable[[Options], Problem], options: Options, watch: Watcher
) -> tuple[Options, dict[Weights, float]]:
    """The options with the way that finds known classes best when they are hidden, and how well each did.

    The choice is remembered. `read` reads the images at the size that the options ask for.
    """
    choice = chosen(read, options, watch)
    watch.said(str(choice))
    options = replace(options, weights=choice.weights, method=options.method or WAYS[choice.weights])
    return options, choice.scores


def chosen(read: Callable[[Options], Problem], options: Options, watch: Watcher) -> Choice:
    """The choice, from the cache if the same images and labels were compared before."""
    pretrained, scratch = (
        read(replace(options, weights=way, method=WAYS[way])).check() for way in ("frozen", "scratch")
    )
    problems: dict[Weights, Problem] = {"frozen": pretrained, "fine-tuned": pretrained, "scratch": scratch}
    key = pretraining.key("choice", digest=pretrained.digest(), options=_without_display(options))
    kept = store.folder("choices") / f"{key}.json"
    with suppress(UserError, KeyError, TypeError, ValueError):
        found = read_json(kept, "")
        WAYS[found["weights"]]  # a KeyError if it is none of them
        return Choice(found["weights"], {name: float(score) for name, score in found["scores"].items()})
    try:
        choice = compared(problems, options, watch)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # it does not name a run: those of rehearsals are gone
    with suppress(OSError):
        write_json(kept, asdict(choice))
    return choice


def _without_display(options: Options) -> dict[str, Any]:
    return {**asdict(options), "save_every": 0, "evaluations": 0, "data_dir": ""}


def compared(problems: Mapping[Weights, Problem], options: Options, watch: Watcher) -> Choice:
    """The way that does best on hidden classes; `problems` has the images at the size of each way."""
    problem = problems["frozen"]
    if not rehearsal.possible(problem):
        return Choice("frozen", {})
    n_novel = options.novel
    if not isinstance(n_novel, int):
        z = default_features(problem.images, problem.flip, device.pick(options.device), options, watch)
        n_novel = count.estimate(z, problem.labels, problem.n_known, seed=options.seed).n_novel
    samples = {
        way: rehearsal.sample(own.with_novel(n_novel), MOST, options.seed) for way, own in problems.items()
    }
    found: dict[Weights, list[float]] = {way: [] for way in samples}
    seconds, started = dict[Weights, float](), time.monotonic()
    for k in range(REHEARSALS):
        means = {way: np.mean(own) if own else 100.0 for way, own in found.items()}
        close = [way for way in samples if means[way] > max(means.values()) - OUT]
        left = LONGEST - (time.monotonic() - started)
        if k and (len(close) == 1 or sum(seconds[way] for way in close) > left):
            break
        for way in close:
            watch.said(f"rehearsal {k + 1}, known classes hidden as if novel: {way}")
            began = time.monotonic()
            found[way].append(rehearsed(way, samples[way], options, options.seed + k))
            seconds[way] = time.monotonic() - began
    scores: dict[Weights, float] = {way: float(np.mean(own)) for way, own in found.items()}
    return Choice(max(scores, key=lambda way: scores[way] - HANDICAP[way]), scores)


def rehearsed(way: Weights, problem: Problem, options: Options, seed: int) -> float:
    """Percent of hidden labels that are found."""
    hidden, judged, true = rehearsal.rehearsal(problem, seed)
    own = Options(
        method=WAYS[way],
        weights=way,
        novel=hidden.n_novel,
        backbone=None if way == "scratch" else options.backbone,
        device=options.device,
        precision=options.precision,
        seed=options.seed,
    )
    if way != "frozen":
        seen = SEEN[way]
        if way == "scratch":  # larger images take longer
            seen *= min(1.0, (32 / problem.images.shape[3]) ** 2)
        own = replace(own, epochs=seen / len(hidden.unlabelled))
    with tempfile.TemporaryDirectory(prefix="openldn-rehearsal-") as folder:
        given = reading.Given(hidden, None, (), np.arange(len(hidden.images)))
        run = start(given, own, {"kind": "arrays"}, Path(folder) / "run", quiet=True)
        with (run.path / "predictions.csv").open(newline="", encoding="utf-8") as f:
            labels = [row["label"] for row in csv.DictReader(f)]  # of the unlabelled images, in order
    places = {str(name): i for i, name in enumerate(hidden.class_names())}
    rows = np.searchsorted(hidden.unlabelled.numpy(), judged.numpy())
    ids = np.array([places[labels[row]] for row in rows.tolist()])
    found = metrics.evaluate(
        true, ids, n_known=hidden.n_known, n_classes=problem.n_known, n_ids=hidden.n_classes
    )
    return metrics.headline(found)["all"]

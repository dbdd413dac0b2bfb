"""Frozen, fine-tuned or from scratch: what does best on known classes that are hidden as if novel.

Each way is rehearsed on the user's own images (`data/rehearsal.py`), and all of them on the same hidden
classes. A rehearsal is shorter than the real thing and sees a sample of the images.
"""

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
from openldn.data.features import MeanOverViews
from openldn.data.problem import Problem
from openldn.errors import Diverged, UserError
from openldn.files import read_json, write_json
from openldn.inference import predicted_ids
from openldn.job import encoder_for, start
from openldn.maths import count, metrics
from openldn.nets.encoder import Encoder
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
MOST = 2_000  # images of a rehearsal, or four labelled ones of each class
COUNTED = 10_000  # images that classes are counted by
REHEARSALS, LONGEST = 3, 90.0  # at most so many, in so many seconds; but at least one
OUT = 15.0  # points: a way that is so far behind is not rehearsed again


@dataclass(frozen=True)
class Choice:
    """What to do about pretrained weights, and how well each way found labels that were hidden."""

    weights: Weights
    scores: dict[Weights, float]  # percent

    def __str__(self) -> str:
        if not self.scores:
            needed = "comparing the ways needs 3 known classes with 2 labelled images each"
            return f"weights: {self.weights} ({needed}); --weights overrules"
        scores = ", ".join(f"{name} {score:.0f} %" for name, score in self.scores.items())
        return f"weights: {self.weights} (known classes hidden as if novel: {scores}); --weights overrules"


def choose(
    read: Callable[[Options], Problem], options: Options, watch: Watcher, *, automatic: bool
) -> tuple[Options, dict[Weights, float]]:
    """The options with the way that finds known classes best when they are hidden, and how well each did.

    The choice is remembered. `read` reads the images at the size that the options ask for. `automatic` says
    that the number of novel classes is to be estimated.
    """
    choice = chosen(read, options, watch, automatic)
    watch.said(str(choice))
    backbone = None if choice.weights == "scratch" else options.backbone
    options = replace(options, weights=choice.weights, method=WAYS[choice.weights], backbone=backbone)
    return options, choice.scores


def chosen(read: Callable[[Options], Problem], options: Options, watch: Watcher, automatic: bool) -> Choice:
    """The choice, from the cache if the same images and labels were compared before."""
    pretrained, scratch = (
        read(replace(options, weights=way, method=WAYS[way])).check() for way in ("frozen", "scratch")
    )
    problems: dict[Weights, Problem] = {"frozen": pretrained, "fine-tuned": pretrained, "scratch": scratch}
    networks = [source.digest for source in _frozen(pretrained, options).sources]
    own = _without_display(options)
    key = pretraining.key("choice", digest=pretrained.digest(), networks=networks, options=own)
    kept = store.folder("choices") / f"{key}.json"
    with suppress(UserError, KeyError, TypeError, ValueError):
        found = read_json(kept, "")
        WAYS[found["weights"]]  # a KeyError if it is none of them
        return Choice(found["weights"], {name: float(score) for name, score in found["scores"].items()})
    try:
        choice = compared(problems, options, watch, automatic)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # it does not name a run: those of rehearsals are gone
    with suppress(OSError):
        write_json(kept, asdict(choice))
    return choice


def _without_display(options: Options) -> dict[str, Any]:
    return {**asdict(options), "save_every": 0, "evaluations": 0, "data_dir": ""}


def _frozen(problem: Problem, options: Options) -> Encoder:
    return encoder_for(options, problem.images, problem.flip, device.pick(options.device))


def compared(
    problems: Mapping[Weights, Problem], options: Options, watch: Watcher, automatic: bool
) -> Choice:
    """The way that does best on hidden classes; `problems` has the images at the size of each way."""
    problem = problems["frozen"]
    if not rehearsal.possible(problem):
        return Choice("frozen", {})
    n_novel = problem.n_novel
    if automatic:
        some = rehearsal.sample(problem, COUNTED, options.seed)
        z = MeanOverViews(_frozen(problem, options).features(some.images, watch.counted))
        n_novel = count.estimate(z, some.labels, some.n_known, seed=options.seed).n_novel
    samples = {way: rehearsal.sample(own, MOST, options.seed) for way, own in problems.items()}
    n_novel = max(1, min(n_novel, len(samples["frozen"].unlabelled) // 2))
    found: dict[Weights, list[float]] = {way: [] for way in samples}
    close, seconds, started = [*samples], dict[Weights, float](), time.monotonic()
    for k in range(REHEARSALS):
        for way in close:
            watch.said(f"rehearsal {k + 1}, known classes hidden as if novel: {way}")
            began = time.monotonic()
            found[way].append(rehearsed(way, samples[way].with_novel(n_novel), options, options.seed + k))
            seconds[way] = time.monotonic() - began
        best = max(np.mean(found[way]) for way in close)
        close = [way for way in close if np.mean(found[way]) > best - OUT]
        left = LONGEST - (time.monotonic() - started)
        if len(close) == 1 or sum(seconds[way] for way in close) > left:
            break
    scores: dict[Weights, float] = {way: float(np.mean(own)) for way, own in found.items()}
    return Choice(max(close, key=lambda way: scores[way] - HANDICAP[way]), scores)


def rehearsed(way: Weights, problem: Problem, options: Options, seed: int) -> float:
    """Percent of hidden labels that are found; none by a training that diverges."""
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
        try:
            run = start(given, own, {"kind": "arrays"}, Path(folder) / "run", quiet=True)
        except Diverged:
            return 0.0
        ids = predicted_ids(run)
    ids = ids[np.searchsorted(hidden.unlabelled.numpy(), judged.numpy())]
    found = metrics.evaluate(
        true, ids, n_known=hidden.n_known, n_classes=problem.n_known, n_ids=hidden.n_classes
    )
    return metrics.headline(found)["all"]

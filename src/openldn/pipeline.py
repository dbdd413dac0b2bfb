"""From images and a few labels to a run: the one place where the parts meet."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from openldn import device, systems
from openldn.choice import WAYS, choose
from openldn.data import reading
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.files import check_absent, read_tensors
from openldn.inference import reread
from openldn.job import default_features, for_any_backbone, go_on, naming, start
from openldn.maths import count
from openldn.nets import backbones, pretrained
from openldn.options import Options, Weights, plain
from openldn.progress import watcher
from openldn.run import Run
from openldn.training.stage import System

# ------------------------------------------------------------------------------------- train, resume


def train(
    data: str | Path,
    options: Options | None = None,
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **choices: Any,
) -> Run:
    """Trains on a folder of images, a CSV file of them or a named data set, and returns the run.

    `labels` is a CSV file of `image,label`. `choices` are fields of `Options`, or settings of the system:
    `train("digits", method="orca", epochs=5, margin=0.5)`.
    """
    choices = {
        name: str(value) if isinstance(value, Path) else plain(value) for name, value in choices.items()
    }
    settings = {name: choices.pop(name) for name in choices.keys() - {f.name for f in fields(Options)}}
    options = replace(options or Options(), **choices)
    options = replace(options, settings={**options.settings, **settings})
    source = reading.describe(data, labels, options)
    asked, options = options, decided(options, source)
    if source["kind"] != "named" and asked.method is asked.weights is None and options.weights == "scratch":
        watcher(quiet).said(
            f"system: {options.method}, from scratch, since a length, preset, backbone or hyperparameter was "
            "given; --weights overrules"
        )
    name = "-".join([Path(data).resolve().name, *([options.method] if options.method else [])])
    path = Path(out) if out is not None else _free(Path("runs") / name)
    check_absent(path)
    split_file = None if options.split is None else Path(options.split)
    rehearsals: Mapping[Weights, float] = {}
    if options.weights == "auto":

        def problem(own: Options) -> Problem:
            return reading.read(source, own, split=split_file, watch=watcher(quiet).counted).problem

        automatic = reading.automatic(source, options)
        options, rehearsals = choose(problem, options, watcher(quiet), automatic=automatic)
        check(options)
    given = reading.read(source, options, split=split_file, watch=watcher(quiet).counted)
    return start(given, options, source, path, rehearsals=rehearsals, quiet=quiet)


def resume(path: str | Path, *, quiet: bool = False) -> Run:
    """Goes on where a run stopped, whatever stopped it."""
    run = Run.open(path)
    if run.finished:
        read_tensors(run.path / "model.safetensors")  # an error if it is damaged
        return run
    if run.config["data"]["kind"] == "arrays":
        raise UserError(
            f"{path} was begun from arrays in Python, which are not kept in a run; "
            "go on with it there: OpenLDN(..., out=path).fit(X, y) with the same arrays and settings"
        )
    with naming(run):
        given = reread(run, watcher(quiet).counted)
    return go_on(run, given.problem, given.truth, quiet=quiet)


def check(options: Options) -> System:
    """The system, or an error if an option cannot be used, before anything is read or written."""
    options.check()
    if options.weights == "auto" and (options.method or _length_or_settings(options)):
        raise UserError(
            "--weights auto chooses the system and its length; leave out --method, --epochs, --budget and "
            "--set, or give --weights frozen, fine-tuned or scratch"
        )
    system = systems.chosen(options)
    if options.preset == "paper" and system.no_recipe:
        raise UserError(f"{system.name} has no preset paper ({system.no_recipe}); use --preset fast")
    settings = system.settings(options)
    for own in settings.values() if options.weights in ("frozen", "fine-tuned") else ():
        used = for_any_backbone(own)
        for name in (name.rpartition(".")[2] for name in options.settings):
            if (value := getattr(own, name, None)) != getattr(used, name, None):
                raise UserError(f"{name}={value} is not for pretrained networks; leave it out")
    if options.epochs is not None and not system.trained:
        raise UserError(f"{system.name} trains nothing; leave out --epochs")
    names = [] if options.backbone is None else options.backbone.split(",")
    for name in names:
        if not pretrained.is_pretrained(name):
            backbones.builder(name)
    if len(names) > 1 and (options.weights != "frozen" or not all(map(pretrained.is_pretrained, names))):
        raise UserError("several backbones have to be pretrained and frozen; give one, or --weights frozen")
    if options.weights == "scratch" and names and pretrained.is_pretrained(names[0]):
        raise UserError(
            f"{names[0]} has pretrained weights; give --weights frozen or fine-tuned, or another --backbone"
        )
    if options.weights not in (None, "scratch") and names and not pretrained.is_pretrained(names[0]):
        raise UserError(f"{names[0]} has no pretrained weights; leave out --backbone, or --weights")
    if options.weights == "scratch":
        if system.weights != "scratch":
            raise UserError(f"{system.name} needs pretrained weights; leave out --weights scratch")
        if names and all(stage.backbone for stage in system.stages):
            raise UserError(f"{system.name} has a backbone of its own; leave out --backbone")
    if options.weights == "frozen" and (system.weights == "fine-tuned" or system.needs_images):
        raise UserError(f"{system.name} cannot work on frozen features alone; leave out --weights frozen")
    if options.weights == "fine-tuned" and system.weights == "frozen":
        raise UserError(f"{system.name} works on frozen features; leave out --weights fine-tuned")
    device.pick(options.device)
    return system


def decided(options: Options, source: Mapping[str, Any]) -> Options:
    """The options with all that is chosen before the images are looked at."""
    weights = given_weights = options.weights
    if weights is None:
        system = systems.find(options.method)
        if system.weights != "scratch":
            weights = system.weights
        elif options.backbone is not None:
            given = pretrained.is_pretrained(options.backbone.split(",")[0])
            weights = "frozen" if given else "scratch"
        else:
            # A length or a hyperparameter is for the default system.
            chosen = options.method or _length_or_settings(options)
            own_images = source["kind"] != "named" and options.preset == "fast"
            weights = "auto" if own_images and not chosen else "scratch"
    options = replace(options, weights=weights)
    if options.method is None and weights != "auto":
        asked = weights != "scratch" or (given_weights is not None and source["kind"] != "named")
        options = replace(options, method=WAYS[weights] if asked else systems.DEFAULT)
    system = check(options)
    # Not a former name.
    return options if options.method is None else replace(options, method=system.name)


def _length_or_settings(options: Options) -> bool:
    return bool(options.epochs or options.budget or options.settings)


# ------------------------------------------------------------------------------------ how many classes


def estimate(
    data: str | Path,
    options: Options | None = None,
    *,
    labels: str | Path | None = None,
    by: Literal["ours", "dtc", "gcd"] = "ours",
    quiet: bool = False,
    **choices: Any,
) -> count.Estimate | int:
    """The number of novel classes among one's images; ours comes with its interval and evidence.

    From features of a frozen pretrained network, `backbone`; nothing is trained.
    """
    options = replace(options or Options(), **choices)
    options = replace(options, weights="frozen", method="whitened-clustering", novel="auto")
    check(options)
    split = None if options.split is None else Path(options.split)
    source = reading.describe(data, labels, options)
    given = reading.read(source, options, split=split, watch=watcher(quiet).counted)
    problem, on = given.problem.check(), device.pick(options.device)
    z = default_features(problem.images, problem.flip, on, options, watcher(quiet))
    estimators: dict[str, Callable[..., count.Estimate | int]]
    estimators = {"ours": count.estimate, "dtc": count.dtc, "gcd": count.gcd}
    return estimators[by](z, problem.labels, problem.n_known, seed=options.seed)


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that is not there yet."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())

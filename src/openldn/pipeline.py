"""From images and a few labels to a run: the one place where the parts meet."""

import csv
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn

import openldn
from openldn import count, device, loop, metrics
from openldn.config import Length, Options, Settings, decide
from openldn.data import images as image_files
from openldn.data import sources
from openldn.data.problem import Problem, Truth
from openldn.data.sources import folder
from openldn.errors import UserError
from openldn.model import Model, new_network
from openldn.nets import backbones
from openldn.nets.classifier import Classifier, infer
from openldn.predictors import PREDICTORS
from openldn.progress import watcher
from openldn.recipes import Recipe, discover, recipe
from openldn.run import Run, read_json, read_tensors, write_csv, write_json

T = TypeVar("T")
PREDICTIONS = ("image", "label", "confidence", "kind")

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
    """Trains on a folder of images or a named set, and gives back the run.

    `labels` is a CSV file of `image,label`. `choices` are fields of `Options`: `train("digits", epochs=5)`.
    """
    options = replace(options or Options(), **choices)
    _check(options)
    source = _source_record(data, labels, options)
    problem, truth = _read(source, options)
    path = Path(out) if out is not None else _free(Path("runs") / f"{Path(data).name}-{options.method}")
    return start(problem, truth, options, source, path, quiet=quiet)


def resume(path: str | Path, *, quiet: bool = False) -> Run:
    """Goes on where a run stopped, whatever stopped it."""
    run = Run.open(path)
    if run.finished:
        read_tensors(run.path / "model.safetensors")  # says so if it is damaged
        return run
    source, options = run.config["data"], _options(run)
    if source["kind"] == "arrays":
        raise UserError(
            f"{path} was begun from arrays in Python, which are not kept in a run; "
            "go on with it there: OpenLDN(..., out=path).fit(X, y) with the same arrays and settings"
        )
    problem, truth = _read(source, options)
    return go_on(run, problem, truth, quiet=quiet)


def start(
    problem: Problem,
    truth: Truth | None,
    options: Options,
    source: Mapping[str, Any],
    path: Path,
    *,
    settings: Settings | None = None,
    backbone: nn.Module | None = None,
    quiet: bool = False,
) -> Run:
    """A new run at `path`, taken to its end; `settings` overrule what the options decide."""
    _check(options)
    problem.check()
    settings = settings or decide(options)
    config = {
        "openldn": openldn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "data": dict(source),
        "digest": problem.digest(),
        "classes": list(problem.classes),
        "n_novel": "auto" if _automatic(source, options) else problem.n_novel,
        "image": {
            "size": problem.images.shape[3],
            "channels": problem.images.shape[1],
            "flip": problem.flip,
        },
        "options": asdict(options),
        "settings": settings.to_json(),
    }
    run = Run.create(path, config, _split_record(problem))
    return go_on(run, problem, truth, backbone=backbone, quiet=quiet)


def _check(options: Options) -> None:
    """An error if an option cannot be used, before anything is read or written."""
    if options.seed < 0:
        raise UserError(f"the seed {options.seed} is negative; give 0 or more")
    if options.epochs is not None and not 0 < options.epochs < float("inf"):
        raise UserError(f"{options.epochs} epochs cannot be made; give a number above 0")
    for field in fields(Options):
        allowed, chosen = _choices(field.type), getattr(options, field.name)
        if allowed and chosen not in allowed and not (field.name == "novel" and type(chosen) is int):
            words = ", ".join(str(choice) for choice in allowed if choice is not None)
            raise UserError(f"{field.name} {chosen!r} is not among the choices; give one of {words}")
    if options.images is not None and options.images < 1:
        raise UserError(f"{options.images} images are too few; give a number above 0")
    recipe(options.method)
    if options.backbone is not None:
        backbones.builder(options.backbone)
    device.pick(options.device)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """What an option may be, if it is one of a few words."""
    parts = [annotation, *get_args(annotation)]
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return (*words, None) if words and type(None) in parts else tuple(words)


def go_on(
    run: Run,
    problem: Problem,
    truth: Truth | None,
    *,
    backbone: nn.Module | None = None,
    quiet: bool = False,
) -> Run:
    """Takes a run to its end, from wherever it is."""
    if problem.digest() != run.config["digest"]:
        raise UserError(
            f"the images or labels are not those that {run.path} began with; "
            "bring them back as they were, or train anew"
        )
    settings, options = _settings(run), _options(run)
    on = device.pick(options.device)
    run.cut_log()

    def network(problem: Problem, n_outputs: int, number: int) -> Classifier:
        torch.manual_seed(loop.mixed_seed(settings.seed, number))
        return new_network(problem, backbone or settings.backbone, n_outputs, on)

    def taken_to_its_end(phase: loop.Phase, number: int, **rest: Any) -> nn.Module:
        loop.train(
            phase,
            run,
            number=number,
            seed=settings.seed,
            device=on,
            watcher=watch,
            save_every=options.save_every,
            **rest,
        )
        return phase.model

    watch, system = watcher(quiet), recipe(settings.method)
    with torch.random.fork_rng():  # whoever calls keeps their random numbers
        if run.config["n_novel"] == "auto":
            problem = problem.with_novel(_count(run, problem, settings, network, taken_to_its_end))
        evaluate = _evaluator(truth, problem, system, settings)
        trained: nn.Module | None = None
        for number, build in enumerate(system.phases, start=1):
            phase = build(problem, network(problem, system.n_outputs(problem), number), settings)
            trained = taken_to_its_end(phase, number, previous=trained, evaluate=evaluate)
        assert trained is not None  # a recipe has a phase
        model = _model(trained, problem, system, settings, custom=backbone is not None)
    _finish(run, model, problem, truth)
    return run


def _count(
    run: Run,
    problem: Problem,
    settings: Settings,
    network: Callable[[Problem, int, int], Classifier],
    taken_to_its_end: Callable[..., nn.Module],
) -> int:
    """The estimated number of novel classes: from features of a half-length stage 1 with as many as known."""
    file = run.path / "count.json"
    if not file.exists():
        guess = problem.with_novel(min(problem.n_known, len(problem.unlabelled)))
        length = settings.discover.length
        half = Length(epochs=length.epochs / 2, images=length.images // 2)
        settings = replace(settings, discover=replace(settings.discover, length=half))
        phase = discover(guess, network(guess, guess.n_classes, 0), settings)
        scout = taken_to_its_end(phase, 0, previous=None, evaluate=None)
        z = infer(scout, problem.images).z
        n_novel = count.estimate(z, problem.labels, problem.n_known, seed=settings.seed)
        write_json(file, {"n_novel": n_novel})
    return int(read_json(file, "remove what is left of it and resume the run")["n_novel"])


def _model(
    network: nn.Module, problem: Problem, system: Recipe, settings: Settings, custom: bool = False
) -> Model:
    """The network with its predictor, fitted on what it says of the unlabelled images."""
    predictor = PREDICTORS[system.predictor]()
    predictor.fit(infer(network, problem.images[problem.unlabelled]), problem, settings.seed)
    size, channels = problem.images.shape[3], problem.images.shape[1]
    name = "custom" if custom else settings.backbone
    names = problem.class_names()
    return Model(network, predictor, system.predictor, names, problem.n_known, name, size, channels)  # type: ignore[arg-type]


def _evaluator(
    truth: Truth | None, problem: Problem, system: Recipe, settings: Settings
) -> Callable[[nn.Module], dict[str, Any]] | None:
    if truth is None:
        return None
    return lambda network: _score(_model(network, problem, system, settings), truth)


def _score(model: Model, truth: Truth) -> dict[str, Any]:
    return metrics.evaluate(
        truth.labels,
        model.predict(truth.images).ids.numpy(),
        n_known=truth.n_known,
        n_classes=truth.n_classes,
        n_ids=len(model.classes),
        ordered=model.predictor.ordered,
    )


def _finish(run: Run, model: Model, problem: Problem, truth: Truth | None) -> None:
    """Writes what a run leaves behind; the model last, since it says that the run is finished."""
    rows = problem.unlabelled
    names = [problem.names[i] for i in rows.tolist()]
    write_predictions(run.path / "predictions.csv", model, names, problem.images[rows])
    if truth is not None:
        run.log({"phase": "final", **_score(model, truth)})
    model.save(run.path)


# --------------------------------------------------------------------------------- predict, evaluate


def predict(run: Run | str | Path, images: str | Path, out: str | Path) -> int:
    """Labels new images, a file or all below a folder, into a CSV file; gives their number."""
    run, data, out = _finished(run), Path(images), Path(out)
    model = Model.load(run.path)
    if not data.exists():
        raise UserError(f"there is nothing at {data}; give an image or a folder of images")
    paths = image_files.find(data) if data.is_dir() else [data]
    if not paths:
        raise UserError(f"there are no images in {data}; give an image or a folder of images")
    if out.exists():
        raise UserError(f"{out} exists already and is not overwritten; choose another --out, or remove it")
    if not out.parent.is_dir():
        raise UserError(
            f"there is no folder {out.parent} to write {out.name} in; make it, or choose another --out"
        )
    pixels = image_files.read(paths, model.size, model.channels)
    names = [path.relative_to(data).as_posix() if data.is_dir() else str(path) for path in paths]
    write_predictions(out, model, names, pixels)
    return len(paths)


def write_predictions(path: Path, model: Model, names: list[str], images: Tensor) -> None:
    """`image,label,confidence,kind`, a line an image."""
    prediction = model.predict(images)
    labels = [model.classes[i] for i in prediction.ids.tolist()]
    confidence = [f"{c:.4f}" for c in prediction.confidence.tolist()]
    kinds = model.kind(prediction)
    write_csv(path, PREDICTIONS, zip(names, labels, confidence, kinds, strict=True))


def evaluate(run: Run | str | Path, truth: str | Path | None = None) -> dict[str, Any]:
    """Known, novel and all under every protocol.

    A named set is judged by its test images. For one's own images, `truth` is a CSV file of `image,label` for
    images that were unlabelled; a label that is not a known class is a novel one.
    """
    run = _finished(run)
    if truth is not None:
        return _evaluate_csv(run, Path(truth))
    source, options = run.config["data"], _options(run)
    if source["kind"] != "named":
        raise UserError(
            f"{run.path} has no test images; give true classes of unlabelled images with --truth FILE.csv"
        )
    _, test = _read(source, options)
    assert test is not None
    return _score(Model.load(run.path), test)


def _finished(run: Run | str | Path) -> Run:
    """A run that has a model; an error if it has not yet."""
    run = run if isinstance(run, Run) else Run.open(run)
    if not run.finished:
        raise UserError(f"{run.path} is not finished; go on with it: openldn resume {run.path}")
    return run


def _evaluate_csv(run: Run, truth: Path) -> dict[str, Any]:
    names = read_json(run.path / "classes.json", "the run is incomplete; go on with it: openldn resume RUN")
    file = run.path / "predictions.csv"
    try:
        known = [str(name) for name in names["known"]]
        ids = {name: i for i, name in enumerate([*known, *map(str, names["novel"])])}
        with file.open(newline="", encoding="utf-8") as f:
            predicted = {row["image"]: ids[row["label"]] for row in csv.DictReader(f)}
    except (OSError, KeyError, TypeError, UnicodeDecodeError):
        raise UserError(
            f"{file} is missing, or does not fit classes.json; train again, or take the run from a backup"
        ) from None
    given = {image: label for image, label in folder.read_labels(truth).items() if label}
    strangers = [image for image in given if image not in predicted]
    if strangers or not given:
        what = f"such as {strangers[0]!r}" if strangers else "it names none"
        raise UserError(
            f"{truth} must name images that were unlabelled in this run, as predictions.csv has them ({what})"
        )
    novel = sorted(set(given.values()) - set(known))
    classes = {name: i for i, name in enumerate([*known, *novel])}
    return metrics.evaluate(
        [classes[label] for label in given.values()],
        [predicted[image] for image in given],
        n_known=len(known),
        n_classes=len(classes),
        n_ids=len(ids),
    )


# ---------------------------------------------------------------------------------- where data come from


def _source_record(data: str | Path, labels: str | Path | None, options: Options) -> dict[str, Any]:
    if str(data) in sources.NAMED and labels is None:
        home = sources.home(options.data_dir).resolve()
        return {"kind": "named", "name": str(data), "data_dir": str(home)}
    if not Path(data).is_dir() and str(data) not in sources.NAMED:
        sources.read_named(str(data), options.data_dir)  # says what there is
    given = None if labels is None else str(Path(labels).resolve())
    return {"kind": "folder", "path": str(Path(data).resolve()), "labels": given}


def _read(source: Mapping[str, Any], options: Options) -> tuple[Problem, Truth | None]:
    """The problem a source holds, and for a named set the truth to judge by."""
    novel = 1 if _automatic(source, options) else options.novel
    if source["kind"] == "named":
        whole = sources.read_named(source["name"], source["data_dir"])
        if options.flip is not None:
            whole = replace(whole, flip=options.flip)
        if options.images is not None:
            whole = whole.subset(options.images)
        return whole.split(
            known=options.known,
            labelled=options.labelled,
            seed=options.seed,
            novel=novel,  # type: ignore[arg-type]
        )
    labels = None if source["labels"] is None else Path(source["labels"])
    problem = folder.read(
        Path(source["path"]),
        labels,
        n_novel=int(novel),  # type: ignore[arg-type]  # a folder's is a number, or was automatic
        flip=options.flip is not False,
        size=options.size,
    )
    return problem, None


def _options(run: Run) -> Options:
    """The options a run was begun with."""
    return _restored(run, lambda: Options(**run.config["options"]))


def _settings(run: Run) -> Settings:
    """What was decided for a run."""
    return _restored(run, lambda: Settings.from_json(run.config["settings"]))


def _restored(run: Run, restore: Callable[[], T]) -> T:
    try:
        return restore()
    except (TypeError, KeyError):
        raise UserError(
            f"{run.path / 'config.json'} does not fit this version of openldn; train again"
        ) from None


def _automatic(source: Mapping[str, Any], options: Options) -> bool:
    """Whether the number of novel classes is to be estimated."""
    return options.novel == "auto" or (options.novel is None and source["kind"] != "named")


def _split_record(problem: Problem) -> dict[str, Any]:
    """Who is labelled and as what, by file or row."""
    by_class: dict[str, list[str]] = {str(name): [] for name in problem.classes}
    for i in problem.labelled.tolist():
        by_class[str(problem.classes[int(problem.labels[i])])].append(problem.names[i])
    return {
        "labelled": by_class,
        "unlabelled": [problem.names[i] for i in problem.unlabelled.tolist()],
    }


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that is not there yet."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())

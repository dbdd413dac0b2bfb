"""From images and a few labels to a run: the one place where the parts meet."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import nn

import openldn
from openldn import count, device, loop, pretrained
from openldn.config import Options, Settings, decide
from openldn.data import reading, split
from openldn.data.pixels import Part
from openldn.data.problem import Problem, Truth
from openldn.errors import UserError
from openldn.inference import PREDICTIONS, prediction_rows, reread, score
from openldn.model import Model, new_network
from openldn.nets import backbones
from openldn.nets.classifier import Classifier, infer, width
from openldn.predictors import PREDICTORS, RejectAndCluster
from openldn.progress import watcher
from openldn.recipes import DISCOVER, Stage, recipe
from openldn.run import Run, check_absent, read_json, read_tensors, write_csv, write_json

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
    """Trains on a folder of images, a CSV file of them or a named set, and gives back the run.

    `labels` is a CSV file of `image,label`. `choices` are fields of `Options`: `train("digits", epochs=5)`.
    """
    options = replace(options or Options(), **choices)
    check(options)
    source = reading.describe(data, labels, options)
    name = f"{Path(data).resolve().name}-{options.method}"
    path = Path(out) if out is not None else _free(Path("runs") / name)
    check_absent(path)
    who = None if options.split is None else Path(options.split)
    given = reading.read(source, options, split=who, watch=watcher(quiet).counted)
    return start(given.problem, given.truth, options, source, path, skipped=given.skipped, quiet=quiet)


def resume(path: str | Path, *, quiet: bool = False) -> Run:
    """Goes on where a run stopped, whatever stopped it."""
    run = Run.open(path)
    if run.finished:
        read_tensors(run.path / "model.safetensors")  # says so if it is damaged
        return run
    source = run.config["data"]
    if source["kind"] == "arrays":
        raise UserError(
            f"{path} was begun from arrays in Python, which are not kept in a run; "
            "go on with it there: OpenLDN(..., out=path).fit(X, y) with the same arrays and settings"
        )
    given = reread(run, watcher(quiet).counted)
    return go_on(run, given.problem, given.truth, quiet=quiet)


def start(
    problem: Problem,
    truth: Truth | None,
    options: Options,
    source: Mapping[str, Any],
    path: Path,
    *,
    settings: Settings | None = None,
    backbone: nn.Module | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    quiet: bool = False,
) -> Run:
    """A new run at `path`, taken to its end; `settings` overrule what the options decide.

    `skipped` are files that were left out, and why.
    """
    check(options)
    problem.check()
    if settings is None:
        settings = decide(options, parts=recipe(options.method).parts)
        if options.precision is None:
            settings = replace(settings, precision=device.precision(device.pick(options.device)))
    if backbone is not None:
        width(backbone, problem.images.shape[1], problem.images.shape[3])  # says so if it cannot be used
        settings = settings.for_any_backbone()
    config = {
        "openldn": openldn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "data": dict(source),
        "digest": problem.digest(),
        "classes": list(problem.classes),
        "n_novel": "auto" if reading.automatic(source, options) else problem.n_novel,
        "image": {
            "size": problem.images.shape[3],
            "channels": problem.images.shape[1],
            "flip": problem.flip,
            "fit": "shorter side brought to size, centre cut out",
        },
        "device": device.pick(options.device).type,
        "threads": torch.get_num_threads(),
        "options": asdict(options),
        "settings": settings.to_json(),
    }
    run = Run.create(path, config, split.record(problem), skipped)
    return go_on(run, problem, truth, backbone=backbone, quiet=quiet)


def check(options: Options) -> None:
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
    if options.budget is not None and not 0 < options.budget < float("inf"):
        raise UserError(f"{options.budget} image passes cannot be made; give a number above 0")
    if options.budget is not None and options.epochs is not None:
        raise UserError("--epochs and --budget both say how long to train; give one of them")
    if options.ood_rate is not None and not 0 < options.ood_rate < 1:
        raise UserError(f"the rate {options.ood_rate} is not a share; give a number between 0 and 1")
    if options.images is not None and options.images < 1:
        raise UserError(f"{options.images} images are too few; give a number above 0")
    if options.refreshes is not None and options.refreshes < 0:
        raise UserError(f"{options.refreshes} refreshes cannot be made; give 0 or more")
    if options.threshold is not None and not -1 <= options.threshold <= 1:
        raise UserError(f"the threshold {options.threshold} is not a cosine; give a number from -1 to 1")
    if not options.save_every >= 0:
        raise UserError(f"checkpoints cannot be {options.save_every} seconds apart; give 0 or more")
    if options.evaluations is not None and options.evaluations < 0:
        raise UserError(f"{options.evaluations} evaluations cannot be made; give 0 or more")
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
    if run.finished:
        read_tensors(run.path / "model.safetensors")  # says so if it is damaged
        return run
    settings, options = run.settings, run.options
    on = device.pick(options.device)

    def network(problem: Problem, stage: Stage, number: int) -> Classifier:
        torch.manual_seed(loop.mixed_seed(settings.seed, number))
        body = stage.backbone or backbone or settings.backbone
        made = new_network(problem, body, stage.n_outputs(problem), on, stage.head)
        made.halved = settings.precision == "bfloat16"
        made.mirrored = settings.mirrored and problem.flip and stage.backbone is None
        return made

    def taken_to_its_end(phase: loop.Phase, number: int, **rest: Any) -> Classifier:
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
        assert isinstance(phase.model, Classifier)
        return phase.model

    watch, system = watcher(quiet), recipe(settings.method)
    # Nobody else works on this run meanwhile, and whoever calls keeps their random numbers.
    with run.locked(), torch.random.fork_rng(devices=[on] if on.type == "cuda" else []):
        run.cut_log()
        watch.opened(run.path)
        if run.config["n_novel"] == "auto":
            problem = problem.with_novel(_count(run, problem, settings, network, taken_to_its_end)).check()
        model: Model | None = None
        before: Classifier | None = None
        judged = list[Model]()  # the last one, so that what it learned by looking at all images is kept

        def evaluate(network: nn.Module) -> dict[str, Any]:
            assert truth is not None
            judged[:] = [_model(network, problem, stage, settings)]
            return score(judged[0], truth)

        chain = ""  # what the network has been through
        for number, stage in enumerate(system.stages, start=1):
            made = network(problem, stage, number)
            if stage.goes_on and before is not None:
                made.backbone.load_state_dict(before.backbone.state_dict())
            phase = stage.build(problem, made, settings)
            name = f"{number}-{phase.name}"
            kept = stage.pretraining and backbone is None
            if kept:
                chain = pretrained.key(
                    chain,
                    phase=name,
                    steps=phase.steps,
                    digest=problem.digest(),
                    n_novel=problem.n_novel,
                    flip=problem.flip,
                    outputs=stage.n_outputs(problem),
                    head=stage.head,
                    trained=[name for name, p in made.named_parameters() if p.requires_grad],
                    training=asdict(settings.training),
                    network=[settings.backbone, settings.precision, settings.mirrored],
                    device=on.type,
                    seed=settings.seed,
                    torch=torch.__version__,
                )
                pretrained.fetch(run, name, chain)
            times = stage.evaluations
            if options.evaluations is not None:
                times = min(times, options.evaluations)
            before = taken_to_its_end(
                phase,
                number,
                previous=None if model is None else model.probabilities,
                evaluate=None if truth is None or not times else evaluate,
                evaluations=times,
            )
            if kept:
                pretrained.keep(run, name, chain)
            if not stage.pretraining:
                # A phase that was at its end already has not been judged again.
                model = judged.pop() if judged else _model(before, problem, stage, settings)
        assert model is not None  # a recipe has a stage
        _finish(run, model, problem, truth)
    return run


def _count(
    run: Run,
    problem: Problem,
    settings: Settings,
    network: Callable[[Problem, Stage, int], Classifier],
    taken_to_its_end: Callable[..., nn.Module],
) -> int:
    """The estimated number of novel classes: from features of a half-length stage 1 with as many as known."""
    file = run.path / "count.json"
    if not file.exists():
        guess = problem.with_novel(min(problem.n_known, len(problem.unlabelled)))
        half = settings.discover.length.part(0.5)
        settings = replace(settings, discover=replace(settings.discover, length=half))
        phase = DISCOVER.build(guess, network(guess, DISCOVER, 0), settings)
        phase.name = "count"
        scout = taken_to_its_end(phase, 0, previous=None, evaluate=None)
        z = infer(scout, problem.images).z
        n_novel = count.estimate(z, problem.labels, problem.n_known, seed=settings.seed)
        write_json(file, {"n_novel": min(n_novel, len(problem.unlabelled))})
    hint = "remove what is left of it and resume the run"
    try:
        return int(read_json(file, hint)["n_novel"])
    except (KeyError, TypeError):
        raise UserError(f"{file} is damaged: {hint}") from None


def _model(network: nn.Module, problem: Problem, stage: Stage, settings: Settings) -> Model:
    """The network with its predictor, which may look at what the network says of the unlabelled images."""
    assert isinstance(network, Classifier)
    predictor = PREDICTORS[stage.predictor]()
    if isinstance(predictor, RejectAndCluster):
        predictor.rate = settings.ood_rate
    predictor.fit(lambda images: infer(network, images), problem, settings.seed)
    return Model(
        network=network,
        predictor=predictor,
        predictor_name=stage.predictor,
        classes=problem.class_names(),
        n_known=problem.n_known,
        backbone=stage.backbone or settings.backbone,
        size=problem.images.shape[3],
        channels=problem.images.shape[1],
    )


def _finish(run: Run, model: Model, problem: Problem, truth: Truth | None) -> None:
    """Writes what a run leaves behind; the model last, since it says that the run is finished."""
    rows = problem.unlabelled
    names = [problem.names[i] for i in rows.tolist()]
    images = Part(problem.images, rows)
    write_csv(run.path / "predictions.csv", PREDICTIONS, prediction_rows(model, names, images))
    if truth is not None:
        last = (run.metrics() or [{}])[-1]
        where = {key: last.get(key, 0) for key in ("step", "seconds", "passes")}
        run.log({"phase": "final", **where, **score(model, truth)})
    model.save(run.path)


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that is not there yet."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())

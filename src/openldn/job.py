"""A run at work: from a problem to a trained model in the folder of the run."""

import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import openldn
from openldn import device, systems
from openldn.data import reading, split, store
from openldn.data.features import MeanOverViews
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem, Truth
from openldn.errors import UserError
from openldn.files import read_json, read_tensors, write_csv, write_json
from openldn.inference import PREDICTIONS, prediction_rows, score
from openldn.maths import count
from openldn.model import Model, new_network
from openldn.nets import backbones, pretrained
from openldn.nets.classifier import Classifier, Prediction, Remembered, infer, n_features
from openldn.nets.encoder import Custom, Encoder, encoder
from openldn.options import Options, Precision, PresetName, Weights
from openldn.progress import Watcher, watcher
from openldn.run import Run
from openldn.training import loop, pretraining
from openldn.training.settings import Hyperparameters, Settings
from openldn.training.stage import Stage, System

BACKBONE: dict[PresetName, str] = {"fast": "small", "paper": "resnet18"}
KEPT = 5_000  # images whose probabilities are kept after each stage
FLIP_TTA: dict[PresetName, bool] = {"fast": True, "paper": False}


def decide(
    options: Options, system: System, backbone: nn.Module | None = None, data: str | None = None
) -> dict[str, Any]:
    """All that was decided beyond the options, as `config.json` records it. `data` is a named set."""
    settings, from_scratch = system.settings(options, data), options.weights in (None, "scratch")
    if backbone is not None or not from_scratch:
        settings = {name: for_any_backbone(own) for name, own in settings.items()}
    own_backbone = options.backbone or (
        default_backbone(options.preset, data) if from_scratch else pretrained.LITE0
    )
    return {
        "system": system.name,
        "weights": options.weights or "scratch",
        "settings": {name: asdict(own) for name, own in settings.items()},
        "backbone": pretrained.absolute(own_backbone) if backbone is None else "custom",
        "flip_tta": FLIP_TTA[options.preset],
    }


def default_backbone(preset: PresetName, data: str | None) -> str:
    """The network of a preset, for a named set or other images."""
    return "resnet50" if (preset, data) == ("paper", "imagenet-100") else BACKBONE[preset]


def precision(options: Options, on: torch.device) -> Precision:
    """The precision asked for; by default the paper's float32 in its preset, and else the faster one."""
    return options.precision or ("float32" if options.preset == "paper" else device.precision(on))


def for_any_backbone(settings: Hyperparameters) -> Hyperparameters:
    """The same for a user's network, of which nothing is known.

    Its convolutions may not be normalised, so Muon is not for it. It may take images of one size alone.
    """
    if not isinstance(settings, Settings):
        return settings
    changed: dict[str, Any] = {"optimiser": "adam"}
    if hasattr(settings, "progressive_resizing"):
        changed["progressive_resizing"] = False
    return replace(settings, **changed)


def start(
    given: reading.Given,
    options: Options,
    source: Mapping[str, Any],
    path: Path,
    *,
    backbone: nn.Module | None = None,
    rehearsals: Mapping[Weights, float] | None = None,
    quiet: bool = False,
) -> Run:
    """A new run at `path`, taken to its end. `rehearsals` is why these weights were chosen, in percent."""
    problem, on = given.problem.check(), device.pick(options.device)
    if backbone is not None:
        _, channels, size, _ = problem.images.shape
        n_features(backbone, channels, size)  # an error if it cannot be used
    system = systems.chosen(options)
    frozen = new_encoder(options, system, problem, on, backbone)
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
            "fit": "shorter side resized, centre cropped"
            if problem.crop is None
            else f"both sides resized; crops of {problem.crop} pixels",
        },
        "device": on.type,
        "precision": precision(options, on),
        "threads": torch.get_num_threads(),
        "options": {**asdict(options), "settings": dict(options.settings)},
        **decide(options, system, backbone, source.get("name") if source["kind"] == "named" else None),
        "encoder": None if frozen is None else frozen.record,
        "rehearsals": dict(rehearsals or {}),
    }
    run = Run.create(path, config, split.record(problem), given.skipped)
    return go_on(run, problem, given.truth, backbone=backbone, quiet=quiet)


def new_encoder(
    options: Options, system: System, problem: Problem, on: torch.device, backbone: nn.Module | None
) -> Encoder | None:
    """The frozen networks of a new run, if it has any."""
    if options.weights != "frozen" and not any(stage.frozen for stage in system.stages):
        return None
    if backbone is not None:
        own = [Custom.of(backbone, problem.images)]
        return Encoder(own, flip=problem.flip, on=on, precision=precision(options, on))
    return encoder_for(options, problem.images, problem.flip, on)


def encoder_for(options: Options, images: Images, flip: bool, on: torch.device) -> Encoder:
    """The frozen networks that the options name, by default EfficientNet-Lite0, for images of one size."""
    names = (options.backbone or pretrained.LITE0).split(",")
    sources = [pretrained.find(name).for_images_of(images.shape[3]) for name in names]
    return Encoder(sources, flip=flip, on=on, precision=precision(options, on))


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
        read_tensors(run.path / "model.safetensors")  # an error if it is damaged
        return run
    with run.locked(), one_training_at_a_time(), naming(run):
        job = Job.of(run, problem, truth, backbone, watcher(quiet))
        run.cut_log()
        job.watch.opened(run.path)
        job = job.with_features()
        if job.automatic and not any(stage.counts for stage in job.system.stages):
            job = job.with_novel(job.estimated_count(job.cached_count))
        model, result = job.train_stages()
        last, _ = job.input(job.system.stages[-1])
        _finish(run, model, last, result)
    return run


# -------------------------------------------------------------------------------- the stages of a run


@dataclass(frozen=True)
class Job:
    """A run at work: what its stages share."""

    run: Run
    options: Options
    system: System
    settings: dict[str, Hyperparameters]  # by stage
    problem: Problem
    truth: Truth | None
    backbone: nn.Module | None  # a user's own
    device: torch.device
    watch: Watcher
    encoder: Encoder | None
    frozen: Problem | None = None  # the same problem with features of the encoder for images
    frozen_truth: Truth | None = None

    @staticmethod
    def of(
        run: Run, problem: Problem, truth: Truth | None, backbone: nn.Module | None, watch: Watcher
    ) -> "Job":
        """The job that a run's configuration describes."""
        options = run.options
        system = systems.chosen(options)
        recorded = run.config["settings"]
        try:
            settings = {stage.name: stage.settings(**recorded[stage.name]) for stage in system.stages}
            for name, own in settings.items():
                own.with_values(asdict(own))
                if asdict(own).keys() != recorded[name].keys():
                    raise KeyError
        except (TypeError, KeyError, AttributeError, UserError):
            raise UserError(
                f"{run.path / 'config.json'} does not fit this version of openldn; train again"
            ) from None
        on = device.pick(options.device)
        record, frozen = run.config.get("encoder"), None
        if record:
            recorded_precision = run.config["precision"]
            frozen = encoder(record, flip=problem.flip, on=on, precision=recorded_precision, own=backbone)
        return Job(run, options, system, settings, problem, truth, backbone, on, watch, frozen)

    def with_features(self) -> "Job":
        """With the features of all images, if there is an encoder."""
        if self.encoder is None:
            return self
        both = [self.problem.images, *([] if self.truth is None else [self.truth.images])]
        made = [self.encoder.features(images, self.watch.counted) for images in both]
        truth = None if self.truth is None else replace(self.truth, images=made[1])
        return replace(self, frozen=replace(self.problem, images=made[0]), frozen_truth=truth)

    def with_novel(self, n_novel: int) -> "Job":
        """With another number of novel classes."""
        frozen = None if self.frozen is None else self.frozen.with_novel(n_novel)
        return replace(self, problem=self.problem.with_novel(n_novel).check(), frozen=frozen)

    def input(self, stage: Stage) -> tuple[Problem, Truth | None]:
        """The problem and the truth as a stage sees them: images, or features of them."""
        if self.frozen is not None and (stage.frozen or self.run.config["weights"] == "frozen"):
            return self.frozen, self.frozen_truth
        return self.problem, self.truth

    @property
    def automatic(self) -> bool:
        """Whether the number of novel classes is estimated."""
        return bool(self.run.config["n_novel"] == "auto")

    def train_stages(self) -> tuple[Model, dict[str, Any] | None]:
        """The model of the last stage, and its evaluation if there is ground truth."""
        job, model = self, None
        network: Classifier | None = None
        result: dict[str, Any] | None = None
        spent, share, cache_key, reusable = 0.0, 0.0, "", True
        for number, stage in enumerate(self.system.stages, start=1):
            share += stage.share
            budget = None
            if self.options.budget is not None:  # what earlier stages left is there too
                budget = share * self.options.budget - spent
            made = job.new_network(stage, number)
            if stage.continues and network is not None:
                made.backbone.load_state_dict(network.backbone.state_dict())
            network = made
            if stage.objective is not None:
                problem, _ = job.input(stage)
                settings = job.settings[stage.name]
                assert isinstance(settings, Settings)
                training = loop.Training(stage, problem, network, settings)
                if reusable := reusable and job.reusable(stage):
                    cache_key = job.cache_key(cache_key, stage, network, budget)
                    if number < len(self.system.stages):  # the last one is what the run is for
                        pretraining.fetch(self.run, f"{number}-{stage.name}", cache_key)
                spent += job.trained(training, number, budget, model).passes.total
                if reusable:
                    pretraining.keep(self.run, f"{number}-{stage.name}", cache_key)
                network = training.model
                if model is not None:  # not before: what this stage has asked of it is counted
                    job.keep_probabilities(model)
            remembered = Remembered(network, job.input(stage)[0].images)
            if stage.counts and self.automatic:
                job = job.with_novel(job.estimated_count(partial(job.counted, remembered)))
            if not stage.pretraining:
                model = job.model(network, number, remembered)
                last = number == len(self.system.stages)
                if self.truth is not None and (
                    last or (self.evaluations(stage) and not self.begun(number + 1))
                ):
                    _, truth = job.input(stage)
                    assert truth is not None
                    result = score(model, truth)
                    self.run.log({**self.last_position(stage), **result})
                    self.watch.evaluated(result)
        assert model is not None  # a system ends with a stage that predicts
        job.keep_probabilities(model)
        return model, result

    def trained(
        self, training: loop.Training, number: int, budget: float | None, model: Model | None
    ) -> loop.Clock:
        """Takes one stage to its end."""

        def evaluate(network: Classifier) -> dict[str, Any]:
            _, truth = self.input(training.stage)
            assert truth is not None
            return score(self.model(network, number), truth)

        def previous(images: Images) -> Prediction:
            assert model is not None
            if model.encoder is not None and len(images.shape) == 4:
                images = model.encoder.features(images)
            return model.predict(images)

        return loop.train(
            training,
            self.run,
            checkpoint=f"{number}-{training.stage.name}",
            number=number,
            seed=self.options.seed,
            device=self.device,
            budget=budget,
            previous=None if model is None else previous,
            evaluate=None if self.truth is None else evaluate,
            evaluations=self.evaluations(training.stage),
            watcher=self.watch,
            save_every=self.options.save_every,
        )

    def reusable(self, stage: Stage) -> bool:
        """Whether other runs may begin with a stage's result.

        What code outside this package does, and the weights of other networks, are not in the key. A log has
        no evaluations on the way of a stage that was not trained here.
        """
        ours = stage.objective is not None and stage.objective.__module__.startswith("openldn.")
        if not ours or self.backbone is not None or stage.pretrained:
            return False
        return stage.pretraining or self.truth is None or self.evaluations(stage) <= 1

    def keep_probabilities(self, model: Model) -> None:
        """What a stage thinks of the unlabelled images, or of some of them if there are many."""
        stage = self.system.stages[model.stage]
        problem, _ = self.input(stage)
        rows = problem.unlabelled[:: -(-len(problem.unlabelled) // KEPT)]
        self.run.save_probabilities(
            f"{model.stage + 1}-{stage.name}", rows, model.predict(Part(problem.images, rows)).p
        )

    def begun(self, number: int) -> bool:
        """Whether a stage has a checkpoint; then the stage before it has been evaluated."""
        return self.run.checkpoint(f"{number}-{self.system.stages[number - 1].name}").exists()

    def evaluations(self, stage: Stage) -> int:
        """How often a stage is evaluated, including the end."""
        own, given = stage.evaluations, self.options.evaluations
        return own if given is None or own == 0 else given

    def new_network(self, stage: Stage, number: int) -> Classifier:
        """An untrained network for a stage."""
        torch.manual_seed(loop.mixed_seed(self.options.seed, number))
        (problem, _), config = self.input(stage), self.run.config
        backbone = stage.backbone or self.backbone or self.named_backbone(stage)
        network = new_network(problem, stage, backbone, self.device, self.settings[stage.name])
        network.mixed_precision = config["precision"] == "bfloat16"
        network.flip_tta = bool(config["flip_tta"]) and problem.flip and stage.backbone is None
        return network

    def named_backbone(self, stage: Stage) -> str:
        """The run's network, as a stage's settings ask for it."""
        pooled = getattr(self.settings[stage.name], "shortcuts", "projection") == "pooled"
        return backbones.variant(self.run.config["backbone"], pooled)

    def model(self, network: Classifier, number: int, remembered: Remembered | None = None) -> Model:
        """The network with its predictor, fitted to the images at hand."""
        stage = self.system.stages[number - 1]
        problem, _ = self.input(stage)
        predictor = stage.predictor(self.settings.get(stage.name))
        predictor.fit(remembered or partial(infer, network), problem, self.options.seed)
        return Model(
            network=network,
            predictor=predictor,
            system=self.system.name,
            stage=number - 1,
            classes=problem.class_names(),
            n_known=problem.n_known,
            backbone=("adapter" if stage.backbone is None else stage.backbone)
            if problem is self.frozen
            else (stage.backbone or self.named_backbone(stage)),
            size=self.problem.images.shape[3],
            channels=self.problem.images.shape[1],
            encoder=self.encoder if problem is self.frozen else None,
            remembered=remembered,
        )

    def cache_key(self, before: str, stage: Stage, network: Classifier, budget: float | None) -> str:
        """The key of a pretraining stage in the cache."""
        (problem, _), config = self.input(stage), self.run.config
        return pretraining.key(
            before,
            stage=stage.name,
            settings=asdict(self.settings[stage.name]),
            budget=budget,
            digest=problem.digest(),
            n_novel=problem.n_novel,
            flip=problem.flip,
            outputs=stage.n_outputs(problem),
            trained=[name for name, p in network.named_parameters() if p.requires_grad],
            network=[config["backbone"], config["precision"], config["flip_tta"], config.get("encoder")],
            device=self.device.type,
            seed=self.options.seed,
            torch=torch.__version__,
            threads=torch.get_num_threads(),
        )

    def last_position(self, stage: Stage) -> dict[str, Any]:
        """Where the log stands, for an evaluation at the end of a stage."""
        last = (self.run.metrics() or [{}])[-1]
        return {"phase": stage.name, **{key: last.get(key, 0) for key in ("step", "seconds", "passes")}}

    def estimated_count(self, estimate: Callable[[], dict[str, int]]) -> int:
        """The estimated number of novel classes, which is kept in the run."""
        file, hint = self.run.path / "count.json", "remove what is left of it and resume the run"
        if not file.exists():
            write_json(file, estimate())
        try:
            found = read_json(file, hint)
            n_novel, low, high = (int(found[key]) for key in ("n_novel", "low", "high"))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(f"{file} is damaged: {hint}") from None
        self.watch.said(
            f"novel classes: {n_novel} estimated ({low} to {high}, 80 % interval); --novel N overrules, "
            "more labelled classes make it surer"
        )
        return n_novel

    def cached_count(self) -> dict[str, int]:
        """The estimate and its interval, from features of a frozen network.

        It is kept in the cache too: the next run on the same images and labels has it at once.
        """
        config = self.run.config
        depends = {name: config.get(name) for name in ("encoder", "precision")}
        digest, seed = self.problem.digest(), self.options.seed
        depends["flip"], depends["kind"] = self.problem.flip, config["data"]["kind"]
        key = pretraining.key("count", digest=digest, seed=seed, **depends)
        kept = store.folder("counts") / f"{key}.json"
        with suppress(UserError, KeyError, TypeError):
            found = read_json(kept, "")
            return {name: int(found[name]) for name in ("n_novel", "low", "high")}
        found = self.counted_by(self.count_features(), trained=False)
        with suppress(OSError):
            write_json(kept, found)
        return found

    def counted(self, network: Remembered) -> dict[str, int]:
        """The same, from features of a network that has learned from these images."""
        return self.counted_by(FeatureRows(network, self.problem.images), trained=True)

    def counted_by(self, z: count.Rows, *, trained: bool) -> dict[str, int]:
        """The same, from features z (n, d)."""
        labels, n_known = self.problem.labels, self.problem.n_known
        made = count.estimate(z, labels, n_known, seed=self.options.seed, trained=trained)
        most = len(self.problem.unlabelled)
        found = {"n_novel": made.n_novel, "low": made.low, "high": made.high}
        return {name: min(value, most) for name, value in found.items()}

    def count_features(self) -> MeanOverViews:
        """Features to count classes by: of the encoder, or of EfficientNet-Lite0 if there is none.  (n, d)"""
        if self.frozen is not None:
            return MeanOverViews(self.frozen.images)
        data, images = self.run.config["data"], self.problem.images
        if data["kind"] in ("folder", "table"):  # larger, where the files are
            own = replace(self.options, weights="frozen", size=None)
            split = self.run.path / "split.json" if own.split is not None else None
            images = reading.read(data, own, split=split, watch=self.watch.counted).problem.images
        return default_features(images, self.problem.flip, self.device, self.options, self.watch)


@dataclass(frozen=True)
class FeatureRows:
    """Features of images, inferred when they are asked for."""

    network: Remembered
    images: Images

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        return self.network(Part(self.images, rows)).z


def _finish(run: Run, model: Model, problem: Problem, result: dict[str, Any] | None) -> None:
    """Writes what a run leaves behind; the model last, since it says that the run is finished."""
    rows = problem.unlabelled
    names = [problem.names[i] for i in rows.tolist()]
    images = Part(problem.images, rows)
    write_csv(run.path / "predictions.csv", PREDICTIONS, prediction_rows(model, names, images))
    if result is not None:
        run.log({**(run.metrics() or [{}])[-1], **result, "phase": "final"})
    model.save(run.path)


_training = threading.RLock()  # torch's random state and forward mode belong to the whole process


def _after_fork() -> None:
    global _training
    _training = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def one_training_at_a_time() -> Iterator[None]:
    """Trainings in threads of one process take turns; the caller's random numbers do not move."""
    with _training, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def default_features(
    images: Images, flip: bool, on: torch.device, options: Options, watch: Watcher
) -> MeanOverViews:
    """Features of the frozen networks that the options name, or of EfficientNet-Lite0.  (n, d)"""
    names = options.backbone if options.weights == "frozen" else None
    own = Options(backbone=names, weights="frozen", precision=options.precision)
    frozen = encoder_for(own, images, flip, on)
    return MeanOverViews(frozen.features(images, watch.counted))


@contextmanager
def naming(run: Run) -> Iterator[None]:
    """An interrupt says which run it stopped."""
    try:
        yield
    except KeyboardInterrupt as e:
        e.run = run.path  # type: ignore[attr-defined]
        raise

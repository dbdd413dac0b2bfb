"""The vocabulary: a *system* is a list of *stages*; a stage trains a network on an *objective*."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.nets.classifier import Classifier, Predict
from openldn.nets.heads import HeadBuilder, Linear
from openldn.nets.predictors import Argmax, Predictor
from openldn.options import Options, PresetName, Weights
from openldn.training.schedules import Composition, proportional
from openldn.training.settings import Hyperparameters, PretrainedSettings, Settings, combined

LENGTH: dict[PresetName, tuple[float, int]] = {"fast": (16.0, 90_000), "paper": (200.0, 0)}
"""Epochs and the least number of images of a whole system, of which each stage has its share."""


Losses = Mapping[str, Tensor]  # by name; their sum is minimised


class Objective(nn.Module):
    """What a stage minimises: views, losses, and what is updated beside the network.

    Its own parameters are trained, and its state is saved, with those of the network. `average` is the
    moving average of the network, or the network itself where none is kept.
    """

    labelled_views: tuple[str, ...] = ("weak",)
    unlabelled_views: tuple[str, ...] = ()
    averaged: bool = False
    """Whether predictions come from the moving average of the network."""
    refresh_at_start: bool = False
    """Whether the first of the `settings.refreshes` comes before the first step."""
    refresh_passes: float = 1.0
    """A first guess at the cost of a refresh: image passes per unlabelled image."""

    def __init__(self, problem: Problem, network: Classifier, settings: Any):
        super().__init__()
        self.problem = problem  # what batches are drawn from; a refresh may change it
        self.settings = settings

    def composition(self) -> Composition:
        """How many labelled and unlabelled images a step has."""
        return proportional(self.problem, self.settings.batch)

    def max_steps(self) -> int | None:
        """Early stopping after this many steps, whatever the length given."""
        return None

    def begin(self, network: Classifier, previous: Predict | None) -> None:
        """Called once, before the first step, with the predictions of the stage before."""

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """Named losses; their sum is minimised."""
        raise NotImplementedError

    def after_step(self, network: Classifier, batch: Batch, progress: float) -> None:
        """Called after the optimiser's step, with the progress before it."""

    def refresh(self, average: Classifier, progress: float) -> None:
        """Called `settings.refreshes` times, evenly spaced, for updates that need a pass over all images."""

    def diagnostics(self) -> dict[str, float]:
        """Logged beside the losses."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step of a system: an objective, its settings, and the network that it trains."""

    name: str
    objective: Callable[[Problem, Classifier, Any], Objective] | None  # None: nothing is trained
    settings: type[Hyperparameters] = Settings
    share: float = 1.0
    """Share of the system's length or budget."""
    outputs: Literal["all", "known", "known+1"] = "all"
    """What the network has outputs for."""
    head: HeadBuilder = Linear
    predictor: Callable[[Any], Predictor] = Argmax
    """Built from the settings, which count when it is fitted; what predictions need is in its state."""
    continues: bool = False
    """Whether the backbone starts from the stage before."""
    evaluations: int = 1
    """How often it is evaluated if ground truth is there, including the end."""
    pretraining: bool = False
    """Whether other systems start in the same way: its result is cached, and has no predictor."""
    backbone: str | None = None
    """A backbone that it cannot do without."""
    frozen: bool = False
    """Whether it takes features of a frozen pretrained network instead of images."""
    needs_images: bool = False
    """Whether it cannot do with such features."""
    pretrained: bool = False
    """Whether its network starts from pretrained weights."""
    counts: bool = False
    """Whether the number of novel classes, if it is not given, is estimated from its features."""

    def n_outputs(self, problem: Problem) -> int:
        """How many outputs the network has."""
        if self.outputs == "all":
            return problem.n_classes
        return problem.n_known + (self.outputs == "known+1")


@dataclass(frozen=True, kw_only=True)
class System:
    """What `--method` names."""

    name: str
    about: str
    """One line."""
    paper: str = ""
    """Authors, venue, year."""
    no_recipe: str = ""
    """Why it has no preset `paper`, if so."""
    stages: tuple[Stage, ...]

    def settings(self, options: Options, data: str | None = None) -> dict[str, Hyperparameters]:
        """The settings of each stage, by its name: the preset's, on a named data set, changed as the options
        say.
        """
        given = self._assigned(options.settings)
        lengths = {name for own in given.values() for name in own} & {"epochs", "least_images"}
        if options.budget is not None and lengths:
            raise UserError(f"{min(lengths)} and a budget both say how long to train; give one of them")
        epochs, least = LENGTH[options.preset]
        whole = sum(stage.share for stage in self.trained)
        found = dict[str, Hyperparameters]()
        for stage in self.stages:
            settings = stage.settings.of_preset(options.preset, data)
            if not isinstance(settings, Settings):
                pass
            elif options.epochs is not None:
                share = stage.share / whole
                settings = replace(settings, epochs=share * options.epochs, least_images=0)
            elif options.budget is not None:
                settings = replace(settings, epochs=None, least_images=None)
            elif settings.epochs is None:
                settings = replace(
                    settings, epochs=stage.share * epochs, least_images=round(stage.share * least)
                )
            elif settings.least_images is None:
                settings = replace(settings, least_images=0)
            found[stage.name] = settings.with_values(given[stage.name])
        return found

    @property
    def weights(self) -> Weights:
        """What pretrained weights it is for: frozen ones, ones that go on learning, or none."""
        if all(stage.frozen for stage in self.stages):
            return "frozen"
        return "fine-tuned" if any(stage.frozen or stage.pretrained for stage in self.stages) else "scratch"

    def from_pretrained(self) -> "System":
        """The same, but networks start from pretrained weights, with settings for that."""
        stages = (
            replace(stage, settings=combined(stage.settings, PretrainedSettings), pretrained=True)
            if issubclass(stage.settings, Settings) and stage.backbone is None and not stage.frozen
            else stage
            for stage in self.stages
        )
        return self if self.weights == "fine-tuned" else replace(self, stages=tuple(stages))

    @property
    def needs_images(self) -> bool:
        """Whether a stage cannot do with features of a frozen network."""
        return any(stage.needs_images for stage in self.stages)

    @property
    def trained(self) -> list[Stage]:
        """The stages that train something."""
        return [stage for stage in self.stages if stage.objective is not None]

    def _assigned(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Each value with the stages it is for: NAME is for all that have it, STAGE.NAME for one."""
        assigned: dict[str, dict[str, Any]] = {stage.name: {} for stage in self.stages}
        names = {stage.name: [f.name for f in fields(stage.settings)] for stage in self.stages}
        for qualified, value in sorted(values.items(), key=lambda item: "." in item[0]):
            stage, dot, name = qualified.rpartition(".")
            of = [stage] if dot else [*names]
            of = [stage for stage in of if name in names.get(stage, ())]
            if not of:
                there = dict.fromkeys(name for own in names.values() for name in own)
                raise UserError(
                    f"{self.name} has no setting {qualified!r}; it has {', '.join(there) or 'none'}"
                    + (f" (stages: {', '.join(names)})" if dot else "")
                )
            for stage in of:
                assigned[stage][name] = value
        return assigned

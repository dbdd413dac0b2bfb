"""A cell that trains a system on a named data set and judges it on the test images."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openldn import inference, pipeline, systems
from openldn.bench.cells import Figures, Scale
from openldn.data import reading
from openldn.errors import UserError
from openldn.maths import metrics
from openldn.options import Options
from openldn.run import Run

KEYS = ("known", "novel", "all")
FRAME = ("openldn.training.loop", "openldn.data.reading", "openldn.maths.metrics", "openldn.nets.backbones")


@dataclass(frozen=True)
class Trained:
    """A training run. Its figures: accuracy at the end and on the way, image passes, seconds."""

    data: str
    options: Options

    @staticmethod
    def at(scale: Scale, data: str, seed: int, **choices: Any) -> "Trained":
        """With the options that a scale implies; `per_image` becomes a budget, the same for all systems."""
        options = Options(
            seed=seed,
            data_dir=scale.data_dir,
            images=scale.images,
            preset=scale.preset,
            backbone=scale.backbone,
            size=scale.size,
            evaluations=0,  # the end of a run is evaluated anyway
        )
        options = replace(options, **choices)
        if options.epochs is None and systems.find(options.method).trained:
            options = replace(options, epochs=scale.epochs)
        if scale.per_image is not None:
            about = reading.about(reading.describe(data, None, options), options)
            options = replace(options, budget=scale.per_image * about.n_images)
        source = {"kind": "named", "name": data}
        return Trained(data, pipeline.decided(options, source))

    @property
    def record(self) -> Mapping[str, Any]:
        """What differs from the default; where the data lie does not matter."""
        given, default = asdict(self.options), asdict(Options())
        given["settings"] = dict(self.options.settings)
        changed = {k: v for k, v in given.items() if v != default[k] and k not in ("data_dir", "save_every")}
        return {"data": self.data, **changed}

    @property
    def modules(self) -> Sequence[str]:
        """The frame, and the parts of the system."""
        return [*FRAME, *code_of(self.options)]

    def __call__(self, path: Path, quiet: bool) -> Figures:
        return figures(self.run(path, quiet))

    def run(self, path: Path, quiet: bool) -> Run:
        """The finished run at `path`: trained, or resumed if it exists."""
        if path.exists():
            return pipeline.resume(same(Run.open(path), self.options).path, quiet=quiet)
        path.parent.mkdir(parents=True, exist_ok=True)
        return pipeline.train(self.data, self.options, out=path, quiet=quiet)

    def where(self, path: Path) -> str:
        """Stage and step, from the log."""
        lines = Run.open(path).metrics() if (path / "config.json").exists() else []
        return f"{lines[-1]['phase']}, step {lines[-1]['step']}" if lines else "starting"


def same(run: Run, options: Options) -> Run:
    """The run itself; an error if it was begun with other options, as by a bench of another scale."""
    if run.options != options:
        raise UserError(f"{run.path} is a run with other choices; give another --out, or remove it")
    return run


def code_of(options: Options) -> list[str]:
    """The modules of a system's parts."""
    parts = list[Any]()
    for stage in systems.chosen(options).stages:
        parts += [stage.objective, stage.settings, stage.head, stage.predictor]
    own = {getattr(part, "__module__", None) for part in parts if part is not None}
    return sorted(name for name in own if name and name.startswith("openldn."))


def figures(run: Run) -> Figures:
    """Of a finished run: the end under the headline protocol and others, and each evaluation."""
    lines = run.metrics()
    final = inference.evaluate(run, as_authors=True)
    ends = {line["phase"]: line for line in lines if line["phase"] != "final"}
    return {
        **rounded(metrics.headline(final)),
        "authors_all": round(final["protocols"]["authors"]["all"], 2),
        "anchored": round(final["protocols"]["anchored"]["all"], 2),
        "ordered": final["ordered"],  # else known accuracy is by Hungarian matching
        "none_rejected": None if "none_rejected" not in final else round(final["none_rejected"], 2),
        "nmi": round(final["nmi"], 4),
        "passes": round(sum(line["passes"] for line in ends.values())),
        "seconds": round(sum(line["seconds"] for line in ends.values()), 1),
        "curve": curve(lines),
    }


def curve(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run, with seconds and passes since its beginning; the last of a stage counts."""
    found = list[dict[str, Any]]()
    before, last = {"seconds": 0.0, "passes": 0.0}, None
    for line in lines:
        if line["phase"] == "final":
            continue
        if last is not None and line["phase"] != last["phase"]:
            before = {key: value + last[key] for key, value in before.items()}
        last = line
        if "protocols" in line:
            since = {key: round(value + line[key], 1) for key, value in before.items()}
            found.append(
                {"stage": line["phase"], "step": line["step"], **since, **rounded(metrics.headline(line))}
            )
    return found


def rounded(scores: Mapping[str, float]) -> dict[str, float]:
    """To a hundredth of a percent."""
    return {key: round(float(value), 2) for key, value in scores.items()}

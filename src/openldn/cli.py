"""The commands: a table of ordinary functions, nothing else.

What a command needs is imported when it runs, so that `--help` answers at once.
"""

import io
import json
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, Suppress, UseAppendAction, arg

from openldn.errors import Diverged, UserError
from openldn.options import DataOptions, Options, PresetName, SystemOptions, TrainingOptions, parsed, shown_as

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from openldn.run import Run


# What several commands take.
OutFolder = Annotated[Path | None, shown_as("DIR", "a new one in runs/")]
Seed = Annotated[int, shown_as("S", "0")]
DataDir = Annotated[str | None, shown_as("DIR", "$OPENLDN_DATA, else the user's cache")]


@dataclass(frozen=True, kw_only=True)
class DataChoice(DataOptions):
    """Data."""

    labels: Annotated[Path | None, shown_as("FILE.csv")] = None
    """CSV file with the columns image,label; no row or an empty label means unlabelled."""


@dataclass(frozen=True, kw_only=True)
class SystemChoice(SystemOptions):
    """What to train."""

    settings: Suppress[Mapping[str, Any]] = field(default_factory=dict)
    set: UseAppendAction[Annotated[tuple[str, ...], shown_as("NAME=VALUE")]] = ()
    """Set a hyperparameter (see `openldn systems NAME`), for one stage as STAGE.NAME=VALUE. Repeatable."""


def demo(out: OutFolder = None, seed: Seed = 0) -> None:
    """Trains on handwritten digits: five classes known, five to be discovered.

    Args:
        out: Folder of the run.
        seed: Random seed.
    """
    from openldn import device, inference, pipeline

    device.keep_freed_memory()
    _say(
        "1,433 handwritten digits. Half of the digits 0 to 4 have a label; others do not.\n"
        "OpenLDN learns the five known classes and discovers the other five.\n"
        "It is evaluated on 364 digits it has never seen."
    )
    run = pipeline.train("digits", out=out, seed=seed)
    _show(inference.evaluate(run), run)


def train(
    source: Annotated[str, Positional, shown_as("DATA")],
    /,
    data: OmitArgPrefixes[DataChoice] = DataChoice(),
    system: OmitArgPrefixes[SystemChoice] = SystemChoice(),
    training: OmitArgPrefixes[TrainingOptions] = TrainingOptions(),  # noqa: B008
    out: OutFolder = None,
) -> None:
    """Trains on a folder of images, a CSV file of them, or a named data set.

    In a folder, DATA/<class>/* are labelled and DATA/unlabelled/* are not; or
    --labels says which are.

    Args:
        source: A folder, a CSV file of image,label, or a named data set (see `openldn datasets`).
        data: Which images, and which of them are labelled.
        system: What to train.
        training: How long to train, and on what.
        out: Folder of the run.
    """
    from openldn import device, pipeline

    given = _given(data) | _given(system) | _given(training) | {"settings": _settings(system.set)}
    device.keep_freed_memory()
    _conclude(pipeline.train(source, Options(**given), labels=data.labels, out=out))


def _given(group: DataOptions | SystemOptions | TrainingOptions) -> dict[str, Any]:
    """The options of a group, parsed."""
    hints, given = get_type_hints(Options), dict[str, Any]()
    for name in hints.keys() - {"settings"}:
        if hasattr(group, name):
            given[name] = getattr(group, name)
            if isinstance(given[name], str):
                with suppress(ValueError):  # what is left as text is refused by `Options.check`
                    given[name] = parsed(given[name], hints[name])
    return given


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = dict[str, str]()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"--set {text} is not of the form NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def resume(run: Annotated[Path, Positional, shown_as("RUN")], /) -> None:
    """Goes on where a run stopped, whatever stopped it.

    Args:
        run: Folder of the run.
    """
    from openldn import device, pipeline

    device.keep_freed_memory()
    _conclude(pipeline.resume(run))


def predict(
    run: Annotated[Path, Positional, shown_as("RUN")],
    images: Annotated[Path, Positional, shown_as("IMAGES")],
    /,
    out: Annotated[Path, shown_as("FILE.csv", "predictions.csv")] = Path("predictions.csv"),
) -> None:
    """Labels new images.

    Args:
        run: Folder of the run.
        images: An image, or a folder of images.
        out: CSV file to write: image,label,confidence,kind.
    """
    from openldn import inference

    n = inference.predict(run, images, out)
    _say(f"{n} images labelled: {out}")


def evaluate(
    run: Annotated[Path, Positional, shown_as("RUN")],
    /,
    truth: Annotated[Path | None, shown_as("CSV", "a named data set's test images")] = None,
    predictions: Annotated[Path | None, shown_as("CSV", "the run's own, of unlabelled images")] = None,
    as_json: FlagCreatePairsOff[Annotated[bool, arg(name="json", help_behavior_hint="")]] = False,
    as_authors: FlagCreatePairsOff[Annotated[bool, arg(name="authors", help_behavior_hint="")]] = False,
) -> None:
    """Known, novel and all accuracy under every protocol.

    Args:
        run: Folder of the run.
        truth: CSV file of image,label with the ground truth.
        predictions: With --truth: the predictions to evaluate, a file that `openldn predict` wrote.
        as_json: Print JSON instead of a table.
        as_authors: Add the metric of OpenLDN's published code, which is wrong where a class stays empty.
    """
    from openldn import inference
    from openldn.run import Run, finite

    opened = Run.open(run)
    result = inference.evaluate(opened, truth, predictions, as_authors=as_authors)
    if as_json:
        print(json.dumps(finite(result), indent=2))
    else:
        _show(result, opened)


def estimate(
    source: Annotated[str, Positional, shown_as("DATA")],
    /,
    data: OmitArgPrefixes[DataChoice] = DataChoice(),
    backbone: Annotated[str | None, shown_as("NAME", "efficientnet-lite0")] = None,
    by: Annotated[Literal["ours", "dtc", "gcd"], shown_as("{ours,dtc,gcd}", "ours")] = "ours",
    seed: Seed = 0,
) -> None:
    """Estimates the number of novel classes by features of a frozen network.

    Args:
        source: As for `train`: a folder, a CSV file of image,label, or a named data set.
        data: Which images, and which of them are labelled.
        backbone: The frozen network (see `openldn backbones`).
        by: The estimator: ours, or those of DTC (2019) and GCD (2022).
        seed: Random seed.
    """
    from openldn import pipeline

    options = Options(**_given(data), backbone=backbone, seed=seed)
    found = pipeline.estimate(source, options, labels=data.labels, by=by)
    if isinstance(found, int):
        _say(f"novel classes: {found}")
        return
    _say(f"novel classes: {found.n_novel} ({found.low} to {found.high}, 80 % interval)")
    _print(_evidence(found))
    known = f"{found.evidence.labelled_share:.0%} of the images of known classes seem to be labelled"
    _say(f"{known}, and {found.evidence.novel_images:.0%} of the unlabelled images seem to be novel.")
    _say(f"Train with it: openldn train ... --novel {found.n_novel}")


def _evidence(found: Any, width: int = 30) -> Any:
    """A picture of what an estimate was read from: novel groups, by how finely known classes are cut."""
    from rich.table import Table

    evidence = found.evidence
    table = Table("groups", "per known class", "novel groups", title="k-means, coarse to fine")
    most = max([*evidence.novel, 1.0])
    nearest = min(range(len(evidence.groups)), key=lambda i: abs(evidence.per_known[i] - 1))
    for i, (groups, per_known, novel) in enumerate(
        zip(evidence.groups, evidence.per_known, evidence.novel, strict=True)
    ):
        bar = "█" * round(width * novel / most)
        mark = " ← one group per known class" if i == nearest else ""
        table.add_row(str(groups), f"{per_known:.2f}", f"{bar} {novel:.0f}{mark}")
    return table


def datasets(data_dir: DataDir = None, get: Annotated[str | None, shown_as("NAME")] = None) -> None:
    """Lists the named data sets, or downloads one.

    Args:
        data_dir: The folder they are kept in.
        get: Download and unpack this data set.
    """
    from rich.filesize import decimal
    from rich.markup import escape
    from rich.table import Table

    from openldn.data import sources

    if get is not None:
        sources.get(get, data_dir)
        return
    columns = ("name", "classes", "images", "pixels", "download", "licence", "present", "how to get it")
    home = escape(str(sources.home(data_dir)))
    table = Table(*columns, title=f"Named data sets; each belongs in {home}/NAME")
    for name, known in sources.NAMED.items():
        present = sources.find(name, data_dir) is not None
        size = decimal(sum(archive.size for archive in known.archives)) if known.archives else "-"
        how = f"openldn datasets --get {name}" if known.offered else known.how_to_get
        numbers = (str(known.classes), f"{known.images:,}", str(known.size), size, known.licence)
        table.add_row(name, *numbers, "yes" if present else "no", "" if present else how)
    _print(table)


def systems(name: Annotated[str | None, Positional, shown_as("[NAME]")] = None, /) -> None:
    """Lists the systems, or shows one: its paper, stages and hyperparameters.

    Args:
        name: A system, or a combination such as orca+uda.
    """
    from rich.table import Table

    from openldn.systems import CLOSED_WORLD, SYSTEMS, find, load_plugins

    if name is not None:
        _show_system(find(name))
        return
    load_plugins()
    table = Table("system", "what it is", title="Systems")
    for system in SYSTEMS.values():
        table.add_row(system.name, system.about)
    _print(table)
    _say(f"Closed-world training can follow any: +{', +'.join(CLOSED_WORLD)}")
    _say("Settings of a system: openldn systems NAME")


def _show_system(system: Any) -> None:
    from dataclasses import asdict

    from rich.table import Table

    _say(textwrap.fill(f"{system.name}: {system.about}", 80))
    if system.paper:
        _say(textwrap.fill(f"paper: {system.paper}", 80))
    if system.no_recipe:
        _say(textwrap.fill(f"It has no preset paper: {system.no_recipe}.", 80))
    presets: tuple[PresetName, ...] = ("fast",) if system.no_recipe else ("fast", "paper")
    made = {preset: system.settings(Options(preset=preset)) for preset in presets}
    for stage in system.stages:
        if not stage.settings.described():
            _say(f"\nstage {stage.name}: nothing to set")
            continue
        columns = [asdict(made[preset][stage.name]) for preset in presets]
        table = Table("setting", *presets, "meaning", title=f"stage {stage.name}", title_justify="left")
        for name, meaning in stage.settings.described().items():
            table.add_row(name, *(_value(own[name]) for own in columns), meaning)
        _print(table)
        for data, changed in {} if system.no_recipe else stage.settings.changes().items():
            values = ", ".join(f"{name} {_value(value)}" for name, value in changed.items())
            _say(textwrap.fill(f"paper, {data}: {values}", 80))
    _say(f"Change one: openldn train DATA --method {system.name} --set NAME=VALUE")


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def backbones(
    no_speed: FlagCreatePairsOff[Annotated[bool, arg(name="no-speed", help_behavior_hint="")]] = False,
) -> None:
    """Lists the networks for --backbone, and how fast they are on this machine.

    Args:
        no_speed: Do not measure how fast they are.
    """
    import torch
    from rich.table import Table

    from openldn import device
    from openldn.nets import pretrained
    from openldn.nets.backbones import BACKBONES, build

    on, small = device.pick(), 32
    dtype = torch.bfloat16 if device.precision(on) == "bfloat16" else torch.float32
    table = Table(title="Networks for --backbone")
    narrow = _console().width < 110
    table.add_column("name", overflow="fold")
    for column in ("features", "pixels", "size"):
        table.add_column(column)
    table.add_column("weights, licence", width=10 if narrow else None)
    table.add_column("present, images/s", width=8 if narrow else None)

    def add(name: str, facts: pretrained.Listed, origin: str, network: "nn.Module | None") -> None:
        here = "no" if network is None else "yes"
        if network is not None and not no_speed:
            ready = pretrained.fast_inference(network).to(on, dtype)
            here += f", {pretrained.images_per_second(ready, (3, facts.size, facts.size)):,.0f}"
        size = f"{facts.parameters / 1e6:.1f} M"
        table.add_row(name, f"{facts.features:,}", f"{facts.size}", size, f"{origin}, {facts.licence}", here)

    for name, facts in pretrained.LISTED.items():
        origin = "wheel" if name == pretrained.LITE0 else "hub"
        found = None
        if pretrained.present(name):
            try:
                found = pretrained.find(name).module()
            except UserError as e:  # the others are listed all the same
                _warn(str(e))
        add(name, facts, origin, found)
    for name in BACKBONES:
        network = build(name, 3, small).eval()
        if n_parameters := sum(p.numel() for p in network.parameters()):
            d = network(torch.zeros(1, 3, small, small)).shape[1]
            add(name, pretrained.Listed(d, small, n_parameters, "MIT"), "random", network)
    _print(table)
    _say("wheel: it came with this package; hub: Hugging Face; random: from scratch")
    _say("Any other model of images can be given by its Hugging Face id or its folder.")


def bench(
    name: Annotated[str, Positional, shown_as("NAME")],
    /,
    plan: FlagCreatePairsOff[Annotated[bool, arg(name="plan", help_behavior_hint="")]] = False,
    data: Annotated[tuple[str, ...], shown_as("[NAME ...]", "the bench's own")] = (),
    only: Annotated[tuple[str, ...], shown_as("[NAME ...]", "all")] = (),
    seeds: Annotated[int | None, shown_as("N", "3")] = None,
    images: Annotated[int | None, shown_as("N", "the bench's own")] = None,
    size: Annotated[int | None, shown_as("PIXELS", "the preset's")] = None,
    per_image: Annotated[float | None, shown_as("PASSES", "the bench's own")] = None,
    epochs: Annotated[float | None, shown_as("E", "the bench's own")] = None,
    preset: Annotated[Literal["fast", "paper"], shown_as("{fast,paper}", "fast")] = "fast",
    backbone: Annotated[str | None, shown_as("NAME", "the preset's")] = None,
    novel_share: Annotated[Literal["prior", "oracle"], shown_as("{prior,oracle}", "prior")] = "prior",
    jobs: Annotated[int | None, shown_as("N", "one per core; 1 on a GPU")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, shown_as("DIR", "runs/bench-NAME")] = None,
) -> None:
    """Makes a table or figure of the paper, or one of our own.

    `openldn bench list` names them. Runs that were stopped are resumed.

    Finished ones are not run again: DIR/results.json has their figures.

    Args:
        name: A bench, or list.
        plan: Only say what it would take on this machine, from a few measured steps of each run.
        data: Named data sets.
        only: Only these systems or rows.
        seeds: Number of seeds; each draws other labels too.
        images: Use only N training images, the same number of each class.
        size: Resize images from files to this many pixels.
        per_image: Budget in image passes (forward 1, backward 2) per training image, including pretraining.
        epochs: Instead: passes over the unlabelled images of each stage.
        preset: paper: the paper's networks, settings, images and lengths.
        backbone: The network that learns.
        novel_share: How many images are rejected as novel: prior, as expected; oracle, the true share.
        jobs: Runs at a time, each on its share of the cores.
        data_dir: The folder that named data sets are kept in.
        out: Folder of the runs and results.
    """
    from dataclasses import replace

    from openldn.bench import find, running, shown
    from openldn.bench import plan as plans
    from openldn.bench.kept import Results

    if name == "list":
        _list_benches(data_dir)
        return
    made = find(name)
    given: dict[str, Any] = {"data": data, "only": only, "seeds": seeds, "images": images, "size": size}
    given |= {"per_image": per_image, "epochs": epochs, "backbone": backbone}
    own = made.scale
    if preset == "paper" or per_image is not None or epochs is not None:  # another length
        own = replace(own, per_image=None, epochs=None, images=None if preset == "paper" else own.images)
    scale = replace(own, **{key: value for key, value in given.items() if value not in (None, ())})
    scale = replace(scale, preset=preset, oracle=novel_share == "oracle", data_dir=data_dir)
    if scale.per_image is not None and scale.epochs is not None:
        raise UserError("--per-image and --epochs both say how long to train; give one of them")
    for option, value in (("seeds", scale.seeds), ("per-image", scale.per_image), ("jobs", jobs)):
        if value is not None and not value >= 1:
            raise UserError(f"--{option} {value:g} leaves nothing to do; give at least 1")
    cells, folder = made.cells(scale), out or Path("runs") / f"bench-{name}"
    if plan:
        finished = sum(Results(made, folder).of(cell) is not None for cell in cells)
        _print(plans.table(cells, finished, running.jobs_at_a_time(made, jobs)))
        return
    try:
        done = running.run(made, cells, folder, jobs, scale)
    except KeyboardInterrupt:
        print("stopped; give the same command again to go on", file=sys.stderr)
        sys.exit(130)
    title = f"{made.about} ({made.measured_on or f'{scale.sentence}; test images, protocol openldn'})"
    _print(shown.fitted(made, done.results, title, _console().width))
    _say(
        f"Written: {', '.join(map(str, [folder / 'results.json', *shown.write(made, done.results, folder)]))}"
    )
    if done.failed:
        raise UserError(
            f"{len(done.failed)} runs failed, the first: {done.failed[0]}; give the same command again to go "
            "on with them"
        )


def _list_benches(data_dir: str | None) -> None:
    from rich.table import Table

    from openldn.bench import BENCHES
    from openldn.bench.kept import Results
    from openldn.data import sources

    table = Table("bench", "what it measures", "in the paper", "data it needs (* not here)", "done here")
    for name, known in BENCHES.items():
        needs = (one + ("" if sources.find(one, data_dir) else " *") for one in known.needs)
        try:
            done = str(len(Results(known, Path("runs") / f"bench-{name}").found) or "")
        except UserError:
            done = "damaged"
        table.add_row(name, known.about, known.paper, ", ".join(needs), done)
    _print(table)
    _say("done here: finished runs in runs/bench-NAME; what one takes: openldn bench NAME --plan")


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "resume": resume,
    "predict": predict,
    "evaluate": evaluate,
    "estimate": estimate,
    "datasets": datasets,
    "systems": systems,
    "backbones": backbones,
    "bench": bench,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command; invalid input stops with a one-sentence error and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if [*argv] == ["--version"]:
        import openldn

        print(f"openldn {openldn.__version__}")
        return
    # Waiting threads should soon sleep: spinning for long, the default, makes a run beside other work many
    # times as slow; sleeping at once costs a quarter of a run on small images.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        _run(argv)


def _run(argv: Sequence[str]) -> None:
    try:
        help_alone = {*argv} & {"-h", "--help"} or not {*argv} & COMMANDS.keys()
        with redirect_stdout(_Usage(sys.stdout)) if help_alone else nullcontext():
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="openldn",
                description="Open-world learning on images: recognise known classes, discover novel ones.",
                args=argv,
            )
    except (UserError, Diverged) as e:
        # One line, whatever line breaks a file's name or a label may hold.
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as e:
        run = getattr(e, "run", None)
        how = (
            f"go on from the last checkpoint with: openldn resume {run}" if run else "nothing was trained yet"
        )
        print(f"stopped; {how}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as e:
        where = f" ({e.filename})" if e.filename else ""
        print(f"error: {e.strerror or e}{where}; check the disk and its permissions", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as e:
        if "out of memory" not in str(e).lower() and "can't allocate memory" not in str(e).lower():
            raise
        print(
            "error: memory is full; try a smaller --size, another --backbone or --device, or --set batch=...",
            file=sys.stderr,
        )
        sys.exit(2)


class _Usage(io.TextIOBase):
    """Standard output with a usage line that is folded, and not longer for every command there is."""

    def __init__(self, out: TextIO):
        self.out = out

    def write(self, text: str) -> int:
        text = text.replace("{" + ",".join(COMMANDS) + "}", "COMMAND ...")
        if text.startswith("usage: "):
            usage, end, rest = text.partition("\n")
            text = textwrap.fill(usage, 80, subsequent_indent=" " * 7, break_on_hyphens=False) + end + rest
        return self.out.write(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.out.encoding

    def isatty(self) -> bool:
        return self.out.isatty()

    def flush(self) -> None:
        self.out.flush()


def _conclude(run: "Run") -> None:
    """Shows what a finished run found."""
    from openldn.files import read_json

    final = [line for line in run.metrics() if line.get("phase") == "final"]
    if final:
        _show(final[-1], run)
        return
    import csv
    from collections import Counter

    from rich.markup import escape
    from rich.table import Table

    classes = read_json(run.path / "classes.json", "the run is incomplete")
    images, unsure = Counter[str](), Counter[str]()
    with (run.path / "predictions.csv").open(newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            images[row["label"]] += 1
            unsure[row["label"]] += row["kind"] == "unsure"
    table = Table("class", "kind", "unlabelled images", "of these unsure", title="Unlabelled images by class")
    for kind in ("known", "novel"):
        for name in map(str, classes[kind]):
            table.add_row(escape(name), kind, str(images[name]), str(unsure[name]))
    _print(table)
    _say("unsure: the most likely class has a probability below 0.5")
    _say(
        f"The run: {run.path}\nLabel and confidence of each unlabelled image: {run.path / 'predictions.csv'}"
    )


def _show(result: Mapping[str, Any], run: "Run") -> None:
    from rich.table import Table

    table = Table("protocol", "known", "novel", "all", title="Accuracy in percent")
    for name, scores in result["protocols"].items():
        cells = (
            "-" if scores[k] is None or scores[k] != scores[k] else f"{scores[k]:.1f}"
            for k in ("known", "novel", "all")
        )
        table.add_row(name, *cells)
    _print(table)
    if not result["ordered"]:
        _say("Its clusters have no names: known accuracy is by Hungarian matching, except in `anchored`.")
    if result.get("left_out"):
        _say(
            f"{result['images']} images were evaluated; {result['left_out']} others in the file have "
            "no prediction."
        )
    _say(f"NMI {result['nmi']:.3f}, ARI {result['ari']:.3f}")
    _say(
        f"The run: {run.path}\nLabel and confidence of each unlabelled image: {run.path / 'predictions.csv'}"
    )


def _print(table: Any) -> None:
    _console().print(table)


def _console() -> "Console":
    from rich.console import Console

    console = Console()
    # A pipe has no width: let lines be as long as they are.
    return console if console.is_terminal else Console(width=160)


def _say(text: str) -> None:
    print(text, flush=True)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)

"""The verbs: a table of ordinary functions, nothing else.

What a verb needs is imported when it runs, so that `--help` answers at once.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from openldn.config import Options
from openldn.errors import Diverged, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from openldn.run import Run


def demo(out: Path | None = None, seed: int = 0) -> None:
    """The whole thing on real handwritten digits: five classes known, five to be discovered.

    Args:
        out: Folder of the run (default: a new one in runs/).
        seed: Seed of all that is random.
    """
    from openldn import device, inference, pipeline

    device.keep_freed_memory()
    _say(
        "1,433 handwritten digits. Half of the 0 to 4 carry a label; the rest, and all 5 to 9, do not.\n"
        "OpenLDN learns the first five and discovers the rest; 364 digits it never saw judge it."
    )
    run = pipeline.train("digits", out=out, seed=seed)
    _show(inference.evaluate(run), run)


def train(
    data: Positional[str],
    /,
    options: OmitArgPrefixes[Options] = Options(),  # noqa: B008
    labels: Path | None = None,
    out: Path | None = None,
) -> None:
    """Trains on a folder of images, a CSV file of them, or a named data set.

    Args:
        data: A folder, a CSV file of image,label, or a name that `openldn datasets` lists. In a folder,
            DATA/<class>/* are labelled and DATA/unlabelled/* are not; or --labels says what is.
        options: What may be chosen.
        labels: CSV file with the columns image,label; no row or an empty label means unlabelled.
        out: Folder of the run (default: a new one in runs/).
    """
    from openldn import device, pipeline

    device.keep_freed_memory()
    run = pipeline.train(data, options, labels=labels, out=out)
    _conclude(run)


def resume(run: Positional[Path], /) -> None:
    """Goes on where a run stopped, whatever stopped it.

    Args:
        run: Folder of the run.
    """
    from openldn import device, pipeline

    device.keep_freed_memory()
    _conclude(pipeline.resume(run))


def predict(run: Positional[Path], images: Positional[Path], /, out: Path = Path("predictions.csv")) -> None:
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
    run: Positional[Path],
    /,
    truth: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Known, novel and all accuracy under every protocol.

    Args:
        run: Folder of the run.
        truth: CSV file of image,label for images that were unlabelled (default: a named set's test images).
        as_json: Print JSON instead of a table.
    """
    from openldn import inference
    from openldn.run import Run, finite

    opened = Run.open(run)
    result = inference.evaluate(opened, truth)
    if as_json:
        print(json.dumps(finite(result), indent=2))
    else:
        _show(result, opened)


def datasets(data_dir: Path | None = None, get: str | None = None) -> None:
    """The named data sets: where each belongs, whether it is there, how to get it.

    Args:
        data_dir: Where named sets are kept (default: $OPENLDN_DATA, else the user's cache).
        get: Name of a set to download and unpack there.
    """
    from rich.filesize import decimal
    from rich.markup import escape
    from rich.table import Table

    from openldn.data import sources

    if get is not None:
        sources.get(get, data_dir)
        return
    columns = ("name", "classes", "images", "pixels", "download", "licence", "there", "how to get it")
    table = Table(
        *columns, title=f"Named data sets; each belongs in {escape(str(sources.home(data_dir)))}/NAME"
    )
    for name, known in sources.NAMED.items():
        there = sources.find(name, data_dir) is not None
        size = decimal(sum(archive.size for archive in known.archives)) if known.archives else "-"
        how = f"openldn datasets --get {name}" if known.offered else known.how_to_get
        figures = (str(known.classes), f"{known.images:,}", str(known.size), size, known.licence)
        table.add_row(name, *figures, "yes" if there else "no", "" if there else how)
    _print(table)


def systems() -> None:
    """The systems: what `--method` may be."""
    from rich.table import Table

    from openldn.recipes import CLOSED, RECIPES

    table = Table("method", "what it is", title="Systems")
    for name, recipe in RECIPES.items():
        table.add_row(name, recipe.about)
    _print(table)
    _say(f"Any of them but openldn-... may go on with +{', +'.join(CLOSED)}: orca+uda.")


def bench(
    what: Positional[Literal["systems"]],
    /,
    data: str = "digits",
    seeds: int = 3,
    per_image: float = 400.0,
    images: int | None = None,
    only: tuple[str, ...] = (),
    ood_rate: Literal["prior", "oracle"] = "prior",
    at_once: int | None = None,
    data_dir: str | None = None,
    out: Path | None = None,
) -> None:
    """Every system under one protocol: the same labels, the same network, the same budget; one table.

    What was stopped goes on, and what is finished is not run again.

    Args:
        what: systems: all of them, on one data set.
        data: A named data set.
        seeds: How many seeds; each draws other labels too.
        per_image: Budget: image passes (forward 1, backward 2) for each training image, pretraining
            included.
        images: Of the training images, take only so many, evenly from all classes.
        only: These systems alone (default: all that `openldn systems` lists but openldn-fixmatch and
            openldn-mean-teacher, and orca+uda and simgcd+uda).
        ood_rate: How many images are rejected by systems that know the known classes alone: as many as there
            would be if all classes were equally frequent (prior), or as there are (oracle), which nobody
            knows; the table says so.
        at_once: Runs at a time, each on its share of the cores (default: one a core; one where there is a
            faster device).
        data_dir: Where named sets are kept (default: $OPENLDN_DATA, else the user's cache).
        out: Folder of the runs (default: runs/bench-DATA).
    """
    from openldn import bench

    folder = out or Path("runs") / f"bench-{data}"
    try:
        table, failed = bench.systems(
            data,
            folder,
            only=only or bench.SYSTEMS,
            seeds=seeds,
            per_image=per_image,
            images=images,
            oracle=ood_rate == "oracle",
            data_dir=data_dir,
            at_once=at_once,
            width=_console().width,
        )
    except KeyboardInterrupt:
        print("stopped; give the same command again to go on", file=sys.stderr)
        sys.exit(130)
    _print(table)
    _say(f"The runs: {folder}")
    if failed:
        raise UserError(
            f"runs that did not come to their end: {len(failed)}, the first: {failed[0]}; give the same "
            "command again to go on with them"
        )


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "resume": resume,
    "predict": predict,
    "evaluate": evaluate,
    "datasets": datasets,
    "systems": systems,
    "bench": bench,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the verb that was asked for; errors of use are one sentence and exit code 2."""
    warnings.showwarning = _warn
    # Threads that wait should soon sleep: if they spin for long, as they would, a run beside other work takes
    # many times as long; if they sleep at once, waking them costs a quarter of a run of small images.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS,
            prog="openldn",
            description="Open-world learning on images: recognise known classes, discover novel ones.",
            args=argv,
        )
    except (UserError, Diverged) as e:
        # One line, whatever line breaks a file's name or a label may hold.
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; a run goes on from its last checkpoint with: openldn resume RUN", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as e:
        where = f" ({e.filename})" if e.filename else ""
        print(f"error: {e.strerror or e}{where}; check the disk and who may write there", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as e:
        if "out of memory" not in str(e).lower() and "can't allocate memory" not in str(e).lower():
            raise
        print("error: memory is full; try a smaller --size, another --backbone or --device", file=sys.stderr)
        sys.exit(2)


def _conclude(run: "Run") -> None:
    """What a finished run has to say."""
    from openldn.run import read_json

    final = [line for line in run.metrics() if line.get("phase") == "final"]
    if final:
        _show(final[-1], run)
        return
    import csv
    from collections import Counter

    from rich.markup import escape
    from rich.table import Table

    classes = read_json(run.path / "classes.json", "the run is incomplete")
    with (run.path / "predictions.csv").open(newline="", encoding="utf-8") as f:
        counted = Counter(row["label"] for row in csv.DictReader(f))
    table = Table("class", "kind", "unlabelled images", title="What the unlabelled images show")
    for kind in ("known", "novel"):
        for name in classes[kind]:
            table.add_row(escape(str(name)), kind, str(counted[str(name)]))
    _print(table)
    _say(f"The run: {run.path}\nEach image's label and confidence: {run.path / 'predictions.csv'}")


def _show(result: dict[str, Any], run: "Run") -> None:
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
        _say("Its clusters have no names: known accuracy is by the best matching, but in `anchored`.")
    _say(f"NMI {result['nmi']:.3f}, ARI {result['ari']:.3f}")
    _say(f"The run: {run.path}\nEach image's label and confidence: {run.path / 'predictions.csv'}")


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

"""From what a user names to a Problem: a folder, or a benchmark that is split into one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openldn.config import PRESETS, Options
from openldn.data import sources
from openldn.data.problem import Problem, Truth
from openldn.data.sources import folder
from openldn.errors import UserError

OF_NAMED_SETS = ("known", "labelled", "images", "data_dir")  # options that mean nothing for a folder


def describe(data: str | Path, labels: str | Path | None, options: Options) -> dict[str, Any]:
    """What was named, in a form that a run can keep and read again."""
    defaults = Options()
    if str(data) in sources.NAMED and labels is None:
        if Path(data).is_dir():
            raise UserError(f"{data} is both a data set and a folder here; for the folder, say ./{data}")
        _refuse(options, defaults, ("size",), f"the data set {data}")
        home = sources.home(options.data_dir).resolve()
        return {"kind": "named", "name": str(data), "data_dir": str(home)}
    if not Path(data).is_dir():
        raise UserError(
            f"there is no folder {str(data)!r}, nor a data set of that name; "
            f"give a folder of images or one of {', '.join(sources.NAMED)}"
        )
    _refuse(options, defaults, OF_NAMED_SETS, "a folder")
    given = None if labels is None else str(Path(labels).resolve())
    return {"kind": "folder", "path": str(Path(data).resolve()), "labels": given}


def read(source: Mapping[str, Any], options: Options) -> tuple[Problem, Truth | None]:
    """The problem a source holds, and for a named set the truth to judge by."""
    novel = 1 if automatic(source, options) else options.novel
    assert novel is None or isinstance(novel, int)
    if source["kind"] == "named":
        whole = sources.read_named(source["name"], source["data_dir"])
        if options.flip is not None:
            whole = replace(whole, flip=options.flip)
        if options.images is not None:
            whole = whole.subset(options.images)
        return whole.split(known=options.known, labelled=options.labelled, seed=options.seed, novel=novel)
    assert novel is not None
    problem = folder.read(
        Path(source["path"]),
        None if source["labels"] is None else Path(source["labels"]),
        n_novel=novel,
        flip=options.flip is not False,
        size=options.size,
        largest=PRESETS[options.preset].largest,
    )
    return problem, None


def automatic(source: Mapping[str, Any], options: Options) -> bool:
    """Whether the number of novel classes is to be estimated."""
    return options.novel == "auto" or (options.novel is None and source["kind"] != "named")


def _refuse(options: Options, defaults: Options, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            raise UserError(f"--{name.replace('_', '-')} means nothing for {what}; leave it out")

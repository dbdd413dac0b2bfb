"""From what a user names to a Problem: a folder, a CSV file, or a benchmark that is split into one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openldn.config import PRESETS, Options
from openldn.data import images, sources, store
from openldn.data import split as splits
from openldn.data.duplicates import warn_of_copies, warn_of_leaks
from openldn.data.pixels import Part
from openldn.data.problem import LabelledSet, Listing, Problem, Truth, encode
from openldn.data.sources import folder
from openldn.errors import UserError

OF_NAMED_SETS = ("known", "labelled", "images", "data_dir")  # options that mean nothing for one's own images


@dataclass(frozen=True)
class Given:
    """What was read: the problem, for a named set the truth to judge by, and files that were left out."""

    problem: Problem
    truth: Truth | None
    skipped: tuple[tuple[str, str], ...]  # name and reason


def describe(data: str | Path, labels: str | Path | None, options: Options) -> dict[str, Any]:
    """What was named, in a form that a run can keep and read again."""
    path, defaults = Path(data), Options()
    if str(data) in sources.NAMED and labels is None:
        if path.is_dir():
            raise UserError(f"{data} is both a data set and a folder here; for the folder, say ./{data}")
        home = sources.home(options.data_dir).resolve()
        return {"kind": "named", "name": str(data), "data_dir": str(home)}
    if str(data) in sources.NAMED and not path.is_dir():
        raise UserError(f"{data} has labels of its own; leave out --labels")
    if path.suffix.lower() == ".csv" and path.is_file():
        if labels is not None:
            raise UserError(f"{data} is a CSV file with labels of its own; leave out --labels")
        _refuse(options, defaults, "a CSV file")
        return {"kind": "table", "path": str(path.resolve())}
    if not path.is_dir():
        raise UserError(
            f"there is no folder {str(data)!r}, nor a data set of that name; "
            f"give a folder of images, a CSV file of image,label, or one of {', '.join(sources.NAMED)}"
        )
    _refuse(options, defaults, "a folder")
    given = None if labels is None else str(Path(labels).resolve())
    return {"kind": "folder", "path": str(path.resolve()), "labels": given}


def read(
    source: Mapping[str, Any],
    options: Options,
    *,
    split: Path | None = None,
    watch: store.Watch | None = None,
) -> Given:
    """What a source holds; `split` is the file that says who is labelled, if the options name one."""
    novel = 1 if automatic(source, options) else options.novel
    assert novel is None or isinstance(novel, int)
    if options.size is not None:
        images.check_size(options.size)
    record = splits.read(split) if split is not None else None
    if source["kind"] == "named":
        whole, skipped = _benchmark(source, options, watch)
        if options.flip is not None:
            whole = replace(whole, flip=options.flip)
        if options.images is not None:
            whole = whole.subset(options.images)
        problem, truth = whole.split(
            known=options.known, labelled=options.labelled, seed=options.seed, novel=novel, split=record
        )
        return Given(problem, truth, skipped)
    assert novel is not None
    path = Path(source["path"])
    if source["kind"] == "table":
        own = folder.find_listed(path, record)
    else:
        own = folder.find(path, None if source["labels"] is None else Path(source["labels"]), record)
    made = store.decoded(
        own.paths,
        root=str(path),
        size=options.size,
        largest=PRESETS[options.preset].largest,
        watch=watch,
    )
    kept = made.kept.tolist()
    ids, classes = encode([own.labels[i] for i in kept])
    names = tuple(own.names[i] for i in kept)
    problem = Problem(made.images, ids, names, classes, novel, options.flip is not False)
    warn_of_copies(problem)
    return Given(problem, None, _named(made.skipped, own.names))


def automatic(source: Mapping[str, Any], options: Options) -> bool:
    """Whether the number of novel classes is to be estimated."""
    return options.novel == "auto" or (options.novel is None and source["kind"] != "named")


def _benchmark(
    source: Mapping[str, Any], options: Options, watch: store.Watch | None
) -> tuple[LabelledSet, tuple[tuple[str, str], ...]]:
    """A named set with its pixels: as its publisher has them, or decoded."""
    found = sources.read_named(source["name"], source["data_dir"])
    if isinstance(found, LabelledSet):
        if options.size not in (None, found.images.shape[3]):
            raise UserError(
                f"{found.name} has images of {found.images.shape[3]} pixels, which stay as they are; "
                "leave out --size"
            )
        return found, ()
    size = options.size or min(found.size, PRESETS[options.preset].largest)
    if options.images is not None:
        found = _first(found, options.images)
    made = store.decoded(
        [*found.paths, *found.test_paths], root=str(found.root), size=size, channels=3, watch=watch
    )
    n = len(found.paths)
    train, test = made.kept[made.kept < n], made.kept[made.kept >= n] - n
    names = [path.relative_to(found.root).as_posix() for path in (*found.paths, *found.test_paths)]
    rows = torch.arange(len(made.kept))
    whole = LabelledSet(
        name=found.name,
        images=Part(made.images, rows[: len(train)]),
        labels=found.labels[train],
        test_images=Part(made.images, rows[len(train) :]),
        test_labels=found.test_labels[test],
        classes=found.classes,
        flip=found.flip,
        names=tuple(names[i] for i in train.tolist()),
    )
    warn_of_leaks(whole)
    return whole, _named(made.skipped, names)


def _first(found: Listing, n: int) -> Listing:
    """The first training files of each class, so that no more are decoded than are wanted."""
    each = max(1, n // len(found.classes))
    rows = np.sort(
        np.concatenate([np.flatnonzero(found.labels == k)[:each] for k in range(len(found.classes))])
    )
    return replace(found, paths=tuple(found.paths[i] for i in rows.tolist()), labels=found.labels[rows])


def _named(skipped: Mapping[int, str], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    left_out = tuple((names[i], reason) for i, reason in sorted(skipped.items()))
    images.warn_of_unreadable(left_out, len(names), "skipped.csv")
    return left_out


def _refuse(options: Options, defaults: Options, what: str) -> None:
    for name in OF_NAMED_SETS:
        if getattr(options, name) != getattr(defaults, name):
            raise UserError(f"--{name.replace('_', '-')} means nothing for {what}; leave it out")

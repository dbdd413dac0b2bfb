"""From a data source to a Problem: a folder, a CSV file, arrays, or a benchmark that is split into one."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from os.path import exists, isdir, isfile  # unlike those of Path, they never raise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import image_files, pixels, sources, store
from openldn.data import split as splits
from openldn.data.benchmark import Benchmark
from openldn.data.pixels import Listing
from openldn.data.problem import UNLABELLED, Problem, Truth, encode
from openldn.data.sources import arrays, folder
from openldn.data.store import Watch
from openldn.data.views import RESIZED_ABOVE
from openldn.errors import OpenLDNWarning, UserError
from openldn.options import OF_NAMED_SETS, Options

AT_ONCE = 1000  # new image files that are decoded at a time
Skipped = tuple[tuple[str, str], ...]  # the name of each image that cannot be read, and the reason


@dataclass(frozen=True)
class Given:
    """A problem that was read, and which of the images it has."""

    problem: Problem
    truth: Truth | None  # for named sets: the ground truth to evaluate by
    skipped: Skipped
    kept: NDArray[np.int64]  # the rows of the (training) images that could be read


class NewImages(NamedTuple):
    """Some of the images to predict: those that can be read, and those that cannot."""

    names: tuple[str, ...]
    images: Tensor  # uint8 (n, c, size, size)
    skipped: Skipped


class About(NamedTuple):
    """What can be known of a data source without decoding images."""

    n_images: int  # for training
    novel_share: float | None  # of novel classes among the unlabelled images; None if the truth is not known


def describe(data: str | Path, labels: str | Path | None, options: Options) -> dict[str, Any]:
    """A data source as a dictionary that a run records and `read` takes."""
    path = Path(data)
    if "\0" in f"{data}{labels}":
        raise UserError(f"{str(data)!r} or {str(labels)!r} is not a path; remove the NUL character")
    if str(data) in sources.NAMED and labels is None:
        if isdir(path):
            raise UserError(f"{data} is both a data set and a folder here; for the folder, say ./{data}")
        home = sources.home(options.data_dir).resolve()
        return {"kind": "named", "name": str(data), "data_dir": str(home)}
    if str(data) in sources.NAMED and not isdir(path):
        raise UserError(f"{data} has labels of its own; leave out --labels")
    if path.suffix.lower() == ".csv" and isfile(path):
        if labels is not None:
            raise UserError(f"{data} is a CSV file with labels of its own; leave out --labels")
        _refuse_options_of_named_sets(options, "a CSV file")
        return {"kind": "table", "path": str(path.resolve())}
    if not isdir(path):
        known = ", ".join(sources.NAMED)
        remedy = f"give a folder of images, a CSV file of image,label, or one of {known}"
        if isfile(path):
            what = "an image" if path.name.lower().endswith(image_files.SUFFIXES) else "a file"
            raise UserError(f"{data} is {what}, not a folder; {remedy}")
        raise UserError(f"there is no folder {str(data)!r}, nor a data set of that name; {remedy}")
    _refuse_options_of_named_sets(options, "a folder")
    csv_file = None if labels is None else str(Path(labels).resolve())
    return {"kind": "folder", "path": str(path.resolve()), "labels": csv_file}


def automatic(source: Mapping[str, Any], options: Options) -> bool:
    """Whether the number of novel classes is to be estimated."""
    return options.novel == "auto" or (options.novel is None and source["kind"] != "named")


def read(
    source: Mapping[str, Any], options: Options, *, split: Path | None = None, watch: Watch | None = None
) -> Given:
    """Reads a data source. `split` is the file that says which images are labelled, if there is one."""
    novel = 1 if automatic(source, options) else options.novel
    assert novel is None or isinstance(novel, int)
    record = None if split is None else splits.read(split)
    if source["kind"] != "named":
        assert novel is not None
        flip, largest = options.flip is not False, options.largest
        listing, left_out = _own(source, record)
        return _read_own(listing, novel, flip, options.size, largest, watch, left_out)
    benchmark, skipped, kept = _opened_benchmark(named(source, options), options, watch)
    problem, truth = benchmark.split(
        known=options.known, labelled=options.labelled, seed=options.seed, novel=novel, split=record
    )
    return Given(problem, truth, skipped, kept)


def read_arrays(
    X: Any,
    y: Any,
    *,
    n_novel: int,
    flip: bool,
    size: int | None = None,
    largest: int = 224,
    watch: Watch | None = None,
) -> Given:
    """Reads images `X`, an array or a list of paths, with labels `y`, as the estimator takes them."""
    return _read_own(arrays.find(X, y, size), n_novel, flip, size, largest, watch)


def new_images(X: Any, *, size: int, channels: int, squash: bool = False) -> Iterator[NewImages]:
    """Images to predict, a part at a time: an image, a folder, a list of paths or an array.

    Files are resized to `size`, as in training. An array must have that size already; it is one part.
    """
    if isinstance(X, str | PathLike):
        files, names, left_out = _files_at(Path(X))
        return _decoded_in_parts(files, names, size, channels, left_out, squash)
    elif (found := arrays.paths(X)) is not None:
        files, names = found, [image_files.printable(file) for file in found]
    else:
        images = arrays.read_images(X, size=size, channels=channels)
        return iter([NewImages(tuple(map(str, range(len(images)))), images, ())])
    return _decoded_in_parts(files, names, size, channels, squash=squash)


def about(source: Mapping[str, Any], options: Options) -> About:
    """The number of training images and the novel share of the unlabelled ones, without decoding images."""
    record = None if options.split is None else splits.read(Path(options.split))
    if source["kind"] != "named":
        return About(len(_own(source, record)[0]), None)
    benchmark = named(source, options)
    labels, n_known = benchmark.split_labels(
        known=options.known, labelled=options.labelled, seed=options.seed, split=record
    )
    novel = benchmark.train.labels[labels == UNLABELLED] >= n_known
    return About(len(labels), float(novel.mean()))


def _own(source: Mapping[str, Any], record: Mapping[str, str] | None) -> tuple[Listing, Skipped]:
    """The user's images, and the files that look like images and are not read."""
    path = Path(source["path"])
    if source["kind"] == "table":
        return folder.find_listed(path, record), ()
    return folder.find(path, None if source["labels"] is None else Path(source["labels"]), record)


def _read_own(
    listing: Listing,
    n_novel: int,
    flip: bool,
    size: int | None,
    largest: int,
    watch: Watch | None,
    left_out: Skipped = (),
) -> Given:
    opened, skipped, kept = _opened(listing, size, None, largest, watch, left_out)
    labels, classes = encode(opened.labels.tolist())
    problem = Problem(opened.pixels, labels, opened.names, classes, n_novel, flip)
    _warn_of_copies(problem)
    return Given(problem, None, skipped, kept)


def _warn_of_copies(problem: Problem) -> None:
    """Warns of images that are copies of others, pixel for pixel, and of copies with different labels."""
    label_of: dict[bytes, int] = {}
    conflicts = []
    prints = pixels.fingerprints(problem.images).tolist()
    for name, mark, label in zip(problem.names, prints, problem.labels.tolist(), strict=True):
        if label != UNLABELLED and (other := label_of.setdefault(mark, label)) != label:
            conflicts.append(f"{name}: {problem.classes[other]} and {problem.classes[label]}")
    if copies := len(prints) - len({*prints}):
        _warn(f"{copies} of {len(prints)} images are exact copies of others")
    if conflicts:
        what = f"{len(conflicts)} images have another label than an exact copy of theirs"
        _warn(f"{what} ({conflicts[0]}); correct one")


def _files_at(path: Path) -> tuple[list[str], list[str], Skipped]:
    """The image at a path or the images below it, with their names, and those whose format is not read."""
    if not exists(path):
        raise UserError(f"there is nothing at {str(path)!r}; give an image or a folder of images")
    if not isdir(path):
        return [str(path)], [image_files.printable(path)], ()
    found, others = image_files.find(path)
    left_out = tuple((image_files.printable(name), image_files.NOT_READ) for name in others)
    if not found:
        what = f" that can be read ({left_out[0][0]}: {image_files.NOT_READ})" if left_out else ""
        raise UserError(f"there are no images{what} in {path}; give an image or a folder of images")
    names = [image_files.printable(name) for name in found]
    return [str(path / name) for name in found], names, left_out


def _decoded_in_parts(
    files: Sequence[str],
    names: Sequence[str],
    size: int,
    channels: int,
    left_out: Skipped = (),
    squash: bool = False,
) -> Iterator[NewImages]:
    """The readable images, a part at a time. Those that are left out are skipped with the first part."""
    n_readable = 0
    for first in range(0, len(files), AT_ONCE):
        part = [str(Path(file).absolute()) for file in files[first : first + AT_ONCE]]
        images, skipped = pixels.decode(part, size, channels, squash)
        good = tuple(names[first + i] for i in range(len(part)) if i not in skipped)
        n_readable += len(good)
        if n_readable == 0 and first + AT_ONCE >= len(files):
            name = image_files.printable(files[first])
            raise UserError(f"{name} cannot be read ({skipped[0]}); give an image or a folder of images")
        unreadable = tuple((names[first + i], why) for i, why in skipped.items())
        yield NewImages(good, images, unreadable + (() if first else left_out))


def named(source: Mapping[str, Any], options: Options) -> Benchmark:
    """The benchmark of a source; image files are not opened."""
    benchmark = sources.read_named(source["name"], source["data_dir"])
    if options.flip is not None:
        benchmark = replace(benchmark, flip=options.flip)
    return benchmark if options.images is None else benchmark.subset(options.images)


def _opened_benchmark(
    benchmark: Benchmark, options: Options, watch: Watch | None
) -> tuple[Benchmark, Skipped, NDArray[np.int64]]:
    """A benchmark with its images opened, the skipped images, and the rows of the other training images."""
    train, test = benchmark.train, benchmark.test
    if train.files is None or test.files is None:
        if options.size not in (None, benchmark.size):
            wrong = f"the images of {benchmark.name} have {benchmark.size} pixels and are not resized"
            raise UserError(f"{wrong}; leave out --size")
        return benchmark, (), np.arange(len(train))
    size = options.size or min(benchmark.size, options.largest)
    stored, crop = geometry(size, options)
    labels = np.concatenate([train.labels, test.labels])
    both = Listing(train.names + test.names, labels, train.files + test.files, train.root)
    opened, skipped, kept = _opened(both, stored, 3, stored, watch, squash=crop is not None)
    n_train = int(np.searchsorted(kept, len(train)))
    train, test = (opened.rows(rows) for rows in np.split(np.arange(len(kept)), [n_train]))
    benchmark = replace(benchmark, train=train, test=test, crop=crop)
    _warn_of_leaks(benchmark)
    return benchmark, skipped, kept[:n_train]


def geometry(size: int, options: Options) -> tuple[int, int | None]:
    """The size that image files of a benchmark are resized to, and that of crops, if views are crops of them.

    In the paper's preset, photographs are resized to 256 pixels, borders included, and views have 224.
    """
    if options.preset == "paper" and size > RESIZED_ABOVE and options.weights in (None, "scratch"):
        return round(size * 256 / 224), size
    return size, None


def _warn_of_leaks(benchmark: Benchmark) -> None:
    """Warns of test images that are also among the training images."""
    train = set(pixels.fingerprints(benchmark.train.pixels).tolist())
    leaked = sum(mark in train for mark in pixels.fingerprints(benchmark.test.pixels).tolist())
    if leaked:
        total = f"{len(benchmark.test)} test images of {benchmark.name}"
        _warn(f"{leaked} of {total} are exact copies of training images")


def _warn(what: str) -> None:
    warnings.warn(what, OpenLDNWarning, stacklevel=3)


def _opened(
    listing: Listing,
    size: int | None,
    channels: int | None,
    largest: int,
    watch: Watch | None,
    left_out: Skipped = (),
    squash: bool = False,
) -> tuple[Listing, Skipped, NDArray[np.int64]]:
    """A listing with pixels instead of files, the skipped images, and the rows of the others.

    The images that are left out of the listing are skipped too.
    """
    if size is not None and not image_files.SMALLEST <= size <= image_files.LARGEST:
        remedy = f"give a size from {image_files.SMALLEST} to {image_files.LARGEST} (--size), or leave it out"
        raise UserError(f"images cannot be resized to {size} pixels; {remedy}")
    if listing.files is None:
        return listing, (), np.arange(len(listing))
    lacking = image_files.count_without_decoder(listing.files)
    if lacking > store.MOST_UNREADABLE * len(listing):
        wrong = f"{lacking} of {len(listing)} images are in HEIC format, which needs a decoder"
        raise UserError(f"{wrong}; install it: pip install openldn[heif]")
    images, reasons = store.decode(
        listing.files,
        root=listing.root,
        size=size,
        channels=channels,
        largest=largest,
        squash=squash,
        watch=watch,
    )
    skipped = (*((listing.names[i], reason) for i, reason in reasons.items()), *left_out)
    image_files.warn_of_unreadable(skipped, len(listing) + len(left_out), "skipped.csv")
    kept = np.setdiff1d(np.arange(len(listing)), [*reasons])
    return replace(listing.rows(kept), images=images), skipped, kept


def _refuse_options_of_named_sets(options: Options, what: str) -> None:
    for name in OF_NAMED_SETS:
        if getattr(options, name) != getattr(Options(), name):
            raise UserError(f"--{name.replace('_', '-')} does not apply to {what}; leave it out")

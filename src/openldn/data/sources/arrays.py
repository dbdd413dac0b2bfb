"""Images in memory, or a list of their paths, with labels beside them."""

import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import images, store, workers
from openldn.data.duplicates import warn_of_copies
from openldn.data.pixels import Images
from openldn.data.problem import UNLABELLED, Problem, encode
from openldn.errors import UserError

AT_ONCE = 1000  # files that are decoded and looked at together


class Given(NamedTuple):
    """What was read: the problem, which rows of what was given it has, and why the others are left out."""

    problem: Problem
    kept: NDArray[np.int64]
    skipped: tuple[tuple[str, str], ...]  # name and reason


def read(X: Any, y: Any, *, n_novel: int, flip: bool = True, largest: int = 224) -> Given:
    """The problem in images `X` and labels `y`, as the estimator takes them."""
    labels, classes = read_labels(y)
    paths = _paths(X)
    pixels: Images | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    if paths is None:
        pixels, names = read_images(X)
    else:
        names = tuple(images.shown(path) for path in paths)
    if len(labels) != len(names):
        raise UserError(f"there are {len(names)} images but {len(labels)} labels; give one label an image")
    kept = np.arange(len(names))
    if paths is not None:
        made = store.decoded(paths, root="\n".join(map(str, paths)), size=None, largest=largest)
        pixels, kept = made.images, made.kept
        skipped = tuple((names[i], reason) for i, reason in sorted(made.skipped.items()))
        images.warn_of_unreadable(skipped, len(paths), "skipped.csv")
    assert pixels is not None
    ids, classes = encode([classes[k] if k != UNLABELLED else None for k in labels[kept].tolist()])
    problem = Problem(pixels, ids, tuple(names[i] for i in kept.tolist()), classes, n_novel, flip)
    warn_of_copies(problem)
    return Given(problem, kept, skipped)


def in_parts(X: Any, size: int, channels: int) -> Iterator[Tensor]:
    """uint8 (n, c, size, size) of all images in an array or a list of paths, some of these at a time."""
    if (paths := _paths(X)) is None:
        yield read_images(X, size=size, channels=channels)[0]
        return
    for i in range(0, len(paths), AT_ONCE):
        pixels, skipped = decode_readable(paths[i : i + AT_ONCE], size, channels)
        if skipped:
            path, reason = next(iter(skipped.items()))
            raise UserError(f"{images.shown(path)} cannot be read ({reason}); repair it or leave it out")
        yield pixels


def read_images(
    X: Any, *, size: int | None = None, channels: int | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """uint8 (n, c, h, w) and names, from an array (n, h, w) or (n, h, w, 3)."""
    try:
        array = np.asarray(X)
    except ValueError:
        raise UserError("the images differ in size; bring them to one size, or give their paths") from None
    if array.size == 0:
        raise UserError("there are no images; give an array or a list with at least a few")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise UserError(
            f"images of shape {array.shape} cannot be used; give (n, height, width) or (n, height, width, 3) "
            "or a list of image paths"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("the images hold NaN or infinite values; clean them first")
    if array.dtype != np.uint8:
        raise UserError(
            f"images of type {array.dtype} cannot be used; give uint8 values from 0 to 255 "
            "(floats from 0 to 1: (255 * X).round().astype('uint8'))"
        )
    n, h, w = array.shape[:3]
    side = min(h, w)
    if not images.SMALLEST <= side <= images.LARGEST:
        raise UserError(
            f"images of {h} x {w} pixels cannot be used; bring them to {images.SMALLEST} to "
            f"{images.LARGEST} pixels, or give their paths"
        )
    top, left = (h - side) // 2, (w - side) // 2  # of what is not square, the centre
    array, h = array[:, top : top + side, left : left + side], side
    given = torch.from_numpy(array.reshape(n, side, side, -1).copy()).permute(0, 3, 1, 2)
    # Into a tensor made anew: with one channel, `contiguous` keeps strides that send convolutions elsewhere.
    pixels = torch.empty(given.shape, dtype=torch.uint8).copy_(given)
    if channels is not None and pixels.shape[1] != channels:
        raise UserError(
            f"the model was trained on {_kind(channels)} images, but these are {_kind(pixels.shape[1])}; "
            "convert them"
        )
    if size is not None and h != size:
        raise UserError(f"the model was trained on images of {size} pixels, but these have {h}; resize them")
    return pixels, tuple(map(str, range(n)))


def read_labels(y: Any) -> tuple[Tensor, tuple[str | int, ...]]:
    """Ids and known classes: integers with -1, or strings with "" or None, for unlabelled."""
    array = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    if array.ndim != 1:
        raise UserError(f"labels of shape {array.shape} cannot be used; give one label an image")
    labels = [label.item() if isinstance(label, np.generic) else label for label in array.tolist()]
    kinds = {type(label) for label in labels}
    if kinds <= {str, type(None)}:
        return encode(labels)
    if kinds == {int}:
        below = [label for label in labels if label < UNLABELLED]
        if below:
            raise UserError(f"the label {below[0]} is negative; classes start at 0, and -1 is unlabelled")
        return encode(labels)
    raise UserError(
        "labels must be all integers (-1 is unlabelled) or all strings ('' or None is unlabelled); "
        f"these are of type {' and '.join(sorted(kind.__name__ for kind in kinds))}"
    )


def decode_readable(paths: Sequence[Path], size: int, channels: int) -> tuple[Tensor, dict[Path, str]]:
    """The pixels of those that can be read, in order, and why the others cannot."""
    # Whole paths: a worker may have been started in another folder than this process is in now.
    files = [os.path.abspath(path) for path in paths]
    parts = [files[i : i + 64] for i in range(0, len(files), 64)]
    tasks = [((part, size, channels), k) for k, part in enumerate(parts)]
    made = dict(workers.outcomes(images.decode, tasks, here=len(paths) <= 200))
    results = [result for k in range(len(parts)) for result in made[k]]
    good = [result for result in results if isinstance(result, bytes)]
    skipped = {path: r for path, r in zip(paths, results, strict=True) if isinstance(r, str)}
    pixels = torch.frombuffer(bytearray().join(good), dtype=torch.uint8) if good else torch.empty(0).byte()
    return pixels.view(len(good), size, size, channels).permute(0, 3, 1, 2), skipped


def _paths(X: Any) -> list[Path] | None:
    """The paths in a list or a one-dimensional array of them, or None if it holds something else."""
    if isinstance(X, str | PathLike):
        raise UserError(f"{str(X)!r} is a single path; give a list of image paths")
    if isinstance(X, np.ndarray) and X.ndim == 1:
        X = X.tolist()
    if isinstance(X, Sequence) and len(X) and all(isinstance(x, str | PathLike) for x in X):
        return [Path(x) for x in X]
    return None


def _kind(channels: int) -> str:
    return "grey" if channels == 1 else "colour"

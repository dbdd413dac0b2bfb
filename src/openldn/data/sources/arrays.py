"""Images in memory, or a list of their paths, with labels: what the estimator takes."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import image_files
from openldn.data.pixels import Listing
from openldn.data.problem import UNLABELLED
from openldn.errors import UserError


def find(X: Any, y: Any, size: int | None = None) -> Listing:
    """The images `X` with labels `y`; an array must have the size, if one is given."""
    labels = read_labels(y)
    if (files := paths(X)) is None:
        pixels = read_images(X, size=size)
        listing = Listing(tuple(map(str, range(len(pixels)))), np.array(labels, object), pixels)
    else:
        names = tuple(map(image_files.printable, files))
        listing = Listing(names, np.array(labels, object), tuple(files), root="\n".join(files))
    if len(labels) != len(listing):
        raise UserError(f"there are {len(listing)} images but {len(labels)} labels; give one label per image")
    return listing


def read_images(X: Any, *, size: int | None = None, channels: int | None = None) -> Tensor:
    """uint8 (n, c, h, h) from an array (n, h, w) or (n, h, w, 3); the centre, if they are not square."""
    try:
        array = np.asarray(X)
    except ValueError:
        raise UserError("the images differ in size; resize them to one size, or give their paths") from None
    if array.size == 0:
        raise UserError("there are no images; give an array or a list of images")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        remedy = "give (n, height, width) or (n, height, width, 3) or a list of image paths"
        raise UserError(f"images of shape {array.shape} cannot be used; {remedy}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("the images hold NaN or infinite values; clean them first")
    if array.dtype != np.uint8:
        remedy = "give uint8 values from 0 to 255 (floats from 0 to 1: (255 * X).round().astype('uint8'))"
        raise UserError(f"images of type {array.dtype} cannot be used; {remedy}")
    n, h, w = array.shape[:3]
    side = min(h, w)
    if not image_files.SMALLEST <= side <= image_files.LARGEST:
        remedy = f"resize them to {image_files.SMALLEST} to {image_files.LARGEST} pixels, or give their paths"
        raise UserError(f"images of {h} x {w} pixels cannot be used; {remedy}")
    found = 1 if array.ndim == 3 else array.shape[3]
    if channels not in (None, found):
        kinds = {1: "grey", 3: "colour"}
        wrong = f"the model was trained on {kinds[channels]} images, but these are {kinds[found]}"
        raise UserError(f"{wrong}; convert them")
    if size not in (None, side):
        remedy = "resize them, or give their paths"
        raise UserError(f"the images have {side} pixels, but {size} pixels are needed; {remedy}")
    top, left = (h - side) // 2, (w - side) // 2
    centre = array[:, top : top + side, left : left + side].reshape(n, side, side, found)
    # A new tensor: with one channel, `contiguous` keeps strides that make convolutions take another path.
    return torch.empty((n, found, side, side), dtype=torch.uint8).copy_(
        torch.from_numpy(centre.copy()).permute(0, 3, 1, 2)
    )


def read_labels(y: Any) -> list[str | int | None]:
    """Labels: integers, -1 for unlabelled, or strings, "" or None for unlabelled."""
    array: NDArray[Any] = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    if array.ndim != 1:
        raise UserError(f"labels of shape {array.shape} cannot be used; give one label per image")
    labels = [label.item() if isinstance(label, np.generic) else label for label in array.tolist()]
    kinds = {type(label) for label in labels}
    if kinds == {int}:
        for label in labels:
            if not UNLABELLED <= label < 2**53:
                remedy = "number the classes from 0, and use -1 for unlabelled"
                raise UserError(f"the label {label} is negative or too large; {remedy}")
    elif not kinds <= {str, type(None)}:
        wrong = "labels must be all integers (-1 is unlabelled) or all strings ('' or None is unlabelled)"
        raise UserError(f"{wrong}; these are of type {' and '.join(sorted(kind.__name__ for kind in kinds))}")
    return labels


def paths(X: Any) -> list[str] | None:
    """The paths in a list or a one-dimensional array of paths; None if X is something else."""
    if isinstance(X, str | PathLike):
        raise UserError(f"{str(X)!r} is a single path; give a list of image paths")
    if isinstance(X, np.ndarray) and X.ndim == 1:
        X = X.tolist()
    if isinstance(X, Sequence) and len(X) and all(isinstance(x, str | PathLike) for x in X):
        return [str(Path(x)) for x in X]
    return None

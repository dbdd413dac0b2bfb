"""The learning problem: images, labels for some of them, and the number of known and novel classes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.pixels import Images, fingerprints
from openldn.errors import UserError
from openldn.maths.priors import expected_shares

UNLABELLED = -1


@dataclass(frozen=True)
class Problem:
    """Images, and labels for some of them. The classes of the others are not here: no system can see them."""

    images: Images  # (n, c, h, w) uint8, c is 1 (grey) or 3 (colour)
    labels: Tensor  # (n,) int64: a known class, or UNLABELLED
    names: tuple[str, ...]  # the file or row number of each image
    classes: tuple[str | int, ...]  # the known classes, by their names, in order
    n_novel: int  # number of classes beyond these among the unlabelled images
    flip: bool = True  # whether a horizontally flipped image still shows the same thing
    crop: int | None = None  # views and predictions are of a crop of so many pixels; None: of all of an image

    @property
    def size(self) -> int:
        """Of the images that a network sees, in pixels."""
        return self.crop or self.images.shape[-1]

    @property
    def n_known(self) -> int:
        return len(self.classes)

    @property
    def n_classes(self) -> int:
        return self.n_known + self.n_novel

    @property
    def labelled(self) -> Tensor:  # rows
        return torch.nonzero(self.labels != UNLABELLED).flatten()

    @property
    def unlabelled(self) -> Tensor:  # rows
        return torch.nonzero(self.labels == UNLABELLED).flatten()

    def promote(self, rows: Tensor, labels: Tensor) -> "Problem":
        """The same problem in which `rows` are labelled too, with pseudo-labels."""
        promoted = self.labels.clone()
        promoted[rows] = labels
        return replace(self, labels=promoted)

    def with_novel(self, n_novel: int) -> "Problem":
        """The same problem with another number of novel classes."""
        return replace(self, n_novel=n_novel)

    def class_names(self) -> list[str | int]:
        """Known classes, then names for the novel ones: the next numbers, or novel-1, novel-2, ..."""
        if all(isinstance(name, int) for name in self.classes):
            first = max(int(name) for name in self.classes) + 1
            return [*self.classes, *range(first, first + self.n_novel)]
        taken, novel, i = set(self.classes), list[str | int](), 0
        while len(novel) < self.n_novel:
            i += 1
            if (name := f"novel-{i}") not in taken:
                novel.append(name)
        return [*self.classes, *novel]

    def class_prior(self) -> Tensor:
        """The expected share of each class in the unlabelled images, if all classes are equally large.  (C,)

        Labelled images are subtracted. A class of which most images are labelled keeps a tenth of its size.
        """
        return expected_shares(self.labels, self.n_classes)

    def digest(self) -> str:
        """A hash of images and labels, by which a resumed run recognises its data."""
        h = hashlib.sha256(str((tuple(self.images.shape), self.classes)).encode())
        h.update(fingerprints(self.images).tobytes())
        h.update(self.labels.numpy().tobytes())
        return h.hexdigest()[:32]

    def check(self) -> "Problem":
        """Itself; an error if nothing can be learned from it."""
        n_labelled, n_unlabelled = len(self.labelled), len(self.unlabelled)
        if n_labelled + n_unlabelled == 0:
            wrong, remedy = "there are no images", "give a folder or an array of images"
        elif n_labelled == 0:
            wrong = "no image is labelled, so the known classes cannot be learned"
            remedy = "label a few images of at least two classes"
        elif n_unlabelled == 0:
            wrong = "every image is labelled, so there is nothing to discover"
            remedy = "put some of them into the folder `unlabelled`, or leave their label empty"
        elif self.n_known < 2:
            wrong = f"all labelled images are of one class ({self.classes[0]})"
            remedy = "label images of at least two classes"
        elif self.n_novel < 1:
            wrong = f"the number of novel classes is {self.n_novel}"
            remedy = "give at least 1, or 'auto' (for known classes only, an ordinary classifier will do)"
        elif self.n_novel > n_unlabelled:
            wrong = f"{self.n_novel} novel classes cannot be found in {n_unlabelled} unlabelled images"
            remedy = "give a smaller number, or 'auto' to estimate it"
        else:
            return self
        raise UserError(f"{wrong}; {remedy}")


@dataclass(frozen=True)
class Truth:
    """Ground truth for evaluation: test images of known and novel classes with their labels."""

    images: Images  # (m, c, h, w) uint8
    labels: NDArray[np.int64]  # (m,) places in `classes`
    classes: tuple[str | int, ...]  # known ones first
    n_known: int

    @property
    def n_classes(self) -> int:
        return len(self.classes)


def encode(labels: Sequence[str | int | None]) -> tuple[Tensor, tuple[str | int, ...]]:
    """Class ids and sorted class names of labels as the user gives them; None, "" and -1 mean unlabelled."""
    given = [None if label in ("", UNLABELLED) else label for label in labels]
    for label in given:
        if isinstance(label, str) and "\0" in label:  # numpy would cut it off there
            raise UserError(f"the label {label!r} has a NUL character; remove it")
    named = {label for label in given if label is not None}
    # Numbers by value, words alphabetically.
    classes = sorted(named, key=lambda name: (name, "") if isinstance(name, int) else (0, name))
    ids = {name: i for i, name in enumerate(classes)}
    encoded = [UNLABELLED if label is None else ids[label] for label in given]
    return torch.tensor(encoded, dtype=torch.int64), tuple(classes)

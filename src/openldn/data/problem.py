"""What is given: images, some labels, and how many classes are known and novel."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data.pixels import Images, Part, fingerprints
from openldn.errors import UserError

UNLABELLED = -1


@dataclass(frozen=True)
class Problem:
    """Images and the labels given for some of them.

    The labels of the other images are not here, so no method can look at them.
    """

    images: Images  # (n, c, h, w) uint8, c is 1 (grey) or 3 (colour)
    labels: Tensor  # (n,) int64: a known class, or UNLABELLED
    names: tuple[str, ...]  # the file or row of each image
    classes: tuple[str | int, ...]  # the known classes, in order; what the user calls them
    n_novel: int  # how many classes the unlabelled images hold beyond these
    flip: bool = True  # whether a mirrored image still shows the same thing

    @property
    def n_known(self) -> int:
        return len(self.classes)

    @property
    def n_classes(self) -> int:
        return self.n_known + self.n_novel

    @property
    def labelled(self) -> Tensor:
        """The rows that carry a label."""
        return torch.nonzero(self.labels != UNLABELLED).flatten()

    @property
    def unlabelled(self) -> Tensor:
        """The rows that do not."""
        return torch.nonzero(self.labels == UNLABELLED).flatten()

    def promote(self, rows: Tensor, labels: Tensor) -> "Problem":
        """The same problem with `rows` labelled too: what was predicted is now taken as given."""
        promoted = self.labels.clone()
        promoted[rows] = labels
        return replace(self, labels=promoted)

    def with_novel(self, n_novel: int) -> "Problem":
        """The same problem with another number of novel classes."""
        return replace(self, n_novel=n_novel)

    def class_names(self) -> list[str | int]:
        """Known classes, then names for the novel ones: numbers go on counting, words are novel-1, ..."""
        if all(isinstance(name, int) for name in self.classes):
            first = max(int(name) for name in self.classes) + 1
            return [*self.classes, *range(first, first + self.n_novel)]
        taken, novel, i = set(self.classes), list[str | int](), 0
        while len(novel) < self.n_novel:
            i += 1
            if (name := f"novel-{i}") not in taken:
                novel.append(name)
        return [*self.classes, *novel]

    def digest(self) -> str:
        """A fingerprint of images and labels: a run goes on only with what it began with."""
        h = hashlib.sha256(str((tuple(self.images.shape), self.classes)).encode())
        h.update(fingerprints(self.images).tobytes())
        h.update(self.labels.numpy().tobytes())
        return h.hexdigest()[:32]

    def check(self) -> "Problem":
        """Itself, if something can be learned from it; else an error that says what is missing."""
        n, n_labelled = len(self.images), len(self.labelled)
        if n == 0:
            raise UserError("there are no images; give a folder or an array with at least a few")
        if n_labelled == 0:
            raise UserError(
                "no image is labelled, so there is nothing to learn the known classes from; "
                "label a few images of at least two classes"
            )
        if n_labelled == n:
            raise UserError(
                "every image is labelled, so there is nothing to discover; "
                "leave the images in question unlabelled (-1 or an empty label)"
            )
        if self.n_known < 2:
            raise UserError(
                f"all labelled images are of one class ({self.classes[0]}); "
                "label images of at least two classes, so that there is a difference to learn"
            )
        if self.n_novel < 1:
            raise UserError(
                f"the number of novel classes is {self.n_novel}; give at least 1, or 'auto' to "
                "estimate it (to sort images into known classes alone, use an ordinary classifier)"
            )
        if self.n_novel > n - n_labelled:
            raise UserError(
                f"{self.n_novel} novel classes cannot be found in {n - n_labelled} unlabelled images; "
                "give a smaller number, or 'auto' to estimate it"
            )
        return self


@dataclass(frozen=True)
class Truth:
    """What only an evaluation may see: images of known and novel classes with their classes."""

    images: Images  # (m, c, h, w) uint8
    labels: NDArray[np.int64]  # (m,) ids in the order of `classes`
    classes: tuple[str | int, ...]  # the known ones first
    n_known: int

    @property
    def n_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Listing:
    """A benchmark as its image files, all with their classes, before any is opened."""

    name: str
    root: Path  # an image is named by its path below this
    paths: tuple[Path, ...]
    labels: NDArray[np.int64]  # (n,)
    test_paths: tuple[Path, ...]
    test_labels: NDArray[np.int64]
    classes: tuple[str | int, ...]
    size: int  # pixels that the paper brings them to
    flip: bool = True


@dataclass(frozen=True)
class LabelledSet:
    """A benchmark's images, all with their classes, in a training and a test part."""

    name: str
    images: Images  # (n, c, h, w) uint8
    labels: NDArray[np.int64]  # (n,)
    test_images: Images
    test_labels: NDArray[np.int64]
    classes: tuple[str | int, ...]
    flip: bool = True
    names: tuple[str, ...] | None = None  # of the training images; their numbers, where they have none

    def subset(self, n: int) -> "LabelledSet":
        """The first training images of each class, one at least, about `n` in all; all test images."""
        each = max(1, n // len(self.classes))
        firsts = [np.flatnonzero(self.labels == k)[:each] for k in range(len(self.classes))]
        rows = np.sort(np.concatenate(firsts))
        return replace(
            self,
            images=Part(self.images, torch.from_numpy(rows)),
            labels=self.labels[rows],
            names=tuple(self.name_of(i) for i in rows.tolist()),
        )

    def name_of(self, i: int) -> str:
        """What a training image is called."""
        return f"{self.name}/train/{i}" if self.names is None else self.names[i]

    def split(
        self,
        *,
        known: float,
        labelled: float,
        seed: int,
        novel: int | None = None,
        split: Mapping[str, str] | None = None,
    ) -> tuple[Problem, Truth]:
        """The paper's split: the first classes known, a random share of each labelled, the rest not.

        `novel` is how many novel classes the problem claims (default: as many as there are); `split` says
        who is labelled instead of chance.
        """
        n_classes = len(self.classes)
        # As the authors count: of 37 classes, half of them novel, 19 are known.
        n_known = n_classes - int(round((1 - known) * n_classes, 9)) if 0 <= known <= 1 else 0
        if not 2 <= n_known < n_classes:
            raise UserError(
                f"--known {known} makes {n_known} of {n_classes} classes known; "
                "choose it so that at least two are known and at least one is novel"
            )
        if not 0 < labelled <= 1:
            raise UserError(f"--labelled {labelled} is not a share; give a number above 0, at most 1")
        names = tuple(self.name_of(i) for i in range(len(self.labels)))
        given = np.full(len(self.labels), UNLABELLED, np.int64)
        if split is None:
            rng = np.random.default_rng([seed, 0x5B117])
            for k in range(n_known):
                rows = rng.permutation(np.flatnonzero(self.labels == k))
                share = round(labelled * len(rows), 9)  # 0.07 * 100 is a little more than 7
                given[rows[: int(np.ceil(share))]] = k
        else:
            ids = {str(name): k for k, name in enumerate(self.classes[:n_known])}
            row_of = {name: i for i, name in enumerate(names)}
            for name, label in split.items():
                if name not in row_of or (label and label not in ids):
                    raise UserError(
                        f"the split says of {name!r} {label!r}, but {self.name} has no such image or no "
                        "such known class; use the --known and --images it was made with"
                    )
                if label:
                    given[row_of[name]] = ids[label]
            if ids.keys() != {label for label in split.values() if label} or len(split) != len(names):
                raise UserError(
                    f"the split has {len({*split.values()} - {''})} known classes and {len(split)} images, "
                    f"but here are {n_known} and {len(names)}; use the --known and --images it was made with"
                )
        problem = Problem(
            images=self.images,
            labels=torch.from_numpy(given),
            names=names,
            classes=self.classes[:n_known],
            n_novel=n_classes - n_known if novel is None else novel,
            flip=self.flip,
        )
        return problem, Truth(self.test_images, self.test_labels, self.classes, n_known)


def encode(labels: Sequence[str | int | None]) -> tuple[Tensor, tuple[str | int, ...]]:
    """Ids and sorted class names of labels as a user gives them; None, "" and -1 mean unlabelled."""
    given = [None if label in ("", UNLABELLED) else label for label in labels]
    classes: list[str | int] = sorted({label for label in given if label is not None}, key=_order)
    ids = {name: i for i, name in enumerate(classes)}
    encoded = [UNLABELLED if label is None else ids[label] for label in given]
    return torch.tensor(encoded, dtype=torch.int64), tuple(classes)


def _order(name: str | int) -> tuple[int, str]:
    """Numbers by size, words by letter."""
    return (name, "") if isinstance(name, int) else (0, name)

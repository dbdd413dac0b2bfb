"""Benchmarks: fully labelled data sets, to be split into a Problem and the ground truth to evaluate it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.pixels import Images, Listing
from openldn.data.problem import UNLABELLED, Problem, Truth
from openldn.errors import UserError

Labels = NDArray[np.int64]  # (n,)
Pixels = tuple[Images, Labels]  # uint8 (n, c, h, w)
Split = Mapping[str, str] | None  # the class of each image by name, "" if it is unlabelled


@dataclass(frozen=True)
class Benchmark:
    """Training and test images, all with their classes: labels are places in `classes`."""

    name: str
    train: Listing
    test: Listing
    classes: tuple[str | int, ...]
    size: int  # pixels; of image files, the size that papers resize them to
    flip: bool = True
    crop: int | None = None  # see Problem

    @classmethod
    def in_memory(
        cls, name: str, train: Pixels, test: Pixels, classes: tuple[str | int, ...], flip: bool = True
    ) -> "Benchmark":
        """A benchmark of pixels with labels; its images are named by their numbers."""

        def listing(part: str, images: Images, labels: Labels) -> Listing:
            return Listing(tuple(f"{name}/{part}/{i}" for i in range(len(labels))), labels, images)

        return cls(name, listing("train", *train), listing("test", *test), classes, train[0].shape[3], flip)

    def subset(self, n: int) -> "Benchmark":
        """The first training images of each class, at least one, about `n` in all; all test images."""
        each = max(1, n // len(self.classes))
        first = [np.flatnonzero(self.train.labels == k)[:each] for k in range(len(self.classes))]
        return replace(self, train=self.train.rows(np.sort(np.concatenate(first))))

    def split(
        self, *, known: float, labelled: float, seed: int, novel: int | None = None, split: Split = None
    ) -> tuple[Problem, Truth]:
        """The paper's split: the first classes are known, and a random share of their images is labelled.

        `novel` is the number of novel classes that the problem states (default: the true one). `split` says
        which images are labelled instead.
        """
        labels, n_known = self.split_labels(known=known, labelled=labelled, seed=seed, split=split)
        problem = Problem(
            images=self.train.pixels,
            labels=torch.from_numpy(labels),
            names=self.train.names,
            classes=self.classes[:n_known],
            n_novel=len(self.classes) - n_known if novel is None else novel,
            flip=self.flip,
            crop=self.crop,
        )
        return problem, Truth(self.test.pixels, self.test.labels, self.classes, n_known)

    def split_labels(
        self, *, known: float, labelled: float, seed: int, split: Split = None
    ) -> tuple[Labels, int]:
        """The labels of a split, UNLABELLED for most, and the number of known classes. Opens no image."""
        n_classes = len(self.classes)
        if not 0 <= known <= 1:
            raise UserError(f"--known {known} is not a share of the classes; give a number between 0 and 1")
        if not 0 < labelled <= 1:
            raise UserError(f"--labelled {labelled} is not a share; give a number above 0, at most 1")
        # Rounded up, as the authors do: half of 37 classes is 19.
        n_known = n_classes - int(round((1 - known) * n_classes, 9))
        if not 2 <= n_known < n_classes:
            remedy = "choose it so that at least two are known and at least one is novel"
            raise UserError(f"--known {known} makes {n_known} of {n_classes} classes known; {remedy}")
        if split is not None:
            return self._recorded(split, n_known), n_known
        given = np.full(len(self.train), UNLABELLED, np.int64)
        rng = np.random.default_rng([seed, 0x5B117])
        for k in range(n_known):
            rows = rng.permutation(np.flatnonzero(self.train.labels == k))
            n_labelled = np.ceil(round(labelled * len(rows), 9))  # 0.07 * 100 is slightly more than 7
            given[rows[: int(n_labelled)]] = k
        return given, n_known

    def _recorded(self, split: Mapping[str, str], n_known: int) -> Labels:
        """The labels of a recorded split, which must fit this benchmark."""
        ids = {str(name): k for k, name in enumerate(self.classes[:n_known])} | {"": UNLABELLED}
        rows = {name: i for i, name in enumerate(self.train.names)}
        remedy = "use the --known and --images it was made with"
        given = np.full(len(rows), UNLABELLED, np.int64)
        for name, label in split.items():
            if name not in rows or label not in ids:
                wrong = f"{self.name} has no such image or no such known class"
                raise UserError(f"the split labels {name!r} as {label!r}, but {wrong}; {remedy}")
            given[rows[name]] = ids[label]
        found, here = (len({*split.values()} - {""}), len(split)), (n_known, len(rows))
        if found != here:
            wrong = f"the split has {found[0]} known classes and {found[1]} images"
            raise UserError(f"{wrong}, but here are {here[0]} and {here[1]}; {remedy}")
        return given

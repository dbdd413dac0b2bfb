"""Warnings about images that occur twice, pixel for pixel at the size they were resized to."""

import warnings

from openldn.data.benchmark import Benchmark
from openldn.data.pixels import fingerprints
from openldn.data.problem import UNLABELLED, Problem
from openldn.errors import OpenLDNWarning


def warn_of_copies(problem: Problem) -> None:
    """Warns of images that are copies of others, and of copies with different labels."""
    seen: set[bytes] = set()
    label_of: dict[bytes, int] = {}
    copies, conflicts, example = 0, 0, ""
    prints = fingerprints(problem.images).tolist()
    for name, mark, label in zip(problem.names, prints, problem.labels.tolist(), strict=True):
        copies += mark in seen
        seen.add(mark)
        if label != UNLABELLED and label_of.setdefault(mark, label) != label:
            conflicts += 1
            example = example or f"{name}: {problem.classes[label_of[mark]]} and {problem.classes[label]}"
    if copies:
        _warn(f"{copies} of {len(problem.images)} images are exact copies of others")
    if conflicts:
        _warn(f"{conflicts} images have another label than an exact copy of theirs ({example}); correct one")


def warn_of_leaks(benchmark: Benchmark) -> None:
    """Warns of test images that are also among the training images."""
    train = set(fingerprints(benchmark.train.pixels).tolist())
    leaked = sum(mark in train for mark in fingerprints(benchmark.test.pixels).tolist())
    if leaked:
        total = f"{len(benchmark.test)} test images of {benchmark.name}"
        _warn(f"{leaked} of {total} are exact copies of training images")


def _warn(what: str) -> None:
    warnings.warn(what, OpenLDNWarning, stacklevel=3)

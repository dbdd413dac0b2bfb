"""Images that are there twice, pixel for pixel at the size they are brought to."""

import warnings

from openldn.data.pixels import fingerprints
from openldn.data.problem import UNLABELLED, LabelledSet, Problem
from openldn.errors import OpenLDNWarning


def warn_of_copies(problem: Problem) -> None:
    """Says how many images are copies of others, and whether copies carry different labels."""
    first: dict[bytes, int] = {}
    label_of: dict[bytes, int] = {}
    copies, at_odds, example = 0, 0, ""
    marks = fingerprints(problem.images).tolist()
    for i, (mark, label) in enumerate(zip(marks, problem.labels.tolist(), strict=True)):
        copies += mark in first
        if label != UNLABELLED and label_of.setdefault(mark, label) != label:
            at_odds += 1
            one, other = problem.classes[label_of[mark]], problem.classes[label]
            example = example or f"{problem.names[i]}: {one} and {other}"
        first.setdefault(mark, i)
    if copies:
        _warn(f"{copies} of {len(problem.images)} images are exact copies of others")
    if at_odds:
        _warn(
            f"{at_odds} images are labelled otherwise than an exact copy of theirs ({example}); correct one"
        )


def warn_of_leaks(whole: LabelledSet) -> None:
    """Says how many test images stand among the training images too."""
    train = set(fingerprints(whole.images).tolist())
    leaked = sum(mark in train for mark in fingerprints(whole.test_images).tolist())
    if leaked:
        of = f"{len(whole.test_images)} test images of {whole.name}"
        _warn(f"{leaked} of {of} are exact copies of training images")


def _warn(what: str) -> None:
    warnings.warn(what, OpenLDNWarning, stacklevel=3)

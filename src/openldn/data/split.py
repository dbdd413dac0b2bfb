"""`split.json`: which images are labelled, and as what. A run records it, and another one can be given it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openldn.data.problem import Problem
from openldn.data.text_files import read_text
from openldn.errors import UserError


def record(problem: Problem) -> dict[str, Any]:
    """The split of a problem, as in `split.json`."""
    by_class: dict[str, list[str]] = {str(name): [] for name in problem.classes}
    for i in problem.labelled.tolist():
        by_class[str(problem.classes[int(problem.labels[i])])].append(problem.names[i])
    return {"labelled": by_class, "unlabelled": [problem.names[i] for i in problem.unlabelled.tolist()]}


def read(path: Path) -> Mapping[str, str]:
    """The class of each image in a `split.json`, "" for the unlabelled ones."""
    remedy = "give the split.json of a run"
    text = read_text(path, remedy)
    try:
        found = json.loads(text)
        pairs = [(name, str(label)) for label, names in found["labelled"].items() for name in names]
        pairs += [(name, "") for name in found["unlabelled"]]
        given = dict(pairs)
        if len(given) != len(pairs) or not all(isinstance(name, str) for name in given):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is not a split, or names an image twice; {remedy}") from None
    return given

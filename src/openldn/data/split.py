"""Who is labelled and as what, by file or row: what a run records, and what can be given back to another."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openldn.data.problem import Problem
from openldn.errors import UserError


def record(problem: Problem) -> dict[str, Any]:
    """The split of a problem, as `split.json` has it."""
    by_class: dict[str, list[str]] = {str(name): [] for name in problem.classes}
    for i in problem.labelled.tolist():
        by_class[str(problem.classes[int(problem.labels[i])])].append(problem.names[i])
    return {"labelled": by_class, "unlabelled": [problem.names[i] for i in problem.unlabelled.tolist()]}


def read(path: Path) -> Mapping[str, str]:
    """The class of each image that a split gives one, and "" for those that it leaves unlabelled."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(name, str(label)) for label, names in found["labelled"].items() for name in names]
        pairs += [(name, "") for name in found["unlabelled"]]
        given = dict(pairs)
        if len(given) != len(pairs) or not all(isinstance(name, str) for name in given):
            raise ValueError
    except FileNotFoundError:
        raise UserError(f"there is no split at {path}; give the split.json of a run") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); give the split.json of a run") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} is not a split, or names an image twice; give the split.json of a run"
        ) from None
    return given

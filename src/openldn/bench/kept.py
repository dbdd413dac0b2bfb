"""`results.json`: the figures of a bench, cell by cell, with what made them."""

import ast
import hashlib
import json
import platform
import subprocess
import time
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

import openldn
from openldn import device
from openldn.bench.cells import Bench, Cell, Figures, Result, Scale
from openldn.data import workers
from openldn.errors import UserError
from openldn.files import read_json, whole

FORMAT = 1
NOT_FOLLOWED = ("openldn.systems", "openldn.bench")
ROOT = Path(openldn.__file__).parent


class Results:
    """The results of one bench, in `results.json` of its folder."""

    def __init__(self, bench: Bench, folder: Path, scale: Scale | None = None):
        self.bench, self.file = bench, folder / "results.json"
        self.scale = scale or bench.scale
        self.found = {(r.row, r.seed): r for r in read(self.file, bench)}

    def of(self, cell: Cell) -> Result | None:
        """The result of a cell, if it is finished; an error if it was made with other choices."""
        result = self.found.get((cell.row, cell.seed))
        if result is not None and (other := difference(cell.measure.record, result.record)):
            raise UserError(
                f"{self.file} has {cell} with other choices ({other}); give another --out, or remove it"
            )
        return result

    def add(self, cell: Cell, figures: Figures) -> Result:
        """Keeps the figures of a finished cell."""
        record = json.loads(json.dumps(dict(cell.measure.record)))
        modules = tuple(cell.measure.modules)
        made = {**origin(), "modules": list(modules), "code": fingerprint(modules)}
        result = Result(cell.row, cell.seed, figures, record, made)
        self.found[cell.row, cell.seed] = result
        self.save()
        return result

    def save(self) -> None:
        """Writes the file; without a result, it says whose folder this is."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        head: dict[str, Any] = {"format": FORMAT, "bench": self.bench.name}
        head |= {
            "command": self.scale.command(self.bench),
            "scale": self.bench.measured_on or self.scale.sentence,
        }
        cells = ",\n".join(json.dumps(asdict(r)) for r in self.found.values())  # a line each
        text = json.dumps(head)[:-1] + f', "cells": [\n{cells}\n]}}\n'
        whole(self.file, lambda part: part.write_text(text))


def read(file: Path, bench: Bench) -> list[Result]:
    """The results in a file, or none if there is no such file."""
    if not file.exists():
        return []
    found = read_json(file, "give another --out, or remove it")
    try:
        if found["format"] != FORMAT or found["bench"] != bench.name:
            raise ValueError
        return [Result(**{**cell, "row": tuple(cell["row"])}) for cell in found["cells"]]
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{file} does not hold results of `openldn bench {bench.name}`; give another --out, or remove it"
        ) from None


def difference(asked: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """The first choice that differs, as text; empty if none does."""
    asked = json.loads(json.dumps(dict(asked)))
    for name in {**asked, **kept}:
        if asked.get(name) != kept.get(name):
            if isinstance(asked.get(name), dict) and isinstance(kept.get(name), dict):
                return difference(asked[name], kept[name])
            return f"{name} was {kept.get(name)}, is {asked.get(name)}"
    return ""


# ------------------------------------------------------------------------------- where figures come from


def current(result: Result) -> bool:
    """Whether a result was made by the code that is here now."""
    return bool(result.made["code"] == fingerprint(tuple(result.made["modules"])))


@cache
def origin() -> dict[str, Any]:
    """Date, commit and machine of what is measured now."""
    on = device.pick("auto")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "openldn": openldn.__version__,
        "torch": torch.__version__,
        "machine": f"{on.type}, {platform.machine()}, {workers.count()} cores, {device.precision(on)}",
    }


def commit() -> str:
    """The commit that this package was checked out at, with a + if files have changed since; else empty."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):  # a checkout of something else, which has it installed
            return ""
        return git("rev-parse", "--short=7", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def fingerprint(modules: tuple[str, ...]) -> str:
    """Of the code of some modules and of all that they import from this package, comments left out.

    Modules that import every system or bench are not followed: those of a system are named.
    """
    whole = hashlib.sha256()
    for name in sorted(closure(modules)):
        whole.update(name.encode() + _code(name).encode())
    return whole.hexdigest()[:16]


def closure(modules: Iterable[str]) -> set[str]:
    """The modules and all that they import from this package."""
    found, waiting = set[str](), [*modules]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in NOT_FOLLOWED and _file(name) is not None:
            found.add(name)
            waiting += _imports(name)
    return found


def _file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module.startswith("openldn.") and file.is_file():
            return file
    return None


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None
    return ast.parse(file.read_text("utf-8"))


def _imports(module: str) -> Sequence[str]:
    names = list[str]()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _code(module: str) -> str:
    """Its tokens without comments, docstrings and spaces: the same for every version of Python."""
    tree = _tree(module)
    docs = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    file = _file(module)
    assert file is not None
    kept = list[str]()
    with file.open("rb") as f:
        for token in tokenize.tokenize(f.readline):
            if token.type in (tokenize.INDENT, tokenize.DEDENT):
                kept.append(tokenize.tok_name[token.type])
            elif token.type != tokenize.COMMENT and not (
                token.type == tokenize.STRING and token.start[0] in docs
            ):
                kept.append(token.string)
    return "".join("".join(kept).split())

"""What systems learn before their own training, kept: several that begin alike need it once.

A kept file is a finished checkpoint, named by all that it depends on: images, labels, network, settings,
seed, and what came before it. It is found by content, so it cannot be out of date.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openldn.data import store
from openldn.errors import UserError
from openldn.run import Run, read_state

MOST = 2 * 2**30  # bytes; beyond that the ones not used for longest go
FORMAT = 1  # raised when a phase that is kept comes to learn something else


def folder() -> Path:
    """Where they are kept: beside the pixels."""
    return store.cache() / "pretrained"


def key(before: str, **on: Any) -> str:
    """The name of what follows from all that."""
    return hashlib.sha256(json.dumps([FORMAT, before, on], sort_keys=True).encode()).hexdigest()[:32]


def fetch(run: Run, name: str, key: str) -> None:
    """If it is there and the run has not begun with it itself, it is as if the run had made it."""
    file = folder() / f"{key}.safetensors"
    if run.checkpoint(name).exists() or not file.exists():
        return
    try:
        state: Mapping[str, Any] = read_state(file)
    except UserError:
        file.unlink(missing_ok=True)  # damaged; it will be made again
        return
    os.utime(file)
    noted = {k: state[k] for k in ("step", "seconds", "passes")}
    run.log({"phase": name.partition("-")[2], **noted, "kept_from_before": True})
    run.save_state(name, state)


def keep(run: Run, name: str, key: str) -> None:
    """A finished phase's checkpoint, for others. A disk that is full is no reason to stop."""
    file = folder() / f"{key}.safetensors"
    if file.exists() or not run.checkpoint(name).exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as half_made:
            pass
        try:
            shutil.copyfile(run.checkpoint(name), half_made.name)
            os.replace(half_made.name, file)
        finally:
            Path(half_made.name).unlink(missing_ok=True)
        total = 0
        for old in sorted(file.parent.glob("*.safetensors"), key=lambda f: -f.stat().st_mtime):
            total += old.stat().st_size
            if total > MOST and old != file:
                old.unlink(missing_ok=True)
    except OSError:
        pass

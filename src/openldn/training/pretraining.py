"""A cache of finished stages: runs that begin in the same way train their first stages once.

An entry is a finished checkpoint. Its key holds all that it depends on: images, labels, network, settings,
seed, the stages before it, and the code of this package. So it cannot be out of date.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import openldn
from openldn.data import store
from openldn.errors import UserError
from openldn.run import Run, read_state

MAX_BYTES = 2 * 2**30  # beyond that the entries unused for longest are removed


def folder() -> Path:
    """Where entries are kept: beside the decoded images."""
    return store.cache() / "pretrained"


def key(before: str, **depends_on: Any) -> str:
    """The key of a stage, given that of the stage before and all that it depends on."""
    return hashlib.sha256(json.dumps([code(), before, depends_on], sort_keys=True).encode()).hexdigest()[:32]


@cache
def code() -> str:
    """A fingerprint of this package's own code."""
    whole, root = hashlib.sha256(), Path(openldn.__file__).parent
    for file in sorted(root.rglob("*.py")):
        whole.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return whole.hexdigest()


def fetch(run: Run, checkpoint: str, key: str) -> None:
    """Reuses a cached checkpoint, unless the run already has its own. One that cannot be read is removed."""
    file = folder() / f"{key}.safetensors"
    if run.checkpoint(checkpoint).exists():
        return
    try:
        state: Mapping[str, Any] = read_state(file)
        where = {k: state[k] for k in ("phase", "step", "seconds", "passes")}
    except (UserError, OSError, KeyError, TypeError):
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return
    with suppress(OSError):  # it may be somebody else's
        os.utime(file)
    run.log({**where, "cached": True})
    run.save_state(checkpoint, state)


def keep(run: Run, checkpoint: str, key: str) -> None:
    """Caches a finished stage's checkpoint. A full disk is no reason to stop."""
    file = folder() / f"{key}.safetensors"
    if file.exists() or not run.checkpoint(checkpoint).exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        try:
            shutil.copyfile(run.checkpoint(checkpoint), part)
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
        total = 0
        for old in sorted(file.parent.glob("*.safetensors"), key=lambda f: -f.stat().st_mtime):
            total += old.stat().st_size
            if total > MAX_BYTES and old != file:
                old.unlink(missing_ok=True)
    except OSError:
        pass

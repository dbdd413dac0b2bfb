"""What systems learn before their own training, kept: several that begin alike need it once.

A kept file is a finished checkpoint, named by all that it depends on: images, labels, network, settings,
seed, what came before it, and the code of this package, so it cannot be out of date.
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

from openldn.data import store
from openldn.errors import UserError
from openldn.run import Run, read_state

MOST = 2 * 2**30  # bytes; beyond that the ones not used for longest go


def folder() -> Path:
    """Where they are kept: beside the pixels."""
    return store.cache() / "pretrained"


def key(before: str, **on: Any) -> str:
    """The name of what follows from all that."""
    return hashlib.sha256(json.dumps([code(), before, on], sort_keys=True).encode()).hexdigest()[:32]


@cache
def code() -> str:
    """A fingerprint of this package's own code."""
    whole, root = hashlib.sha256(), Path(__file__).parent
    for file in sorted(root.rglob("*.py")):
        whole.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return whole.hexdigest()


def fetch(run: Run, name: str, key: str) -> None:
    """If it is there and the run has not begun with it itself, it is as if the run had made it.

    One that cannot be read, whatever the reason, will be made again.
    """
    file = folder() / f"{key}.safetensors"
    if run.checkpoint(name).exists():
        return
    try:
        state: Mapping[str, Any] = read_state(file)
        noted = {k: state[k] for k in ("step", "seconds", "passes")}
    except (UserError, OSError, KeyError, TypeError):
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return
    with suppress(OSError):  # it may be somebody else's
        os.utime(file)
    run.log({"phase": name.partition("-")[2], **noted, "kept_from_before": True})
    run.save_state(name, state)


def keep(run: Run, name: str, key: str) -> None:
    """A finished phase's checkpoint, for others. A disk that is full is no reason to stop."""
    file = folder() / f"{key}.safetensors"
    if file.exists() or not run.checkpoint(name).exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        half_made = file.with_suffix(f".{os.getpid()}")
        try:
            shutil.copyfile(run.checkpoint(name), half_made)
            os.replace(half_made, file)
        finally:
            half_made.unlink(missing_ok=True)
        total = 0
        for old in sorted(file.parent.glob("*.safetensors"), key=lambda f: -f.stat().st_mtime):
            total += old.stat().st_size
            if total > MOST and old != file:
                old.unlink(missing_ok=True)
    except OSError:
        pass

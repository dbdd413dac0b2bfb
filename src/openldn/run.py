"""A run is a folder. Everything in it is JSON, CSV or safetensors; reading it cannot run code."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openldn import lock
from openldn.errors import UserError
from openldn.files import (
    damage,
    read_json,
    read_metadata,
    read_tensors,
    whole_folder,
    write_csv,
    write_json,
    write_tensors,
)
from openldn.options import Options

SKIPPED = ("image", "reason")
FORMAT = 2  # raised when old runs can no longer be read
KEYS = {"data", "digest", "image", "n_novel", "options", "settings", "backbone", "precision", "flip_tta"}


class Run:
    """A run's folder: what was decided, what was measured, what was learned."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path, self.config = path, config

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # ------------------------------------------------------------------------- making and finding

    @staticmethod
    def create(
        path: Path,
        config: Mapping[str, Any],
        split: Mapping[str, Any],
        skipped: Sequence[tuple[str, str]] = (),
    ) -> "Run":
        """A new run at `path`, which must not exist: nothing is ever overwritten."""
        record = {"format": FORMAT, **config}
        with whole_folder(path) as folder:
            write_json(folder / "config.json", record)
            write_json(folder / "split.json", split)
            if skipped:
                write_csv(folder / "skipped.csv", SKIPPED, skipped)
            (folder / "checkpoints").mkdir()
        return Run(path, record)

    @staticmethod
    def open(path: str | Path) -> "Run":
        """The run at `path`; an error if there is none, or one that this version cannot read."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"there is no run at {path}; give the folder that `openldn train` made")
        if links := [file for file in path.rglob("*") if file.is_symlink()]:
            raise UserError(f"{links[0]} is a link, which no run holds; copy the run without links")
        config = read_json(path / "config.json", "a run's folder has one; is this the right folder?")
        if not isinstance(config, dict) or "format" not in config:
            raise UserError(f"{path / 'config.json'} is not a run's configuration; is this the right folder?")
        if config["format"] != FORMAT:
            raise UserError(
                f"{path} was made by another version of openldn (run format {config['format']}, "
                f"this one reads {FORMAT}); use that version, or train again"
            )
        kinds = {"data": dict, "image": dict, "options": dict, "settings": dict, "digest": str}
        lacking = sorted(KEYS - {*config})
        lacking += [key for key, kind in kinds.items() if key in config and not isinstance(config[key], kind)]
        if not lacking and not isinstance(config["data"].get("kind"), str):
            lacking = ["data"]
        if lacking:
            raise UserError(
                f"{path / 'config.json'} is damaged ({lacking[0]!r} is missing or of the wrong type); "
                "train again, or take the run from a backup"
            )
        return Run(path, config)

    @property
    def options(self) -> Options:
        """What was chosen for this run."""
        try:
            options = Options(**self.config["options"])
            options.check()
        except (TypeError, UserError):
            raise UserError(
                f"{self.path / 'config.json'} does not fit this version of openldn; train again"
            ) from None
        return options

    def locked(self) -> AbstractContextManager[None]:
        """Within, no other process or thread may train this run."""
        busy = f"{self.path} is being trained by another process; wait for it, or stop it first"
        return lock.held(self.path / ".lock", busy=busy)

    @property
    def finished(self) -> bool:
        """Whether training went to its end; the model is the last thing written."""
        return (self.path / "model.safetensors").exists()

    def copy_to(self, path: Path) -> None:
        """The finished run without its checkpoints, at a new place."""
        with whole_folder(path) as folder:
            for file in self.path.iterdir():
                if file.is_file() and file.name != ".lock":
                    shutil.copy2(file, folder / file.name)

    # ----------------------------------------------------------------------------------- metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends a line to `metrics.jsonl`; numbers that are not finite become null."""
        with (self.path / "metrics.jsonl").open("a") as f:
            f.write(json.dumps(finite(record)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of `metrics.jsonl`, without those that a killed process left incomplete."""
        file = self.path / "metrics.jsonl"
        lines = []
        for line in file.read_bytes().splitlines() if file.is_file() else ():
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    lines.append(record)
        return lines

    def cut_log(self) -> None:
        """Drops what was logged after the last checkpoint: it will be logged again."""
        files = (self.path / "checkpoints").glob("*.safetensors")
        with _damaged(self.path / "checkpoints"):
            length = max((int(read_metadata(file)["log_length"]) for file in files), default=0)
        if self._log_length > length:
            os.truncate(self.path / "metrics.jsonl", length)

    @property
    def _log_length(self) -> int:
        file = self.path / "metrics.jsonl"
        return file.stat().st_size if file.exists() else 0

    # ----------------------------------------------------------------------------- probabilities

    def save_probabilities(self, stage: str, rows: Tensor, p: Tensor) -> None:
        """The class probabilities (m, C) of some images after a stage, as a record of how they changed."""
        (self.path / "stages").mkdir(exist_ok=True)
        tensors = {"rows": rows, "p": p.half()}
        write_tensors(self.path / "stages" / f"{stage}.safetensors", tensors, {})

    def probabilities(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By stage, in order: rows of the training images (m,), and their class probabilities (m, C)."""
        found = dict[str, tuple[Tensor, Tensor]]()
        for file in sorted((self.path / "stages").glob("*.safetensors")):
            tensors, _ = read_tensors(file)
            with _damaged(file):
                found[file.stem] = tensors["rows"], tensors["p"].float()
        return found

    # ------------------------------------------------------------------------------- checkpoints

    def checkpoint(self, name: str) -> Path:
        """Where a stage's state is kept."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save_state(self, name: str, state: Mapping[str, Any]) -> None:
        """A tree of dictionaries, lists, tensors, numbers and strings, as one file."""
        tensors: dict[str, Tensor] = {}
        tree = json.dumps(_pack(state, tensors))
        self.checkpoint(name).parent.mkdir(exist_ok=True)  # it may have been removed, to save space
        write_tensors(self.checkpoint(name), tensors, {"tree": tree, "log_length": str(self._log_length)})

    def load_state(self, name: str) -> dict[str, Any] | None:
        """What `save_state` was given, or None if nothing is there."""
        file = self.checkpoint(name)
        return read_state(file) if file.exists() else None


def read_state(file: Path) -> dict[str, Any]:
    """What a checkpoint holds; an error if it is damaged."""
    with _damaged(file):
        tensors, metadata = read_tensors(file)
        state: dict[str, Any] = _unpack(json.loads(metadata["tree"]), tensors)
        if not isinstance(state, dict):
            raise TypeError
        return state


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Whatever a file lacks is damage."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        raise damage(path) from None


# --------------------------------------------------------------- a tree of state, as JSON and tensors


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON in which tensors are named and dictionaries are lists of pairs: their keys may be numbers."""
    match value:
        case Tensor():
            name = str(len(tensors))
            tensors[name] = value
            return {"tensor": name}
        case Mapping():
            return {"pairs": [[key, _pack(v, tensors)] for key, v in value.items()]}
        case tuple() | list():
            return [_pack(v, tensors) for v in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"tensor": name}:
            return tensors[name]
        case {"pairs": pairs}:
            return {key: _unpack(v, tensors) for key, v in pairs}
        case list():
            return [_unpack(v, tensors) for v in value]
    return value


def finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, float) and not torch.isfinite(torch.tensor(value)):
        return None
    return value

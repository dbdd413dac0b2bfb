"""A run is a folder. Everything in it is JSON, CSV or safetensors; reading it cannot run code.

Files are written whole or not at all: to a temporary name first, then renamed. Only the log grows by lines.
"""

import csv
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from openldn.config import Options, Settings
from openldn.errors import UserError

T = TypeVar("T")
SKIPPED = ("image", "reason")
FORMAT = 1  # raised when old runs can no longer be read


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
        with _whole_folder(path) as half_made:
            write_json(half_made / "config.json", record)
            write_json(half_made / "split.json", split)
            if skipped:
                write_csv(half_made / "skipped.csv", SKIPPED, skipped)
            (half_made / "checkpoints").mkdir()
        return Run(path, record)

    @staticmethod
    def open(path: str | Path) -> "Run":
        """The run at `path`; an error if there is none, or one that this version cannot read."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"there is no run at {path}; give the folder that `openldn train` made")
        config = read_json(path / "config.json", "a run's folder has one; is this the right folder?")
        if not isinstance(config, dict) or "format" not in config:
            raise UserError(f"{path / 'config.json'} is not a run's configuration; is this the right folder?")
        if config["format"] != FORMAT:
            raise UserError(
                f"{path} was made by another version of openldn (run format {config['format']}, "
                f"this one reads {FORMAT}); use that version, or train again"
            )
        lacking = {"data", "digest", "image", "n_novel", "options", "settings"} - {*config}
        if not lacking and not (isinstance(config["data"], dict) and "kind" in config["data"]):
            lacking = {"data"}
        if lacking:
            raise UserError(
                f"{path / 'config.json'} is damaged ({min(lacking)!r} is missing); "
                "train again, or take the run from a backup"
            )
        if links := [file for file in path.rglob("*") if file.is_symlink()]:
            raise UserError(f"{links[0]} is a link, which no run holds; copy the run without links")
        return Run(path, config)

    @property
    def options(self) -> Options:
        """What was chosen for this run."""
        return self._restored(lambda: Options(**self.config["options"]))

    @property
    def settings(self) -> Settings:
        """What was decided for this run."""
        return self._restored(lambda: Settings.from_json(self.config["settings"]))

    def _restored(self, restore: Callable[[], T]) -> T:
        try:
            return restore()
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UserError(
                f"{self.path / 'config.json'} does not fit this version of openldn; train again"
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other process may train this run."""
        with (self.path / ".lock").open("w") as f:
            if sys.platform != "win32":
                import fcntl

                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"{self.path} is being trained by another process; wait for it, or stop it first"
                    ) from None
                except OSError:  # a file system without locks
                    pass
            try:
                yield
            finally:
                (self.path / ".lock").unlink()

    @property
    def finished(self) -> bool:
        """Whether training went to its end; the model is the last thing written."""
        return (self.path / "model.safetensors").exists()

    def copy_to(self, path: Path) -> None:
        """The finished run without its checkpoints, at a new place."""
        with _whole_folder(path) as half_made:
            for file in self.path.iterdir():
                if file.is_file():
                    shutil.copy2(file, half_made / file.name)

    # ----------------------------------------------------------------------------------- metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """One line more in `metrics.jsonl`; numbers that are not finite become null."""
        with (self.path / "metrics.jsonl").open("a") as f:
            f.write(json.dumps(finite(record)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of `metrics.jsonl`; one that a stopped process wrote half is left out."""
        file = self.path / "metrics.jsonl"
        lines = []
        for line in file.read_bytes().splitlines() if file.exists() else ():
            with suppress(ValueError):
                lines.append(json.loads(line))
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

    # ------------------------------------------------------------------------------- checkpoints

    def checkpoint(self, name: str) -> Path:
        """Where a phase's state is kept."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save_state(self, name: str, state: Mapping[str, Any]) -> None:
        """A tree of dictionaries, lists, tensors, numbers and strings, as one file."""
        tensors: dict[str, Tensor] = {}
        tree = json.dumps(_pack(state, tensors))
        self.checkpoint(name).parent.mkdir(exist_ok=True)  # checkpoints may have been removed, to save space
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
        return state


# --------------------------------------------------------------------------------- files, whole


def check_absent(path: Path) -> None:
    """An error if something is at `path` already."""
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise UserError(f"{path} cannot be made, since {above} is not a folder; choose another --out")
    if path.exists():
        raise UserError(
            f"{path} exists already and is not overwritten; choose another --out, remove it, or "
            f"go on with it: openldn resume {path}"
        )


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON."""
    _whole(path, lambda part: part.write_text(json.dumps(value, indent=2) + "\n"))


def read_json(path: Path, hint: str) -> Any:
    """What a JSON file holds; an error that ends in `hint` if it is missing or broken."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {hint}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged: {hint}") from None


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file with a header."""

    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as f:
            # Lines end as the standard for CSV has it: with "\n", Python would not quote a "\r" in a name.
            writer = csv.writer(f, lineterminator="\r\n")
            writer.writerow(header)
            writer.writerows(rows)

    _whole(path, write)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Named tensors as a safetensors file."""
    ready = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    try:
        _whole(path, lambda part: save_file(ready, part, dict(metadata)))
    except SafetensorError as e:  # its word for a disk that is full
        raise OSError(f"{path} cannot be written ({e})") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    metadata = read_metadata(path)
    return load_file(path), metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file alone."""
    try:
        with safe_open(path, "pt") as f:
            return dict(f.metadata() or {})
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: the run is incomplete; go on with it: openldn resume RUN"
        ) from None
    except (SafetensorError, RuntimeError):  # the latter by torch, of a file that is shorter than it says
        raise _damage(path) from None


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Within, what a file lacks is its damage."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError):
        raise _damage(path) from None


def _damage(path: Path) -> UserError:
    return UserError(f"{path} is damaged; train again, or take the run from a backup")


@contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which appears at `path` when it is filled; `path` must not exist."""
    check_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        half_made.chmod(0o755)
        yield half_made
        half_made.rename(path)
    except BaseException:
        shutil.rmtree(half_made, ignore_errors=True)
        raise


def _whole(path: Path, write: Any) -> None:
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        write(part)
        with part.open("rb") as f:
            os.fsync(f.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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

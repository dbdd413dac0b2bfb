"""Files that are written whole or not at all: to a temporary name first, then renamed.

Reading cannot run code: JSON, CSV and safetensors alone.
"""

import csv
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from openldn.errors import UserError

MAX_JSON = 2**28  # bytes; a split of ten million images takes less


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
    whole(path, lambda part: part.write_text(json.dumps(value, indent=2) + "\n"))


def read_json(path: Path, hint: str) -> Any:
    """What a JSON file holds; an error that ends in `hint` if it is missing or broken."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_JSON:
            raise ValueError
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {hint}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: {hint}") from None


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file with a header."""

    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as f:
            # CRLF is the standard's line end; with LF, Python would not quote a CR in a name.
            writer = csv.writer(f, lineterminator="\r\n")
            writer.writerow(header)
            writer.writerows(rows)

    whole(path, write)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Named tensors as a safetensors file."""
    ready = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    try:
        whole(path, lambda part: save_file(ready, part, dict(metadata)))
    except SafetensorError as e:  # also raised for a full disk
        raise OSError(f"{path} cannot be written ({e})") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    metadata = read_metadata(path)
    return load_file(path), metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file alone."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise damage(path)
        with safe_open(path, "pt") as f:
            return dict(f.metadata() or {})
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: the run is incomplete; go on with it: openldn resume {path.parent}"
        ) from None
    except (SafetensorError, RuntimeError):  # the latter by torch, for a file that is cut short
        raise damage(path) from None


def damage(path: Path) -> UserError:
    """The error for a damaged file."""
    return UserError(f"{path} is damaged; train again, or take the run from a backup")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which appears at `path` when it is filled; `path` must not exist."""
    check_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        part.chmod(0o755)
        yield part
        part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Has `write` fill a temporary file, which then takes the place of `path`."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        write(part)
        part.chmod(mode)  # safetensors makes files that nobody else may read
        with part.open("rb") as f:
            os.fsync(f.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise

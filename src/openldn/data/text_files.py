"""Reads files from strangers; text only from regular files of bounded size, so that none can block."""

import csv
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openldn.errors import UserError

MOST_BYTES = 2**28


def read_text(path: Path, remedy: str) -> str:
    """A UTF-8 file as text; an error that ends with `remedy` if that is not possible."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r} is not a path; {remedy}")
    try:
        # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
            status = os.fstat(f.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path} is not a regular file; {remedy}")
            if status.st_size > MOST_BYTES:
                raise UserError(f"{path} has more than {MOST_BYTES:,} bytes; {remedy}")
            return f.read(MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; {remedy}") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a UTF-8 text file; {remedy}") from None


def read_csv(path: Path, remedy: str) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """The columns of a publisher's CSV file, and its rows by column."""
    reader = csv.DictReader(io.StringIO(read_text(path, remedy)))
    try:
        return reader.fieldnames or (), list(reader)
    except csv.Error:
        raise UserError(f"{path} is not a CSV file; {remedy}") from None


def read_bytes(path: Path, remedy: str) -> bytes:
    """A file of any size."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); {remedy}") from None

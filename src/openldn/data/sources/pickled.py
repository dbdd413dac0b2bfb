"""Reads arrays of bytes from pickles, safely.

A pickle is a program. Here it can call nothing but the stand-ins below, which only keep their arguments;
numpy's own functions would trust it with types and sizes. The unpickler written in Python is used, since
the one in C lets a pickle allocate any amount of memory.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openldn.data.text_files import read_bytes
from openldn.errors import UserError


def read(path: Path, remedy: str) -> dict[str, Any]:
    """A pickled dictionary of plain values and uint8 arrays, written by Python 2 or 3."""
    data = read_bytes(path, remedy)
    try:
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        return {_text(key): _array(value) for key, value in found.items()}
    except _Refused as e:
        raise UserError(f"{path} holds something other than arrays ({e}); {remedy}") from None
    except Exception:  # a damaged pickle can raise anything
        raise UserError(f"{path} is damaged or cut off; {remedy}") from None


class _Refused(Exception):
    pass


class _Type:
    """In place of numpy.dtype."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = _text(name)

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like, which bytes do not have


class _Array:
    """In place of numpy.ndarray."""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.type, self.by_column, self.data = state


def _encode(text: str, coding: str) -> bytes:
    """In place of codecs.encode, with which Python 3 pickles bytes for Python 2."""
    return text.encode(coding if coding == "latin1" else "ascii")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise _Refused(f"{module}.{name}")
        return _STAND_INS[module, name]


def _array(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.type.name not in ("u1", "|u1", "B", "uint8"):
        raise _Refused(f"an array of type {value.type.name}")
    if not isinstance(value.data, bytes) or math.prod(value.shape) != len(value.data):
        raise ValueError("not as many bytes as its shape says")
    flat: NDArray[np.uint8] = np.frombuffer(value.data, np.uint8)
    return flat.reshape(value.shape, order="F" if value.by_column else "C")


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value

"""Reads MATLAB 5 files: numbers, strings, cells and structures.

Not with scipy, which some damaged files make read out of bounds and crash.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openldn.data.text_files import read_bytes
from openldn.errors import UserError

MOST = 2**31  # bytes of a decompressed variable: the largest of SVHN has 1.6 GB
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CELL, STRUCTURE, WORD = 1, 2, 4
NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def read(path: Path, *names: str, remedy: str) -> list[Any]:
    """The variables of these names: arrays, strings, cells as lists, structures as dictionaries of lists."""
    data = read_bytes(path, remedy)
    try:
        found = _variables(memoryview(data))
    except Exception:  # a damaged file can raise anything
        raise UserError(f"{path} is damaged, cut off or not a MATLAB 5 file; {remedy}") from None
    for name in names:
        if name not in found:
            raise UserError(f"{path} has no variable {name!r}; {remedy}")
    return [found[name] for name in names]


def fields(path: Path, structure: Any, *names: str, remedy: str) -> list[list[str | float]]:
    """The values of these fields, each a list of strings or numbers."""
    columns = []
    for name in names:
        if not isinstance(structure, dict) or name not in structure:
            raise UserError(f"{path} has no field {name!r}; {remedy}")
        values = [v.item() if isinstance(v, np.ndarray) and v.size == 1 else v for v in structure[name]]
        if not all(isinstance(value, str | int | float) for value in values):
            raise UserError(f"{path} has a {name!r} that is neither a string nor a number; {remedy}")
        columns.append(values)
    return columns


def _variables(data: memoryview) -> dict[str, Any]:
    # After 124 bytes of text come the version and the byte order.
    order = {b"IM": "<", b"MI": ">"}[bytes(data[126:128])]
    if struct.unpack_from(order + "H", data, 124) != (0x0100,):
        raise ValueError("another version")
    found = dict[str, Any]()
    for kind, content in _elements(data[128:], order):
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            unpacked = memoryview(stream.decompress(content, MOST))
            if not stream.eof:
                raise ValueError("cut off, or too much")
            ((kind, content),) = _elements(unpacked, order)
        if kind != MATRIX:
            raise ValueError("not a variable")
        found.update([_matrix(content, order)])
    return found


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Each element's type and content."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(order + "I", data, at)[0], 0
        if kind >> 16:  # a small element: its size is in the same word, its content in the next
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start, size = at + 8, struct.unpack_from(order + "I", data, at + 4)[0]
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > min(end, len(data)):
            raise ValueError("cut off")
        yield kind, data[start : start + size]
        at = end


def _matrix(data: memoryview, order: str) -> tuple[str, Any]:
    """The name and value of a variable; elements of cells and structures have no names."""
    if not data:
        return "", np.empty(0)
    parts = _elements(data, order)
    kind = int(_numbers(*next(parts), order)[0]) & 0xFF
    shape = tuple(_numbers(*next(parts), order).tolist())
    name = bytes(next(parts)[1]).decode()
    n = math.prod(shape)
    if kind == CELL:
        return name, _values(parts, n, order)
    if kind == STRUCTURE:
        width = int(_numbers(*next(parts), order)[0])
        text = bytes(next(parts)[1])
        names = [text[i : i + width].split(b"\0")[0].decode() for i in range(0, len(text), width)]
        values = _values(parts, n * len(names), order)
        return name, {field: values[i :: len(names)] for i, field in enumerate(names)}
    stored, content = next(parts)
    if kind == WORD:
        wide = f"utf-16-{'l' if order == '<' else 'b'}e"
        coding = {1: "latin1", 2: "latin1", 4: wide, 16: "utf-8", 17: wide}[stored]
        return name, bytes(content).decode(coding)
    # Integers are stored in as few bytes as possible, whatever their type.
    numbers = _numbers(stored, content, order).astype(NUMBERS[kind], copy=False)
    if min(shape) < 0:
        raise ValueError("no such shape")
    return name, numbers.reshape(shape, order="F")


def _values(parts: Iterator[tuple[int, memoryview]], n: int, order: str) -> list[Any]:
    values = [_matrix(content, order)[1] for _, content in parts]
    if len(values) != n:
        raise ValueError("not as many as it says")
    return values


def _numbers(stored: int, content: memoryview, order: str) -> NDArray[Any]:
    return np.frombuffer(content, np.dtype(order + STORED[stored]))

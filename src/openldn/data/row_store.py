"""Rows of equal length in a file, found by keys: decoded images and features are kept this way.

A store is a folder with three files:

- the rows, one after the other;
- `index`: the key of each row, its fingerprint, and its place among the rows;
- `trusted`: the number of index records that are certainly on disk together with their rows.

Records are only ever appended. Those beyond `trusted` come from a process that was killed or from a power
failure; their rows are compared with their fingerprints first.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data import image_files
from openldn.data.pixels import PRINT

KEY = np.dtype("V16")
RECORD = np.dtype([("key", KEY), ("print", PRINT), ("place", "i8")])
ROOM = 0.9  # share of the free disk space that a store may take


class RowStore:
    """Rows of `each` bytes in the file `name` of a folder. One process at a time may write: see `lock`."""

    def __init__(self, folder: Path, name: str, each: int):
        self.folder, self.each = folder, each
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.trusted = folder / name, folder / "trusted"
        self.file.touch()
        self.index = Table(folder / "index", RECORD)
        self._drop_damaged()

    def has_room(self, n: int) -> bool:
        """Whether the disk has room for n more rows."""
        return n * self.each < ROOM * shutil.disk_usage(self.folder).free

    def extend(self, n: int) -> int:
        """Makes the file n rows longer; returns the place of the first of them."""
        n_stored = self._n_stored
        os.truncate(self.file, (n_stored + n) * self.each)
        return n_stored

    def append(self, rows: NDArray[np.uint8]) -> int:
        """Writes rows (n, each) at the end; returns the place of the first of them."""
        place = self._n_stored
        with self.file.open("rb+") as f:
            f.seek(place * self.each)
            f.write(rows.data)
        return place

    def trust(self) -> None:
        """Writes all to disk and records that."""
        for path in (self.file, self.index.file):
            with path.open("rb+") as f:
                os.fsync(f.fileno())
        _write(self.trusted, str(len(self.index.read())).encode())

    @property
    def _n_stored(self) -> int:
        return self.file.stat().st_size // self.each

    def _drop_damaged(self) -> None:
        """Removes records whose rows are missing or, beyond `trusted`, differ from their fingerprints."""
        n_trusted = int(self.trusted.read_text()) if self.trusted.exists() else 0
        records, n_stored = self.index.read(), self._n_stored
        good = records["place"] < n_stored
        untrusted = np.flatnonzero(good & (records["place"] >= 0))
        untrusted = untrusted[untrusted >= n_trusted]
        if len(untrusted):
            size = n_stored * self.each
            rows = torch.from_file(str(self.file), shared=False, size=size, dtype=torch.uint8).numpy()
            for i in untrusted.tolist():
                row = rows.reshape(n_stored, -1)[int(records["place"][i])]
                good[i] = image_files.fingerprint(row) == records["print"][i].tobytes()
        if not good.all() or len(untrusted):
            _write(self.index.file, records[good].tobytes())
            self.trust()


class Table:
    """A file of records of one length; an incomplete last record is cut off."""

    def __init__(self, file: Path, dtype: np.dtype[Any]):
        self.file, self.dtype = file, dtype
        self._unwritten: list[tuple[Any, ...]] = []  # for lack of disk space
        file.touch()
        os.truncate(file, file.stat().st_size // dtype.itemsize * dtype.itemsize)

    def read(self) -> NDArray[Any]:
        return np.fromfile(self.file, self.dtype)

    def by_key(self) -> dict[bytes, tuple[Any, ...]]:
        return {record[0]: record for record in [*self.read().tolist(), *self._unwritten]}

    def places(self) -> dict[bytes, int]:
        """The place of each row, by its key."""
        records = self.read()
        known = dict(zip(records["key"].tolist(), records["place"].tolist(), strict=True))
        return known | {key: place for key, _, place in self._unwritten}

    def add(self, records: Sequence[tuple[Any, ...]]) -> None:
        if not records:
            return
        size = self.file.stat().st_size
        try:
            with self.file.open("ab") as f:
                f.write(np.array(records, self.dtype).tobytes())
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.truncate(self.file, size)  # no incomplete record
            self._unwritten += records


def _write(file: Path, data: bytes) -> None:
    """Replaces a file atomically."""
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    part.replace(file)


def hashed(text: str) -> bytes:
    """A key made of text."""
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=KEY.itemsize).digest()

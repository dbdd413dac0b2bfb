"""A store of decoded images in the user's cache: each file is decoded once, by all cores.

A store belongs to one folder or list of files. It has these files:

- `headers`: the width, height and kind of each image.
- SIZExCHANNELS/`pixels`: the images, one after the other, channels last.
- SIZExCHANNELS/`index`: the fingerprint of each image and its place in `pixels`.
- SIZExCHANNELS/`trusted`: the number of index records that are certainly on disk together with their pixels.

Records are only ever appended. Each has a stamp, a hash of a file's path, size and modification time, so a
changed file is decoded again. Records beyond `trusted` come from a process that was killed or from a power
failure; their pixels are compared with their fingerprints first. Files that cannot be read have no record
and are tried again each time.
"""

import atexit
import errno
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from platformdirs import user_cache_path

from openldn import lock
from openldn.data import image_files, workers
from openldn.data.image_files import Header
from openldn.data.pixels import FEW, PRINT, Images, OnTheFly, Stored
from openldn.errors import OpenLDNWarning, UserError

STAMP = np.dtype("V16")
HEADER = np.dtype([("stamp", STAMP), ("width", "i4"), ("height", "i4"), ("grey", "?")])
PIXELS = np.dtype([("stamp", STAMP), ("print", PRINT), ("place", "i8")])
FORMAT = 2  # raised when decoding changes, so that old stores are not used
MOST_UNREADABLE = 0.1
SAMPLE = 200  # headers that are read to guess the size
AT_ONCE = 2**23  # bytes of pixels per task of a worker process
ROOM = 0.9  # share of the free disk space that a store may take

Watch = Callable[[str, int, int], None]  # progress: what is done, how many of how many


def cache(variable: str = "OPENLDN_CACHE", below: str = "store") -> Path:
    """The folder that an environment variable names, else one in the user's cache folder."""
    named = os.environ.get(variable)
    return Path(named) if named else user_cache_path("openldn", appauthor=False) / below


def decode(
    paths: Sequence[str | Path],
    *,
    root: str,
    size: int | None,
    channels: int | None = None,
    largest: int = 224,
    watch: Watch | None = None,
) -> tuple[Images, dict[int, str]]:
    """The readable images at one size, in order, and the reasons why others are not, by number.

    `root` is what the files have in common; it names the store. By default the images determine the size, up
    to `largest`, and the number of channels.
    """
    # Absolute paths: worker processes may have been started in another working directory.
    absolute = [os.path.abspath(path) for path in paths]
    watch = watch or (lambda what, done, total: None)
    folder = _folder(root)
    with lock.held(folder / "lock", busy=None):
        files = _Files(absolute, _Table(folder / "headers", HEADER))
        if size is None or channels is None:
            files.sample()
        # The headers of a sample suggest a size. All headers are known once all images were decoded to that
        # size, and if they then suggest another one, the images are decoded again.
        while True:
            shape = _shape(files, size, channels, largest)
            complete = files.complete
            images = _Pixels(folder, shape).decode(files, watch)
            if complete or shape == _shape(files, size, channels, largest):
                return images, dict(sorted(files.skipped.items()))


def _shape(files: "_Files", size: int | None, channels: int | None, largest: int) -> tuple[int, int, int]:
    if size is None or channels is None:
        best, all_channels = image_files.choose_size(files.headers(), largest)
        size, channels = size or best, channels or all_channels
    return channels, size, size


class _Files:
    """The image files, with what is known of them."""

    def __init__(self, paths: Sequence[str], table: "_Table"):
        self.paths, self.table = paths, table
        self.stamps = [_stamp(path) for path in paths]
        self.known = table.by_stamp()  # headers
        self.skipped: dict[int, str] = {}  # why files cannot be read, by number

    @property
    def complete(self) -> bool:
        """Whether every file has a header or cannot be read."""
        return all(stamp in self.known or i in self.skipped for i, stamp in enumerate(self.stamps))

    @property
    def readable(self) -> list[int]:
        """The numbers of the files that can be read, as far as known."""
        return [i for i in range(len(self.paths)) if i not in self.skipped]

    def headers(self) -> list[Header]:
        """The headers that are known; an error if there are none."""
        found = [self.known.get(self.stamps[i]) for i in self.readable]
        headers = [Header(int(r[1]), int(r[2]), bool(r[3])) for r in found if r is not None]
        if not headers:
            raise self._too_many_unreadable()
        return headers

    def sample(self) -> None:
        """Reads the headers of a few files, evenly spaced, or all headers of few files."""
        missing = [i for i, stamp in enumerate(self.stamps) if stamp not in self.known]
        part = missing[:: max(1, len(missing) // SAMPLE)]
        self.add(part, image_files.headers([self.paths[i] for i in part]))

    def add(self, numbers: Sequence[int], found: Sequence[Header | str]) -> None:
        """Records files with their headers, or why they cannot be read; an error if that is so for many."""
        pairs = [(self.stamps[i], one) for i, one in zip(numbers, found, strict=True)]
        new = {s: (s, *one) for s, one in pairs if not isinstance(one, str) and s not in self.known}
        self.table.add([*new.values()])
        self.known |= new
        reasons = {stamp: one for stamp, one in pairs if isinstance(one, str)}
        if reasons:  # by stamp, as a file may be listed twice
            self.skipped |= {i: reasons[stamp] for i, stamp in enumerate(self.stamps) if stamp in reasons}
        if len(self.skipped) > MOST_UNREADABLE * len(self.paths):
            raise self._too_many_unreadable()

    def _too_many_unreadable(self) -> UserError:
        i = min(self.skipped)
        example = f"{image_files.printable(self.paths[i])} ({self.skipped[i]})"
        wrong = f"{len(self.skipped)} of {len(self.paths)} images cannot be read, such as {example}"
        return UserError(f"{wrong}; remove or repair these files, or check that the folder is the right one")


class _Pixels:
    """The images of one size: `pixels`, `index` and `trusted`."""

    def __init__(self, folder: Path, shape: tuple[int, int, int]):
        self.folder, self.shape, self.each = folder / f"{shape[1]}x{shape[0]}", shape, int(np.prod(shape))
        self.folder.mkdir(exist_ok=True)
        self.file, self.trusted = self.folder / "pixels", self.folder / "trusted"
        self.file.touch()
        self.index = _Table(self.folder / "index", PIXELS)
        self._drop_damaged()

    def decode(self, files: _Files, watch: Watch) -> Images:
        """All readable files; those that are not stored yet are decoded first."""
        missing, fits = self._missing(files)
        if missing:
            self._add(missing, files, watch, fits)
        known, readable = self.index.by_stamp(), files.readable
        records = [known[files.stamps[i]] for i in readable]
        prints = np.array([r[1] for r in records], PRINT)
        places = np.array([r[2] for r in records], np.int64)
        if (places >= 0).all():
            return Stored(self.file, places, prints, self.shape)
        return OnTheFly([files.paths[i] for i in readable], prints, self.shape)

    def _missing(self, files: _Files) -> tuple[list[int], bool]:
        """The files to decode, by number, and whether the disk has room for their pixels."""
        # The place of a file that was decoded but not stored is -1. A file without a header is decoded again.
        places = {stamp: place for stamp, _, place in self.index.by_stamp().values() if stamp in files.known}
        by_stamp = {files.stamps[i]: i for i in files.readable if places.get(files.stamps[i], -1) < 0}
        if not by_stamp or len(by_stamp) * self.each < ROOM * shutil.disk_usage(self.folder).free:
            return [*by_stamp.values()], True
        size = f"{len(by_stamp):,} decoded images take {len(by_stamp) * self.each / 1e9:.1f} GB"
        what = f"{size}, more than {self.folder} has room for; they are decoded whenever they are needed"
        slower = "which is slower ($OPENLDN_CACHE names another place)"
        warnings.warn(f"{what}, {slower}", OpenLDNWarning, stacklevel=2)
        return [i for stamp, i in by_stamp.items() if stamp not in places], False

    def _add(self, missing: list[int], files: _Files, watch: Watch, fits: bool) -> None:
        """Decodes files into `pixels`, if they fit, and records them."""
        n_stored, done, tasks = self._n_stored, 0, []
        at_once = min(max(AT_ONCE // self.each, 16), 256)
        for first in range(0, len(missing), at_once):
            part = missing[first : first + at_once]
            into = (str(self.file), n_stored + first) if fits else (os.devnull, 0)
            tasks.append((([files.paths[i] for i in part], self.shape[1], self.shape[0], into), part))
        place_of = {i: n_stored + k if fits else -1 for k, i in enumerate(missing)}
        try:
            if fits:
                os.truncate(self.file, (n_stored + len(missing)) * self.each)
            few = len(missing) <= FEW
            for part, results in workers.map_unordered(image_files.decode, tasks, in_process=few):
                done += len(part)
                watch("decoding", done, len(missing))
                files.add(part, [r if isinstance(r, str) else r.header for r in results])
                good = [(i, r) for i, r in zip(part, results, strict=True) if not isinstance(r, str)]
                self.index.add([(files.stamps[i], r.fingerprint, place_of[i]) for i, r in good])
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            again = "start again: what was decoded is not lost"
            remedy = f"make room, or name another place in $OPENLDN_CACHE, and {again}"
            raise UserError(f"the disk is full, so decoded images cannot be stored; {remedy}") from None
        if fits:
            self._trust()

    @property
    def _n_stored(self) -> int:
        return self.file.stat().st_size // self.each

    def _drop_damaged(self) -> None:
        """Removes records whose pixels are missing or, beyond `trusted`, differ from their fingerprints."""
        n_trusted = int(self.trusted.read_text()) if self.trusted.exists() else 0
        records, n_stored = self.index.read(), self._n_stored
        good = records["place"] < n_stored
        untrusted = np.flatnonzero(good & (records["place"] >= 0))
        untrusted = untrusted[untrusted >= n_trusted]
        if len(untrusted):
            size = n_stored * self.each
            pixels = torch.from_file(str(self.file), shared=False, size=size, dtype=torch.uint8).numpy()
            for i in untrusted.tolist():
                image = pixels.reshape(n_stored, -1)[int(records["place"][i])]
                good[i] = image_files.fingerprint(image) == records["print"][i].tobytes()
        if not good.all() or len(untrusted):
            _write(self.index.file, records[good].tobytes())
            self._trust()

    def _trust(self) -> None:
        """Writes all to disk and records that."""
        for path in (self.file, self.index.file):
            with path.open("rb+") as f:
                os.fsync(f.fileno())
        _write(self.trusted, str(len(self.index.read())).encode())


class _Table:
    """A file of records of one length; an incomplete last record is cut off."""

    def __init__(self, file: Path, dtype: np.dtype[Any]):
        self.file, self.dtype = file, dtype
        self._unwritten: list[tuple[Any, ...]] = []  # for lack of disk space
        file.touch()
        os.truncate(file, file.stat().st_size // dtype.itemsize * dtype.itemsize)

    def read(self) -> NDArray[Any]:
        return np.fromfile(self.file, self.dtype)

    def by_stamp(self) -> dict[bytes, tuple[Any, ...]]:
        return {record[0]: record for record in [*self.read().tolist(), *self._unwritten]}

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


def _stamp(path: str) -> bytes:
    """A hash that differs once the file has changed."""
    try:
        status = os.stat(path)
        about = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    except (OSError, ValueError):
        about = f"{path}\0missing"
    return _hash(about)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=STAMP.itemsize).digest()


def _folder(root: str) -> Path:
    try:
        folder = cache() / _hash(f"{FORMAT}\0{root}").hex()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.txt").write_text(root + "\n", errors="backslashreplace")
        return folder
    except OSError:  # the cache is not writable: a temporary store for this process, private to its user
        temporary = tempfile.mkdtemp(prefix="openldn-store-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)

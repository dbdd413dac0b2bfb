"""Pixels, decoded once by all cores and kept in the user's cache.

A store belongs to one folder or list of files. In it, `headers` and SIZExCHANNELS/`index` are tables to
which records are only ever added, each under a stamp of a file's path, length and time of change: a changed
file has another stamp and is decoded again. `pixels` holds the images, one after the other, each pixel's
channels together, as decoders deliver them and resizing is fastest with. `trusted` says up to where the index
was on disk together with its pixels; what stands after that (a process was killed, the power failed) is
compared with its fingerprint before it is believed.

Files that cannot be read are not recorded: they are tried anew each time.
"""

import atexit
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data import images as image_files
from openldn.data import workers
from openldn.data.images import Header
from openldn.data.pixels import PRINT, Images, OnTheFly, Stored
from openldn.errors import OpenLDNWarning, UserError

STAMP = np.dtype("V16")
HEADER = np.dtype([("stamp", STAMP), ("width", "i4"), ("height", "i4"), ("grey", "?")])
PIXELS = np.dtype([("stamp", STAMP), ("print", PRINT), ("place", "i8")])
FORMAT = 2  # raised when decoding changes, so that old stores are not used
MOST_UNREADABLE = 0.1
SAMPLE = 200  # so many files are looked at before it is worth starting worker processes
AT_ONCE = 2**23  # bytes of pixels that a worker process makes at a time
ROOM = 0.9  # of the free disk space, the share that a store may take

Watch = Callable[[str, int, int], None]  # what is done, how many of how many


@dataclass(frozen=True)
class Decoded:
    """What became of some files."""

    images: Images
    kept: NDArray[np.int64]  # which of the files these are
    skipped: dict[int, str]  # why the others are left out


def cache() -> Path:
    """Where stores are kept: $OPENLDN_CACHE, or a folder in the user's cache."""
    if told := os.environ.get("OPENLDN_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openldn" / "store"


def decoded(
    paths: Sequence[str | Path],
    *,
    root: str,
    size: int | None,
    channels: int | None = None,
    largest: int = 224,
    watch: Watch | None = None,
) -> Decoded:
    """All of the images at one size; `root` is what the files have in common, and names the store.

    Where no size or number of channels is given, they are chosen from the images.
    """
    # Whole paths: worker processes may have been started in another folder than this one is in now.
    files = [os.path.abspath(path) for path in paths]
    with _locked(folder := _folder(root)):
        book = _Book(files, [_stamp(file) for file in files], _Table(folder / "headers", HEADER))
        watch = watch or (lambda what, done, total: None)
        if size is not None and channels is not None:
            return _pixels(folder, book, (channels, size, size), watch)
        # A few headers tell what is probably best; all are known once all images have been decoded to that.
        _headers(book)
        if not book.headers():
            raise book.too_many()
        while True:
            best, all_channels = image_files.choose_size([*book.headers().values()], largest)
            guess = (channels or all_channels, *(size or best,) * 2)
            if book.complete:
                return _pixels(folder, book, guess, watch)
            _pixels(folder, book, guess, watch)


# ---------------------------------------------------------------------------------------- the two passes


class _Book:
    """What is known of the files, by number: stamps, headers, and why some cannot be read."""

    def __init__(self, paths: Sequence[str], stamps: Sequence[bytes], table: "_Table"):
        self.paths, self.stamps, self.table = paths, stamps, table
        self.known = table.by_stamp()
        self.skipped: dict[int, str] = {}

    @property
    def complete(self) -> bool:
        """Whether every file has a header or cannot be read."""
        return all(stamp in self.known or i in self.skipped for i, stamp in enumerate(self.stamps))

    @property
    def readable(self) -> list[int]:
        return [i for i in range(len(self.paths)) if i not in self.skipped]

    def headers(self) -> dict[int, Header]:
        """Those that are known."""
        found = [(i, self.known.get(self.stamps[i])) for i in self.readable]
        return {i: Header(int(r[1]), int(r[2]), bool(r[3])) for i, r in found if r is not None}

    def note(self, headers: Sequence[tuple[int, Header]], unreadable: Mapping[int, str]) -> None:
        """Takes down what was found out; an error if too much is unreadable."""
        new = {self.stamps[i]: (self.stamps[i], *h) for i, h in headers if self.stamps[i] not in self.known}
        self.table.add([*new.values()])
        self.known |= new
        bad = {self.stamps[i]: reason for i, reason in unreadable.items()}
        self.skipped |= {i: bad[stamp] for i, stamp in enumerate(self.stamps) if stamp in bad} if bad else {}
        if len(self.skipped) > MOST_UNREADABLE * len(self.paths):
            raise self.too_many()

    def too_many(self) -> UserError:
        """What to say when too much of what was looked at is unreadable."""
        i = min(self.skipped)
        return UserError(
            f"{len(self.skipped)} of {len(self.paths)} images cannot be read, such as "
            f"{image_files.shown(self.paths[i])} ({self.skipped[i]}); take away or repair what is not an "
            "image, or check that the folder is the right one"
        )

    def names(self, part: Sequence[int]) -> list[str]:
        return [self.paths[i] for i in part]


def _headers(book: _Book) -> None:
    """Looks at a few files, evenly from all, or at all of a few."""
    missing = [i for i, stamp in enumerate(book.stamps) if stamp not in book.known]
    part = missing[:: max(1, len(missing) // SAMPLE)]
    results = image_files.headers(book.names(part))
    pairs = list(zip(part, results, strict=True))
    book.skipped.update((i, r) for i, r in pairs if isinstance(r, str))
    book.note([(i, r) for i, r in pairs if not isinstance(r, str)], {})


def _pixels(folder: Path, book: _Book, shape: tuple[int, int, int], watch: Watch) -> Decoded:
    """The pixels of all readable files, those that are not there yet decoded first."""
    folder = folder / f"{shape[1]}x{shape[0]}"
    folder.mkdir(exist_ok=True)
    file, each, stamps = folder / "pixels", int(np.prod(shape)), book.stamps
    file.touch()
    table = _Table(folder / "index", PIXELS)
    _believe(table, folder / "trusted", file, shape)
    known = table.by_stamp()
    # By stamp, since a file may be wanted twice. A place below 0: seen, but there was no room to keep it.
    # Without a header it is examined again, whatever became of the record.
    places = {stamp: record[2] for stamp, record in known.items() if stamp in book.known}
    missing = [*{stamps[i]: i for i in book.readable if places.get(stamps[i], -1) < 0}.values()]
    n_places = file.stat().st_size // each
    fits = not missing or len(missing) * each < ROOM * shutil.disk_usage(folder).free
    if fits:
        os.truncate(file, (n_places + len(missing)) * each)
    else:
        warnings.warn(
            f"{len(missing):,} decoded images take {len(missing) * each / 1e9:.1f} GB, more than {folder} "
            "has room for; they are decoded as they are needed, which is slower ($OPENLDN_CACHE names "
            "another place)",
            OpenLDNWarning,
            stacklevel=2,
        )
        missing = [i for i in missing if stamps[i] not in places]
    tasks = []
    at_once = min(max(AT_ONCE // each, 16), 256)
    for first in range(0, len(missing), at_once):
        part = missing[first : first + at_once]
        where = (str(file), n_places + first) if fits else (None, -1)
        tasks.append(((*where, book.names(part), shape[1], shape[0]), part))
    place_of = {i: n_places + k if fits else -1 for k, i in enumerate(missing)}
    for part, results in _shared_out(image_files.decode_into, tasks, watch):
        pairs = list(zip(part, results, strict=True))
        good = [(i, *r) for i, r in pairs if not isinstance(r, str)]
        book.note([(i, h) for i, h, _ in good], {i: r for i, r in pairs if isinstance(r, str)})
        table.add([(stamps[i], mark, place_of[i]) for i, _, mark in good])
    if missing and fits:
        _settle(file, table, folder / "trusted")
    known, kept = table.by_stamp() if missing else known, book.readable
    records = [known[stamps[i]] for i in kept]
    prints = np.array([r[1] for r in records], PRINT)
    at = np.array([r[2] for r in records], np.int64)
    images: Images
    if (at >= 0).all():
        images = Stored(file, at, prints, shape)
    else:
        images = OnTheFly([book.paths[i] for i in kept], prints, shape)
    return Decoded(images, np.array(kept, np.int64), dict(sorted(book.skipped.items())))


def _believe(table: "_Table", trusted: Path, file: Path, shape: tuple[int, int, int]) -> None:
    """Drops records whose pixels are not what they should be; those up to `trusted` are known to be good."""
    good = int(trusted.read_text()) if trusted.exists() else 0
    records, each = table.read(), int(np.prod(shape))
    n_places = file.stat().st_size // each
    fine = records["place"] < n_places
    doubtful = np.flatnonzero(fine & (records["place"] >= 0))
    doubtful = doubtful[doubtful >= good]
    if len(doubtful):
        pool = torch.from_file(str(file), shared=False, size=n_places * each, dtype=torch.uint8).numpy()
        for i in doubtful.tolist():
            place = int(records["place"][i])
            image = pool[place * each : (place + 1) * each]
            fine[i] = image_files.fingerprint(image) == records["print"][i].tobytes()
    if not fine.all() or len(doubtful):
        table.rewrite(records[fine])
        _settle(file, table, trusted)


def _settle(file: Path, table: "_Table", trusted: Path) -> None:
    """All that the index says is on disk now."""
    for path in (file, table.file):
        with path.open("rb+") as f:
            os.fsync(f.fileno())
    _write(trusted, str(len(table.read())).encode())


# ---------------------------------------------------------------------------------------------- parts


class _Table:
    """Records of one length in a file; what a killed process wrote half is cut off."""

    def __init__(self, file: Path, dtype: np.dtype[Any]):
        self.file, self.dtype = file, dtype
        self._unwritten: list[tuple[Any, ...]] = []  # for want of disk space
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
            os.truncate(self.file, size)  # no half a record
            self._unwritten += records

    def rewrite(self, records: NDArray[Any]) -> None:
        _write(self.file, records.tobytes())


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    part.replace(file)


def _shared_out(
    f: Callable[..., list[Any]], tasks: Sequence[tuple[tuple[Any, ...], list[int]]], watch: Watch
) -> Iterator[tuple[list[int], list[Any]]]:
    """Each task's numbers and results as they come: (arguments, numbers) -> f(*arguments).

    By all cores, or right here where starting processes would take longer.
    """
    total, done = sum(len(part) for _, part in tasks), 0
    try:
        for part, results in workers.outcomes(f, tasks, here=total <= SAMPLE):
            done += len(part)
            watch("decoding", done, total)
            yield part, results
    except OSError as e:
        if e.errno == errno.ENOSPC:
            raise UserError(
                "the disk is full, so decoded images cannot be kept; make room, or name another place "
                "in $OPENLDN_CACHE, and start again: what is decoded is not lost"
            ) from None
        raise


def _stamp(path: str) -> bytes:
    """Another one when the file changes; a file that is not there has one too."""
    try:
        status = os.stat(path)
        about = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    except OSError:
        about = f"{path}\0missing"
    return hashlib.blake2b(about.encode(errors="surrogateescape"), digest_size=STAMP.itemsize).digest()


def _folder(root: str) -> Path:
    name = hashlib.blake2b(f"{FORMAT}\0{root}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    try:
        folder = cache() / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.txt").write_text(root + "\n", errors="backslashreplace")
        return folder
    except OSError:  # a home that may not be written to: for this process alone, where nobody else can write
        passing = tempfile.mkdtemp(prefix="openldn-store-")
        atexit.register(shutil.rmtree, passing, ignore_errors=True)
        return Path(passing)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Within, no other process changes the store; if one is at work, we wait for it."""
    with (folder / "lock").open("w") as f:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                what = "another process decodes the same images; this one waits for it"
                warnings.warn(what, OpenLDNWarning, stacklevel=2)
                fcntl.flock(f, fcntl.LOCK_EX)
            except OSError:  # a file system without locks
                pass
        yield

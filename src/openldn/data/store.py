"""Pixels, decoded once by all cores and kept in the user's cache.

A store belongs to one folder or list of files. In it, `headers` and SIZExCHANNELS/`index` are tables to
which records are only ever added, each under a stamp of a file's path, length and time of change: a changed
file has another stamp and is decoded again. `pixels` holds the images, one after the other. `trusted` says up
to where the index was on disk together with its pixels; what stands after that (a process was killed, the
power failed) is compared with its fingerprint before it is believed.

Files that cannot be read are not recorded: they are tried anew each time.
"""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
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
FORMAT = 1  # raised when decoding changes, so that old stores are not used
MOST_UNREADABLE = 0.1
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
    paths: Sequence[Path],
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
    watch = watch or (lambda what, done, total: None)
    folder = _folder(root)
    with _locked(folder):
        stamps = [_stamp(path) for path in paths]
        found, skipped = _headers(folder / "headers", paths, stamps, watch)
        _complain_of_many(skipped, paths)
        best, all_channels = image_files.choose_size([*found.values()], largest)
        size, channels = best if size is None else size, all_channels if channels is None else channels
        return _pixels(
            folder / f"{size}x{channels}", paths, stamps, [*found], skipped, (channels, size, size), watch
        )


# --------------------------------------------------------------------------------------- the two passes


def _headers(
    file: Path, paths: Sequence[Path], stamps: Sequence[bytes], watch: Watch
) -> tuple[dict[int, Header], dict[int, str]]:
    """The header of each file by its number, and why others have none."""
    table = _Table(file, HEADER)
    known = table.by_stamp()
    missing = [i for i, stamp in enumerate(stamps) if stamp not in known]
    skipped: dict[int, str] = {}
    for part, results in _shared_out(
        image_files.headers,
        [((_names(paths, part),), part) for part in _parts(missing, 256)],
        watch,
        "headers",
    ):
        records = []
        for i, result in zip(part, results, strict=True):
            if isinstance(result, str):
                skipped[i] = result
            else:
                records.append((stamps[i], *result))
        table.add(records)
    known = table.by_stamp()
    found = {}
    for i, stamp in enumerate(stamps):
        if i not in skipped:
            _, width, height, grey = known[stamp]
            found[i] = Header(int(width), int(height), bool(grey))
    return found, skipped


def _pixels(
    folder: Path,
    paths: Sequence[Path],
    stamps: Sequence[bytes],
    wanted: Sequence[int],
    skipped: dict[int, str],
    shape: tuple[int, int, int],
    watch: Watch,
) -> Decoded:
    """The pixels of the wanted files, those that are not there yet decoded first."""
    folder.mkdir(exist_ok=True)
    file, each = folder / "pixels", int(np.prod(shape))
    file.touch()
    table = _Table(folder / "index", PIXELS)
    _believe(table, folder / "trusted", file, shape)
    known = table.by_stamp()
    # By stamp, since a file may be wanted twice. A place below 0: seen, but there was no room to keep it.
    missing = [*{stamps[i]: i for i in wanted if known.get(stamps[i], (None, None, -1))[2] < 0}.values()]
    n_places = file.stat().st_size // each
    fits = len(missing) * each < ROOM * shutil.disk_usage(folder).free
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
        missing = [i for i in missing if stamps[i] not in known]
    tasks = []
    for first in range(0, len(missing), 64):
        part = missing[first : first + 64]
        place = n_places + first if fits else -1
        task = (str(file) if fits else None, place, _names(paths, part), shape[1], shape[0])
        tasks.append((task, part))
    place_of = {i: n_places + k if fits else -1 for k, i in enumerate(missing)}
    failed: dict[bytes, str] = {}
    for part, results in _shared_out(image_files.decode_into, tasks, watch, "decoding"):
        good = [(i, r) for i, r in zip(part, results, strict=True) if isinstance(r, bytes)]
        failed |= {stamps[i]: r for i, r in zip(part, results, strict=True) if isinstance(r, str)}
        table.add([(stamps[i], r, place_of[i]) for i, r in good])
    if missing and fits:
        _settle(file, table, folder / "trusted")
    skipped = skipped | {i: failed[stamps[i]] for i in wanted if stamps[i] in failed}
    _complain_of_many(skipped, paths)
    known = table.by_stamp()
    kept = np.array([i for i in wanted if i not in skipped], np.int64)
    records = [known[stamps[i]] for i in kept.tolist()]
    prints = np.array([r[1] for r in records], PRINT)
    places = np.array([r[2] for r in records], np.int64)
    if (places >= 0).all():
        return Decoded(Stored(file, places, prints, shape), kept, skipped)
    return Decoded(OnTheFly([paths[i] for i in kept.tolist()], prints, shape), kept, skipped)


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
            image = pool[place * each : (place + 1) * each].reshape(shape)
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
        file.touch()
        os.truncate(file, file.stat().st_size // dtype.itemsize * dtype.itemsize)

    def read(self) -> NDArray[Any]:
        return np.fromfile(self.file, self.dtype)

    def by_stamp(self) -> dict[bytes, tuple[Any, ...]]:
        return {record[0]: record for record in self.read().tolist()}

    def add(self, records: Sequence[tuple[Any, ...]]) -> None:
        if records:
            with self.file.open("ab") as f:
                f.write(np.array(records, self.dtype).tobytes())

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
    f: Callable[..., list[Any]],
    tasks: Sequence[tuple[tuple[Any, ...], list[int]]],
    watch: Watch,
    what: str,
) -> Iterator[tuple[list[int], list[Any]]]:
    """Each task's numbers and results as they come: (arguments, numbers) -> f(*arguments).

    By all cores, or right here where starting processes would take longer.
    """
    total, done = sum(len(part) for _, part in tasks), 0
    try:
        for part, results in workers.outcomes(f, tasks, here=total <= 200):
            done += len(part)
            watch(what, done, total)
            yield part, results
    except OSError as e:
        if e.errno == errno.ENOSPC:
            raise UserError(
                "the disk is full, so decoded images cannot be kept; make room, or name another place "
                "in $OPENLDN_CACHE, and start again: what is decoded is not lost"
            ) from None
        raise


def _parts(numbers: list[int], n: int) -> list[list[int]]:
    return [numbers[i : i + n] for i in range(0, len(numbers), n)]


def _names(paths: Sequence[Path], part: Sequence[int]) -> list[str]:
    return [str(paths[i]) for i in part]


def _stamp(path: Path) -> bytes:
    """Another one when the file changes; a file that is not there has one too."""
    try:
        status = os.stat(path)
        about = f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    except OSError:
        about = f"{os.path.abspath(path)}\0missing"
    return hashlib.blake2b(about.encode(errors="surrogateescape"), digest_size=STAMP.itemsize).digest()


def _complain_of_many(skipped: dict[int, str], paths: Sequence[Path]) -> None:
    if len(skipped) > MOST_UNREADABLE * len(paths):
        i = min(skipped)
        raise UserError(
            f"{len(skipped)} of {len(paths)} images cannot be read, such as {image_files.shown(paths[i])} "
            f"({skipped[i]}); "
            "take away or repair what is not an image, or check that the folder is the right one"
        )


def _folder(root: str) -> Path:
    name = hashlib.blake2b(f"{FORMAT}\0{root}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    try:
        folder = cache() / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.txt").write_text(root + "\n", errors="backslashreplace")
        return folder
    except OSError:  # a home that may not be written to: keep them as long as the machine keeps such things
        folder = (
            Path(tempfile.gettempdir()) / f"openldn-{os.getuid() if hasattr(os, 'getuid') else ''}" / name
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


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
        yield

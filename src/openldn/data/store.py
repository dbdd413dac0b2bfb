"""A store of decoded images in the user's cache: each file is decoded once, by all cores.

A store belongs to one folder or list of files. It has these files:

- `headers`: the width, height and kind of each image.
- SIZExCHANNELS/`pixels`, `index` and `trusted`: the images, channels last, as `row_store` keeps rows.

The key of a record is a stamp, a hash of a file's path, size and modification time, so a changed file is
decoded again. Files that cannot be read have no record and are tried again each time.
"""

import atexit
import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from openldn import lock
from openldn.data import image_files, workers
from openldn.data.image_files import Header
from openldn.data.pixels import FEW, PRINT, Images, OnTheFly, Stored
from openldn.data.row_store import KEY, RowStore, Table, hashed
from openldn.errors import OpenLDNWarning, UserError

HEADER = np.dtype([("key", KEY), ("width", "i4"), ("height", "i4"), ("grey", "?")])
FORMAT = 2  # raised when decoding changes, so that old stores are not used
MOST_UNREADABLE = 0.1
SAMPLE = 200  # headers that are read to guess the size
AT_ONCE = 2**23  # bytes of pixels per task of a worker process

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
    squash: bool = False,
    watch: Watch | None = None,
) -> tuple[Images, dict[int, str]]:
    """The readable images at one size, in order, and the reasons why others are not, by number.

    `root` is what the files have in common; it names the store. By default the images determine the size, up
    to `largest`, and the number of channels. `squash` is as in `image_files.decode`.
    """
    # Absolute paths: worker processes may have been started in another working directory.
    absolute = [os.path.abspath(path) for path in paths]
    watch = watch or (lambda what, done, total: None)
    own = folder(f"{FORMAT}\0{root}")
    with lock.held(own / "lock", busy=None):
        files = _Files(absolute, Table(own / "headers", HEADER))
        if size is None or channels is None:
            files.sample()
        # The headers of a sample suggest a size. All headers are known once all images were decoded to that
        # size, and if they then suggest another one, the images are decoded again.
        while True:
            shape = _shape(files, size, channels, largest)
            complete = files.complete
            images = _Pixels(own, shape, squash).decode(files, watch)
            if complete or shape == _shape(files, size, channels, largest):
                return images, dict(sorted(files.skipped.items()))


def _shape(files: "_Files", size: int | None, channels: int | None, largest: int) -> tuple[int, int, int]:
    if size is None or channels is None:
        best, all_channels = image_files.choose_size(files.headers(), largest)
        size, channels = size or best, channels or all_channels
    return channels, size, size


class _Files:
    """The image files, with what is known of them."""

    def __init__(self, paths: Sequence[str], table: Table):
        self.paths, self.table = paths, table
        self.stamps = [_stamp(path) for path in paths]
        self.known = table.by_key()  # headers
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
    """The images of one size."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], squash: bool):
        self.shape, self.squash = shape, squash
        name = f"{shape[1]}x{shape[0]}{'-squashed' if squash else ''}"
        self.rows = RowStore(folder / name, "pixels", int(np.prod(shape)))

    def decode(self, files: _Files, watch: Watch) -> Images:
        """All readable files; those that are not stored yet are decoded first."""
        missing, fits = self._missing(files)
        if missing:
            self._add(missing, files, watch, fits)
        known, readable = self.rows.index.by_key(), files.readable
        records = [known[files.stamps[i]] for i in readable]
        prints = np.array([r[1] for r in records], PRINT)
        places = np.array([r[2] for r in records], np.int64)
        if (places >= 0).all():
            return Stored(self.rows.file, places, prints, self.shape)
        return OnTheFly([files.paths[i] for i in readable], prints, self.shape, self.squash)

    def _missing(self, files: _Files) -> tuple[list[int], bool]:
        """The files to decode, by number, and whether the disk has room for their pixels."""
        # The place of a file that was decoded but not stored is -1. A file without a header is decoded again.
        records = self.rows.index.by_key().values()
        places = {stamp: place for stamp, _, place in records if stamp in files.known}
        by_stamp = {files.stamps[i]: i for i in files.readable if places.get(files.stamps[i], -1) < 0}
        if not by_stamp or self.rows.has_room(len(by_stamp)):
            return [*by_stamp.values()], True
        size = f"{len(by_stamp):,} decoded images take {len(by_stamp) * self.rows.each / 1e9:.1f} GB"
        what = f"{size}, more than {self.rows.folder} has room for; they are decoded whenever they are needed"
        slower = "which is slower ($OPENLDN_CACHE names another place)"
        warnings.warn(f"{what}, {slower}", OpenLDNWarning, stacklevel=2)
        return [i for stamp, i in by_stamp.items() if stamp not in places], False

    def _add(self, missing: list[int], files: _Files, watch: Watch, fits: bool) -> None:
        """Decodes files into `pixels`, if they fit, and records them."""
        done, tasks = 0, []
        try:
            first_place = self.rows.extend(len(missing)) if fits else 0
            at_once = min(max(AT_ONCE // self.rows.each, 16), 256)
            for first in range(0, len(missing), at_once):
                part = missing[first : first + at_once]
                into = (str(self.rows.file), first_place + first) if fits else (os.devnull, 0)
                own = [files.paths[i] for i in part], self.shape[1], self.shape[0], into, self.squash
                tasks.append((own, part))
            place_of = {i: first_place + k if fits else -1 for k, i in enumerate(missing)}
            few = len(missing) <= FEW
            for part, results in workers.map_unordered(image_files.decode, tasks, in_process=few):
                done += len(part)
                watch("decoding", done, len(missing))
                files.add(part, [r if isinstance(r, str) else r.header for r in results])
                good = [(i, r) for i, r in zip(part, results, strict=True) if not isinstance(r, str)]
                self.rows.index.add([(files.stamps[i], r.fingerprint, place_of[i]) for i, r in good])
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            again = "start again: what was decoded is not lost"
            remedy = f"make room, or name another place in $OPENLDN_CACHE, and {again}"
            raise UserError(f"the disk is full, so decoded images cannot be stored; {remedy}") from None
        if fits:
            self.rows.trust()


def _stamp(path: str) -> bytes:
    """A hash that differs once the file has changed."""
    try:
        status = os.stat(path)
        about = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    except (OSError, ValueError):
        about = f"{path}\0missing"
    return hashed(about)


def folder(name: str) -> Path:
    """A folder of the cache by name; a temporary one if the cache is not writable."""
    try:
        named = cache() / hashed(name).hex()
        named.mkdir(parents=True, exist_ok=True)
        (named / "name.txt").write_text(name.replace("\0", " ") + "\n", errors="backslashreplace")
        return named
    except OSError:  # the cache is not writable: a temporary store for this process, private to its user
        temporary = tempfile.mkdtemp(prefix="openldn-store-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)

"""Unpacks the archives that publishers offer: completely or not at all.

An archive comes from a stranger. Its entries are read one by one and written by us, as plain files and
folders below one folder. Anything else that an entry asks for is refused, never repaired or silently skipped.
"""

import errno
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import IO, NamedTuple, Self

from openldn import lock
from openldn.data.console import byte_bar, say
from openldn.errors import UserError

TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIP = (".zip",)
MAX_ENTRIES = 10_000_000  # ImageNet has 1.3 million
MAX_HEADER = 2**20  # bytes of a long name or of extended attributes
BLOCK = 4096  # bytes of disk overhead per file
SPARE = 2**28  # bytes of disk space left free
CHUNK = 2**20


@dataclass(frozen=True)
class Archive:
    """A file that a publisher offers for download."""

    file: str
    url: str | None  # None if it needs a login or a form, or the publisher is gone
    checksum: str | None  # "md5:..." or "sha256:..."
    size: int  # bytes


class Entry(NamedTuple):
    """A file or folder in an archive."""

    name: str
    size: int
    data: IO[bytes] | None  # None for a folder


def is_archive(file: str) -> bool:
    """Whether a file is an archive, by its name: a damaged archive must not pass for another file."""
    return file.lower().endswith(TAR + ZIP)


def stays_inside(name: str) -> bool:
    """Whether a relative path stays below its folder, also by the rules of Windows."""
    path = PureWindowsPath(name)
    return not (path.drive or path.root or ".." in path.parts or "\\" in name or "\0" in name)


def unpack(files: Sequence[Path], into: Path) -> None:
    """Unpacks `files` to the new folder `into`, which appears once it is complete.

    Files that are not archives (`.mat`, a `.gz` of one file) are copied.
    """
    if os.path.lexists(into):
        raise UserError(f"{into} exists already and is not overwritten; remove it to unpack again")
    with workplace(into.parent) as work:
        complete = work / into.name
        complete.mkdir()
        say(f"unpacking {', '.join(file.name for file in files)} to {into}")
        free = shutil.disk_usage(work).free - SPARE
        with byte_bar("unpacking", sum(file.stat().st_size for file in files if file.exists())) as show:
            for file in files:
                read = 0
                with _explained(file, into), file.open("rb") as f:
                    for entry in _entries(file, f, free):
                        free -= _write(entry, file, complete, free)
                        show(f.tell() - read)
                        read = f.tell()
        complete.rename(into)


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A temporary folder within `folder`, for one process at a time; leftovers of others are removed."""
    made = not folder.exists()
    work, lock_file = folder / ".openldn.part", folder / ".openldn.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file.touch()
    except OSError as e:
        raise UserError(f"{folder} cannot be written to ({e.strerror}); choose another place") from None
    busy = f"another process is at work in {folder}; wait for it, or stop it first"
    with lock.held(lock_file, busy=busy):
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
            with suppress(OSError):
                lock_file.unlink()  # whoever waits for it notices, and starts over with a new one
                if made:
                    folder.rmdir()  # fails if it is not empty, which is fine


def _write(entry: Entry, file: Path, folder: Path, free: int) -> int:
    """Writes an entry below `folder`; returns the bytes of disk space it takes."""
    taken = entry.size + BLOCK
    if taken > free:
        raise _too_large(file)
    if not stays_inside(entry.name):
        raise _refused(file, entry.name, "would be written outside the folder it is unpacked to")
    target = folder / entry.name
    try:
        if entry.data is None:
            target.mkdir(parents=True, exist_ok=True)
            return taken
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(entry.data, out, CHUNK)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise _refused(file, entry.name, "would overwrite another one") from None
    if target.stat().st_size != entry.size:
        raise EOFError
    return taken


def _entries(file: Path, f: IO[bytes], free: int) -> Iterator[Entry]:
    found = iter([Entry(file.name, os.fstat(f.fileno()).st_size, f)])
    if is_archive(file.name):
        found = _zip(file, f, free) if file.name.lower().endswith(ZIP) else _tar(file, f)
    for i, entry in enumerate(found):
        if i == MAX_ENTRIES:
            raise UserError(f"{file} holds more than {MAX_ENTRIES:,} entries; is it the right archive?")
        yield entry


def _tar(file: Path, f: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=f, tarinfo=_StrictHeader) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # they would pile up in memory
            if member.isdir():
                yield Entry(member.name, 0, None)
            elif not member.isreg() or member.issparse():
                raise _refused(file, member.name, "is a link, a device or another special file")
            elif member.mode & (stat.S_ISUID | stat.S_ISGID):
                raise _refused(file, member.name, "would run with another user's rights")
            else:
                yield Entry(member.name, member.size, tar.extractfile(member))
        assert tar.fileobj is not None
        while tar.fileobj.read(CHUNK):  # the checksum is at the very end
            pass


class _StrictHeader(tarfile.TarInfo):
    """An entry's header. tarfile itself takes a damaged or missing one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # a block of zeros is the end
            raise tarfile.ReadError(str(e)) from None
        in_memory = not (header.isreg() or header.isdir())  # long names and the like
        if header.size < 0 or (in_memory and header.size > MAX_HEADER):
            raise tarfile.ReadError("impossible size")
        return header


def _zip(file: Path, f: IO[bytes], free: int) -> Iterator[Entry]:
    with zipfile.ZipFile(f) as archive:
        members = archive.infolist()
        if sum(member.file_size + BLOCK for member in members) > free:
            raise _too_large(file)
        for member in members:
            mode, name = member.external_attr >> 16, member.orig_filename
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(file, name, "is a link, a device or another special file")
            if member.is_dir():
                yield Entry(name, 0, None)
            elif mode & (stat.S_ISUID | stat.S_ISGID):
                raise _refused(file, name, "would run with another user's rights")
            elif member.flag_bits & 1:
                raise _refused(file, name, "is encrypted")
            else:
                with archive.open(member) as data:
                    yield Entry(name, member.file_size, data)


def _refused(file: Path, name: str, why: str) -> UserError:
    return UserError(f"{file} is not unpacked because its entry {name!r} {why}; get it from its publisher")


def _too_large(file: Path) -> UserError:
    return UserError(f"{file} holds more than the disk has room for; make room, or choose another disk")


@contextmanager
def _explained(file: Path, into: Path) -> Iterator[None]:
    """Turns errors of the standard library into ours."""
    damaged = UserError(f"{file} is cut off or damaged; remove it and download it again")
    try:
        yield
    except UserError:
        raise
    except NotImplementedError as e:
        raise UserError(f"{file} cannot be unpacked here ({e}); unpack it by hand to {into}") from None
    except OSError as e:
        # gzip and bz2 raise it for invalid data, and a wrong offset seeks to before the start of the file.
        if e.errno is None or (e.errno == errno.EINVAL and e.filename is None):
            raise damaged from None
        remedy = "fix that, or choose another place"
        raise UserError(f"{file} cannot be unpacked to {into} ({e.strerror}); {remedy}") from None
    # What the standard library raises for invalid data.
    except (EOFError, IndexError, OverflowError, ValueError, struct.error):
        raise damaged from None
    except (lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error):
        raise damaged from None

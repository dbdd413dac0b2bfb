"""What publishers offer for download, and how it is unpacked: whole or not at all.

An archive comes from a stranger. So its entries are read one by one and written by us, as plain files and
folders below one folder; whatever else an entry asks for is refused, never mended or left out in silence.
"""

import errno
import lzma
import os
import shutil
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import IO, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from openldn.errors import UserError

TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIP = (".zip",)
MAX_ENTRIES = 10_000_000  # ImageNet has 1.3 million
MAX_HEADER = 2**20  # bytes of a long name or of extended attributes
BLOCK = 4096  # what a file takes up on a disk, beside its bytes
SPARE = 2**28  # bytes that unpacking leaves free
CHUNK = 2**20
DAMAGED = (  # what the standard library raises on data that is wrong
    EOFError,
    IndexError,
    OverflowError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Archive:
    """A file as its publisher offers it."""

    file: str
    url: str | None  # None where a login or a form stands before it, or the publisher is gone
    checksum: str | None  # "md5:..." or "sha256:..."
    size: int  # bytes, to say how long it will take


class Entry(NamedTuple):
    """A file in an archive, or a folder."""

    name: str
    size: int
    data: IO[bytes] | None  # None for a folder


def unpack(files: Sequence[Path], into: Path) -> None:
    """What `files` hold, as the new folder `into`, which appears when all is in it.

    What is an archive is told by the file's name: a damaged one must not pass for another kind of file.
    Files that are no archives (`.mat`, a `.gz` of one file) are copied as they are.
    """
    if os.path.lexists(into):
        raise UserError(f"{into} exists already and is not overwritten; remove it to unpack again")
    with workplace(into.parent) as work:
        whole = work / into.name
        whole.mkdir()
        say(f"unpacking {', '.join(file.name for file in files)} to {into}")
        free = shutil.disk_usage(work).free - SPARE
        with bar("unpacking", sum(file.stat().st_size for file in files if file.exists())) as show:
            for file in files:
                read = 0
                with _told(file, into), file.open("rb") as f:
                    for entry in _entries(file, f, free):
                        free -= _write(entry, file, whole, free)
                        show(f.tell() - read)
                        read = f.tell()
        whole.rename(into)


# ------------------------------------------------------------------------------ entry by entry


def _write(entry: Entry, file: Path, whole: Path, free: int) -> int:
    """Puts an entry below `whole`; gives the bytes it takes up."""
    taken = entry.size + BLOCK
    if taken > free:
        raise _too_large(file)
    if not _stays_inside(entry.name):
        raise _refused(file, entry.name, "would be written outside the folder it is unpacked to")
    target = whole / entry.name
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


def _stays_inside(name: str) -> bool:
    """Whether a name leads below the folder it is put in, here and on Windows, which knows more ways out."""
    path = PureWindowsPath(name)
    return not (path.drive or path.root or ".." in path.parts or "\\" in name or "\0" in name)


def _entries(file: Path, f: IO[bytes], free: int) -> Iterator[Entry]:
    name = file.name.lower()
    if name.endswith(TAR):
        found = _tar(file, f)
    elif name.endswith(ZIP):
        found = _zip(file, f, free)
    else:
        found = iter([Entry(file.name, os.fstat(f.fileno()).st_size, f)])
    for i, entry in enumerate(found):
        if i == MAX_ENTRIES:
            raise UserError(f"{file} holds more than {MAX_ENTRIES:,} entries; it is no archive of images")
        yield entry


def _tar(file: Path, f: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=f, tarinfo=_StrictHeader) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # they would all stay in memory
            if member.isdir():
                yield Entry(member.name, 0, None)
            elif not member.isreg() or member.issparse():
                raise _refused(file, member.name, "is a link, a device or another special file")
            elif member.mode & (stat.S_ISUID | stat.S_ISGID):
                raise _refused(file, member.name, "would run with another user's rights")
            else:
                yield Entry(member.name, member.size, tar.extractfile(member))
        assert tar.fileobj is not None
        while tar.fileobj.read(CHUNK):  # the checksum of what was compressed stands at its very end
            pass


class _StrictHeader(tarfile.TarInfo):
    """An entry's header. Where one is damaged or missing, tarfile would take that for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # a block of zeros: this is the end
            raise tarfile.ReadError(str(e)) from None
        about_another = not (header.isreg() or header.isdir())  # its data is read into memory
        if header.size < 0 or (about_another and header.size > MAX_HEADER):
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


# --------------------------------------------------------------------------------------- errors


def _refused(file: Path, name: str, why: str) -> UserError:
    return UserError(
        f"{file} is not unpacked, since its entry {name!r} {why}; is it the publisher's own archive?"
    )


def _too_large(file: Path) -> UserError:
    return UserError(f"{file} holds more than the disk has room for; free some, or choose another disk")


@contextmanager
def _told(file: Path, into: Path) -> Iterator[None]:
    """Within, what goes wrong with an archive is told in one sentence."""
    damaged = UserError(f"{file} is cut off or damaged; remove it and download it again")
    try:
        yield
    except UserError:
        raise
    except NotImplementedError as e:
        raise UserError(f"{file} cannot be unpacked here ({e}); unpack it by hand to {into}") from None
    except OSError as e:
        # gzip and bz2 say so that their data is wrong; and a wrong offset leads to before the file's start.
        if e.errno is None or (e.errno == errno.EINVAL and e.filename is None):
            raise damaged from None
        raise UserError(
            f"{file} cannot be unpacked to {into} ({e.strerror}); see to that, or choose another place"
        ) from None
    except DAMAGED:
        raise damaged from None


# -------------------------------------------------- a place to work in, and what a person sees


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A folder within `folder` for what is half done: nobody else's, and gone in the end.

    What a killed process left there is taken away first; the lock tells that it is not at work still.
    """
    made = not folder.exists()
    work, lock = folder / ".openldn.part", folder / ".openldn.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock.open("w")
    except OSError as e:
        raise UserError(f"{folder} cannot be written to ({e.strerror}); choose another place") from None
    with held:
        _take(held, folder, lock)
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
            lock.unlink()
            if made:
                with suppress(OSError):  # it is not empty: something has come of it
                    folder.rmdir()


def _take(held: IO[str], folder: Path, lock: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held.fileno()), lock.stat()):
            raise BlockingIOError  # it was taken away by its owner, and another one has made a new one
    except (BlockingIOError, FileNotFoundError):
        raise UserError(f"another process is at work in {folder}; wait for it, or stop it first") from None
    except OSError:
        pass  # a file system without locks


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """A function to tell that so many bytes more are done: a live bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stdout.isatty()):
        yield lambda more: None
        return
    columns = (TextColumn(f"[bold]{what:<12}"), BarColumn(24), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.update(task, advance=more)


def say(line: str) -> None:
    """One line on stderr, so that stdout stays for results."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)

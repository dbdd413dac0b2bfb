"""Downloads publishers' archives: each arrives complete and with the right checksum, or not at all.

An interrupted transfer starts again from the beginning: few publishers' servers resume reliably.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pooch  # type: ignore[import-untyped]
import requests
import urllib3
from rich.filesize import decimal

from openldn.data.archives import CHUNK, SPARE, Archive, unpack, workplace
from openldn.data.console import byte_bar, say
from openldn.errors import UserError

TIMEOUT = 30.0  # seconds without an answer

pooch.get_logger().setLevel(logging.WARNING)  # we say ourselves what is downloaded


def get(name: str, archives: Sequence[Archive], folder: Path) -> Path:
    """Downloads and unpacks the data set `name` below `folder`; returns the folder that holds it."""
    unpacked = folder / "unpacked"
    if unpacked.exists():
        raise UserError(f"{unpacked} exists but does not hold all of {name}; remove it, and get it again")
    unpack(fetch(archives, folder), unpacked)
    say(f"{name} is at {unpacked}; the downloaded files are kept beside it and may be removed")
    return unpacked


def fetch(archives: Sequence[Archive], folder: Path) -> list[Path]:
    """Downloads the archives to `folder`, except those that are there already."""
    missing = [archive for archive in archives if not _present(archive, folder)]
    urls = [_checked_url(archive, folder) for archive in missing]
    if missing:
        size = sum(archive.size for archive in missing)
        say(f"downloading {', '.join(a.file for a in missing)} ({decimal(size)}) to {folder}")
        with workplace(folder) as work, byte_bar("downloading", size) as show:
            if size > shutil.disk_usage(work).free - SPARE:
                wrong = f"the disk of {folder} has no room for a download of {decimal(size)}"
                raise UserError(f"{wrong}; make room, or choose another disk")
            for archive, url in zip(missing, urls, strict=True):
                _download(archive, url, work, folder / archive.file, show)
    return [folder / archive.file for archive in archives]


def _present(archive: Archive, folder: Path) -> bool:
    """Whether an archive is there. If something else has its name, that is an error and is left alone."""
    name = archive.file
    if not name or name.startswith(".") or {*name} & {*"/\\:\0"}:
        raise UserError(f"an archive cannot be kept as {name!r}; give a plain file name")
    path = folder / name
    if not path.exists():
        return False
    if not path.is_file():
        raise UserError(f"{path} is not a file; move it away to make room for {name}")
    if archive.checksum is not None:
        algorithm, _, known = archive.checksum.partition(":")
        if pooch.file_hash(str(path), alg=algorithm) != known.lower():
            wrong = f"{path} is not the file that was published ({algorithm} differs: it may be cut off)"
            raise UserError(f"{wrong}; remove it to download it again")
    return True


def _checked_url(archive: Archive, folder: Path) -> str:
    if archive.url is None:
        remedy = f"get it with a browser and put it at {folder / archive.file}"
        raise UserError(f"{archive.file} is available only after a login; {remedy}")
    if urlsplit(archive.url).scheme not in ("http", "https"):
        raise UserError(f"{archive.url} is not a web address; give one that begins with https://")
    return archive.url


def _download(archive: Archive, url: str, work: Path, path: Path, show: Callable[[int], object]) -> None:
    """Downloads an archive to `path`, where it appears once pooch has checked it."""

    def transfer(url: str, part: str, _: object) -> None:
        _transfer(url, Path(part), show)

    try:
        pooch.retrieve(url, archive.checksum, archive.file, work, downloader=transfer)
        (work / archive.file).chmod(0o644)  # pooch makes it unreadable for others
        (work / archive.file).rename(path)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as e:
        why = _reason(e)
    except OSError as e:
        remedy = "fix that, or choose another place"
        raise UserError(f"{url} cannot be written to {path} ({e.strerror}); {remedy}") from None
    except ValueError:  # pooch: the checksum differs
        why = "what came is not what was published: its checksum differs"
    else:
        return
    raise UserError(f"{url} could not be downloaded ({why}); try again, or download it by hand to {path}")


def _transfer(url: str, part: Path, show: Callable[[int], object]) -> None:
    """The bytes as the server keeps them: requests would decompress a .tar.gz on the way."""
    headers = {"Accept-Encoding": "identity"}
    with requests.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer, part.open("wb") as f:
        answer.raise_for_status()
        length = int(answer.headers.get("Content-Length", 0))
        if length > shutil.disk_usage(part.parent).free:
            raise OSError(errno.ENOSPC, "the disk has no room for it")
        for chunk in answer.raw.stream(CHUNK, decode_content=False):
            f.write(chunk)
            show(len(chunk))
        if f.tell() < length:
            raise urllib3.exceptions.IncompleteRead(f.tell(), length - f.tell())


def _reason(e: Exception) -> str:
    if isinstance(e, requests.HTTPError) and e.response is not None:
        return f"the server answered {e.response.status_code} {e.response.reason}"
    if isinstance(e, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return f"the server sent nothing for {TIMEOUT:g} seconds"
    if isinstance(e, urllib3.exceptions.HTTPError):
        return "the connection broke off"
    if isinstance(e, requests.exceptions.SSLError):
        return "the server's certificate is not trusted"
    if isinstance(e, requests.ConnectionError):
        return "the server cannot be reached"
    return "the server gave an invalid answer"

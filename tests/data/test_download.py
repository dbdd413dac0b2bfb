"""Archives from strangers: they arrive whole, are unpacked whole, and write nowhere else."""

import hashlib
import io
import os
import shutil
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from openldn.data import archives, download, sources
from openldn.data.archives import Archive, unpack
from openldn.data.download import fetch, get
from openldn.errors import UserError

FILES = {"set/a.txt": b"a" * 3000, "set/deep/b.bin": bytes(range(256)) * 40, "set/empty": b""}


def tar(mode: str = "w:gz", files: dict[str, bytes] = FILES) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        for name, data in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            t.addfile(header, io.BytesIO(data))
    return out.getvalue()


def zipped(files: dict[str, bytes] = FILES, mode: int = 0o644) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            header = zipfile.ZipInfo(name)
            header.external_attr = mode << 16
            z.writestr(header, data)
    return out.getvalue()


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder: contents of files, None for folders."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if data is not None}


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.fixture(autouse=True)
def plenty_of_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine has free is no matter of these tests."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**40))


# ----------------------------------------------------------------------------------- unpacking


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.tar", tar("w")),
        ("x.tar.gz", tar("w:gz")),
        ("x.tgz", tar("w:gz")),
        ("x.tar.bz2", tar("w:bz2")),
        ("x.TAR.XZ", tar("w:xz")),
        ("x.zip", zipped()),
    ],
)
def test_an_archive_is_unpacked(put, tmp_path: Path, name: str, data: bytes) -> None:
    unpack([put(name, data)], tmp_path / "new" / "into")
    assert contents(tmp_path / "new" / "into") == FILES
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["into"]
    file = tmp_path / "new/into/set/a.txt"
    assert stat.S_IMODE(file.stat().st_mode) & 0o7111 == 0


def test_other_files_are_copied_beside_what_was_unpacked(put, tmp_path: Path) -> None:
    files = [put("x.zip", zipped()), put("train.mat", b"matlab"), put("labels-idx1.gz", b"\x1f\x8bgz")]
    unpack(files, tmp_path / "into")
    assert contents(tmp_path / "into") == FILES | {"train.mat": b"matlab", "labels-idx1.gz": b"\x1f\x8bgz"}
    assert files[1].read_bytes() == b"matlab"


def test_folders_of_an_archive_are_made_even_if_empty_or_named_twice(put, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name in ("./", "./set/", "./set/", "./empty/"):
            header = tarfile.TarInfo(name)
            header.type, header.mode = tarfile.DIRTYPE, 0o2000  # of a shared folder: harmless, and common
            t.addfile(header)
    unpack([put("x.tar", out.getvalue())], tmp_path / "into")
    assert tree(tmp_path / "into") == {"set": None, "empty": None}
    assert os.access(tmp_path / "into" / "set", os.W_OK)


def test_what_is_there_already_is_left_alone(put, tmp_path: Path) -> None:
    file = put("x.zip", zipped())
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "mine").write_text("dear to me")
    before = tree(tmp_path)
    with pytest.raises(UserError, match="into exists already and is not overwritten; remove it"):
        unpack([file], tmp_path / "into")
    assert tree(tmp_path) == before


def special(kind: bytes, link: str = "", mode: int = 0o644) -> bytes:
    """A tar with a good file, a special entry `trap`, and a file through it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        good = tarfile.TarInfo("good")
        good.size = 4
        t.addfile(good, io.BytesIO(b"good"))
        trap = tarfile.TarInfo("trap")
        trap.type, trap.linkname, trap.mode = kind, link, mode
        t.addfile(trap)
        through = tarfile.TarInfo("trap/x")
        through.size = 4
        t.addfile(through, io.BytesIO(b"evil"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "entry", "why"),
    [
        ("x.tar.gz", tar(files={"good": b"", "../x": b"evil"}), "../x", "outside"),
        ("x.tar.gz", tar(files={"good": b"", "a/../../x": b"evil"}), "a/../../x", "outside"),
        ("x.tar.gz", tar(files={"good": b"", "/tmp/x": b"evil"}), "/tmp/x", "outside"),
        ("x.tar.gz", tar(files={"good": b"", "C:x": b"evil"}), "C:x", "outside"),
        ("x.tar.gz", special(tarfile.SYMTYPE, ".."), "trap", "link"),
        ("x.tar.gz", special(tarfile.LNKTYPE, "good"), "trap", "link"),
        ("x.tar.gz", special(tarfile.CHRTYPE), "trap", "device"),
        ("x.tar.gz", special(tarfile.BLKTYPE), "trap", "device"),
        ("x.tar.gz", special(tarfile.FIFOTYPE), "trap", "special"),
        ("x.tar.gz", special(tarfile.GNUTYPE_SPARSE), "trap", "special"),
        ("x.tar.gz", special(tarfile.REGTYPE, mode=0o4755), "trap", "rights"),
        ("x.tar.gz", special(tarfile.REGTYPE), "trap/x", "overwrite"),
        ("x.zip", zipped({"good": b"", "../x": b"evil"}), "../x", "outside"),
        ("x.zip", zipped({"good": b"", "/tmp/x": b"evil"}), "/tmp/x", "outside"),
        ("x.zip", zipped({"good": b"", "..\\x": b"evil"}), "..\\x", "outside"),
        ("x.zip", zipped({"good": b"", "C:\\x": b"evil"}), "C:\\x", "outside"),
        ("x.zip", zipped({"good": b"", "//host/share/x": b"evil"}), "//host/share/x", "outside"),
        ("x.zip", zipped({"trap": b".."}, mode=stat.S_IFLNK | 0o777), "trap", "link"),
        ("x.zip", zipped({"trap": b""}, mode=stat.S_IFCHR | 0o666), "trap", "device"),
        ("x.zip", zipped({"trap": b""}, mode=stat.S_IFREG | 0o4755), "trap", "rights"),
        ("x.zip", zipped({"a": b"", "./a": b""}), "./a", "overwrite"),
        ("x.zip", zipped({"a/b": b"", "a": b""}), "a", "overwrite"),
        ("x.zip", zipped({".": b""}), ".", "overwrite"),
    ],
)
def test_an_entry_that_asks_for_more_than_a_file_is_refused(
    put, tmp_path: Path, name: str, data: bytes, entry: str, why: str
) -> None:
    file = put(name, data)
    before = tree(tmp_path)
    with pytest.raises(UserError, match=why) as e:
        unpack([file], tmp_path / "into")
    assert str(file) in str(e.value)
    assert repr(entry) in str(e.value)
    assert tree(tmp_path) == before


def test_an_encrypted_or_strangely_packed_zip_is_told(put, tmp_path: Path) -> None:
    data = bytearray(zipped({"a": b"x" * 100}))
    for header, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + offset] |= 1
    with pytest.raises(UserError, match="'a' is encrypted"):
        unpack([put("x.zip", bytes(data))], tmp_path / "into")
    data = bytearray(zipped({"a": b"x" * 100}))
    for header, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(header) + offset] = 9  # Deflate64, which Windows takes for large files
    with pytest.raises(UserError, match=r"cannot be unpacked here .* by hand to"):
        unpack([put("x.zip", bytes(data))], tmp_path / "into")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.zip"])
def test_an_archive_that_is_cut_off_or_damaged_leaves_nothing(put, tmp_path: Path, name: str) -> None:
    whole = {
        "x.tar": tar("w"),
        "x.tar.gz": tar("w:gz"),
        "x.tar.bz2": tar("w:bz2"),
        "x.tar.xz": tar("w:xz"),
        "x.zip": zipped(),
    }[name]
    end = 1024 * 7 if name == "x.tar" else len(whole)  # a tar ends in zeros that nobody misses
    cuts = [whole[:n] for n in (0, 1, 100, end // 3, end // 2, end - 20, end - 1)]
    flips = [whole[:n] + bytes([whole[n] ^ 0xFF]) + whole[n + 1 :] for n in (0, 3, 60, len(whole) - 8)]
    for data in cuts if name == "x.tar" else cuts + flips:
        file = put(name, data)
        before = tree(tmp_path)
        with pytest.raises(UserError, match="is cut off or damaged; remove it and download it again"):
            unpack([file], tmp_path / "into")
        assert tree(tmp_path) == before


def test_a_tar_cut_between_two_entries_is_noticed(put, tmp_path: Path) -> None:
    whole = tar("w", {"a": b"a" * 512, "b": b"b" * 512})
    damaged = bytearray(whole)
    damaged[1024] ^= 1  # the second header: tarfile would end here without a word
    for data in (whole[:1024], bytes(damaged)):
        with pytest.raises(UserError, match="cut off or damaged"):
            unpack([put("x.tar", data)], tmp_path / "into")


def test_a_header_with_an_impossible_size_is_refused(put, tmp_path: Path) -> None:
    for kind, size in ((tarfile.REGTYPE, -512), (tarfile.GNUTYPE_LONGNAME, 2**33), (tarfile.XHDTYPE, 2**33)):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, size
        with pytest.raises(UserError, match="cut off or damaged"):
            unpack([put("x.tar", header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))], tmp_path / "into")


@pytest.mark.parametrize(("name", "data"), [("x.tar.gz", tar()), ("x.zip", zipped()), ("x.mat", b"x" * 9000)])
def test_more_than_the_disk_holds_is_refused(put, tmp_path: Path, monkeypatch, name, data) -> None:
    file = put(name, data)
    before = tree(tmp_path)
    free = archives.SPARE + 9000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(UserError, match="holds more than the disk has room for"):
        unpack([file], tmp_path / "into")
    assert tree(tmp_path) == before


def test_a_bomb_is_refused_by_what_it_declares(put, tmp_path: Path) -> None:
    header = tarfile.TarInfo("bomb")
    header.size = 2**50
    with pytest.raises(UserError, match="room"):
        unpack([put("x.tar", header.tobuf() + bytes(1024))], tmp_path / "into")
    data = bytearray(zipped({"bomb": bytes(100)}))
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = (2**32 - 2).to_bytes(4, "little")
    with pytest.raises(UserError, match="cut off or damaged"):  # there is room, but not so much comes out
        unpack([put("x.zip", bytes(data))], tmp_path / "into")


def test_too_many_entries_are_refused(put, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "MAX_ENTRIES", 2)
    for name, data in (("x.tar.gz", tar()), ("x.zip", zipped())):
        with pytest.raises(UserError, match="more than 2 entries"):
            unpack([put(name, data)], tmp_path / "into")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_stopped_in_the_middle_it_leaves_nothing_and_goes_well_next_time(
    put, tmp_path: Path, monkeypatch, error
) -> None:
    file, copy, copied = put("x.tar.gz", tar()), shutil.copyfileobj, []

    def stops(*args: object) -> None:
        copied.append(args)
        if len(copied) == 2:
            raise error
        copy(*args)

    before = tree(tmp_path)
    monkeypatch.setattr(shutil, "copyfileobj", stops)
    with pytest.raises((KeyboardInterrupt, UserError), match=r"No space left|^$"):
        unpack([file], tmp_path / "into")
    assert tree(tmp_path) == before
    unpack([file], tmp_path / "into")
    assert contents(tmp_path / "into") == FILES


def test_what_a_killed_process_left_is_taken_away(put, tmp_path: Path) -> None:
    file = put("x.zip", zipped())
    (tmp_path / ".openldn.part" / "into").mkdir(parents=True)
    (tmp_path / ".openldn.part" / "into" / "half").write_text("ha")
    (tmp_path / ".openldn.lock").touch()
    unpack([file], tmp_path / "into")
    assert contents(tmp_path / "into") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["into", "x.zip"]


def test_two_processes_do_not_work_in_one_folder(put, tmp_path: Path) -> None:
    file = put("x.zip", zipped())
    with archives.workplace(tmp_path) as work:
        (work / "mine").touch()
        with pytest.raises(UserError, match="another process is at work in"):
            unpack([file], tmp_path / "into")
        assert (work / "mine").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_a_place_that_cannot_be_written_to_is_told(put, tmp_path: Path) -> None:
    file = put("x.zip", zipped())
    with pytest.raises(UserError, match="cannot be written to"):
        unpack([file], file / "into")
    with pytest.raises(UserError, match="No such file"):
        unpack([tmp_path / "none.zip"], tmp_path / "new" / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


# --------------------------------------------------------------------------------- downloading


class Server(ThreadingHTTPServer):
    """Serves what is in `files`; a few names stand for what servers do wrong."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        kind, _, name = self.path.strip("/").rpartition("/")
        self.server.asked.append(name)
        if name not in self.server.files:
            return self.send_error(404)
        data = self.server.files[name]
        if kind == "astray":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            return self.end_headers()
        self.send_response(200)
        if kind != "unsaid":
            self.send_header("Content-Length", str(len(data)))
        if kind == "encoded":
            self.send_header("Content-Encoding", "x-gzip")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if kind in ("short", "stalls") else data)
        self.wfile.flush()
        if kind == "stalls":
            self.server.ended.wait(10)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as it:
        thread = threading.Thread(target=it.serve_forever, args=(0.01,))
        thread.start()
        yield it
        it.ended.set()
        it.shutdown()
        thread.join()


def offered(server: Server, file: str, data: bytes, kind: str = "plain", known: bool = True) -> Archive:
    server.files[file] = data
    checksum = f"md5:{hashlib.md5(data).hexdigest()}" if known else None
    return Archive(file, server.url(f"{kind}/{file}"), checksum, len(data))


def test_archives_are_downloaded_and_unpacked_once(server: Server, tmp_path: Path, capfd) -> None:
    several = [
        offered(server, "a.tar.gz", tar(files={"a": b"1"})),
        offered(server, "b.zip", zipped({"b": b"2"}), known=False),
        offered(server, "c.mat", b"3" * 1_000_000),
    ]
    folder = tmp_path / "data" / "toy"
    assert get("toy", several, folder) == folder / "unpacked"
    assert contents(folder / "unpacked") == {"a": b"1", "b": b"2", "c.mat": b"3" * 1_000_000}
    assert sorted(p.name for p in folder.iterdir()) == ["a.tar.gz", "b.zip", "c.mat", "unpacked"]
    assert (folder / "c.mat").stat().st_mode & 0o077  # others may read it as well
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"downloading a.tar.gz, b.zip, c.mat (1.0 MB) to {folder}",
        f"unpacking a.tar.gz, b.zip, c.mat to {folder / 'unpacked'}",
        f"toy is at {folder / 'unpacked'}; the downloaded files are kept beside it and may be removed",
    ]
    assert server.asked == ["a.tar.gz", "b.zip", "c.mat"]

    with pytest.raises(UserError, match="remove it, and get it again"):  # who has it whole does not come here
        get("toy", several, folder)
    assert fetch(several, folder) == [folder / "a.tar.gz", folder / "b.zip", folder / "c.mat"]
    (folder / "c.mat").unlink()
    fetch(several, folder)
    assert server.asked == ["a.tar.gz", "b.zip", "c.mat", "c.mat"]


def test_on_a_terminal_there_is_a_bar(server: Server, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    get("toy", [offered(server, "a.tar.gz", tar())], tmp_path)
    err = capfd.readouterr().err
    assert "\x1b" in err
    assert "downloading " in err
    assert "unpacking " in err


def test_bytes_come_as_the_server_keeps_them(server: Server, tmp_path: Path) -> None:
    """Servers that call a .tar.gz a compressed answer, or do not say how long it is."""
    data = tar()
    for kind in ("encoded", "unsaid"):
        (path,) = fetch([offered(server, f"{kind}.tar.gz", data, kind)], tmp_path)
        assert path.read_bytes() == data


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("short", "the connection broke off"),
        ("stalls", "the server sent nothing for 0.2 seconds"),
        ("missing", "the server answered 404 Not Found"),
        ("astray", "the server gave an invalid answer"),
        ("gone", "the server cannot be reached"),
    ],
)
def test_a_failed_transfer_is_told_and_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch, kind: str, why: str, known: bool
) -> None:
    if kind == "stalls":  # others must not fail by a machine that is busy for a moment
        monkeypatch.setattr(download, "TIMEOUT", 0.2)
    (tmp_path / "mine").write_text("dear to me")
    archive = offered(server, "a.tar.gz", tar(), kind, known)
    if kind == "missing":
        server.files.clear()
    if kind == "gone":
        archive = Archive("a.tar.gz", "http://127.0.0.1:9/a.tar.gz", archive.checksum, archive.size)
    began = time.monotonic()
    with pytest.raises(UserError) as e:
        fetch([archive], tmp_path)
    assert str(e.value) == (
        f"{archive.url} could not be downloaded ({why}); "
        f"try again, or download it by hand to {tmp_path / 'a.tar.gz'}"
    )
    assert tree(tmp_path) == {"mine": b"dear to me"}
    assert time.monotonic() - began < 5


def test_after_a_failure_what_came_before_is_kept_and_the_rest_fetched_anew(
    server: Server, tmp_path: Path
) -> None:
    one, two = offered(server, "one.mat", b"1" * 99), offered(server, "two.mat", b"2" * 99, "short")
    with pytest.raises(UserError, match=r"two\.mat could not be downloaded"):
        fetch([one, two], tmp_path)
    assert tree(tmp_path) == {"one.mat": b"1" * 99}
    fetch([one, offered(server, "two.mat", b"2" * 99)], tmp_path)
    assert tree(tmp_path) == {"one.mat": b"1" * 99, "two.mat": b"2" * 99}
    assert server.asked == ["one.mat", "two.mat", "two.mat"]


def test_another_file_than_was_published_is_not_kept(server: Server, tmp_path: Path) -> None:
    archive = offered(server, "a.zip", zipped())
    server.files["a.zip"] = zipped({"other": b""})
    with pytest.raises(UserError, match="what came is not what was published"):
        fetch([archive], tmp_path / "new")
    assert tree(tmp_path) == {}


def test_a_half_file_of_the_users_is_told_and_left_alone(server: Server, tmp_path: Path) -> None:
    archive = offered(server, "a.zip", zipped())
    (tmp_path / "a.zip").write_bytes(zipped()[:50])
    with pytest.raises(UserError, match=r"a\.zip is not the file that was published .* remove it"):
        fetch([archive], tmp_path)
    assert tree(tmp_path) == {"a.zip": zipped()[:50]}
    assert server.asked == []


def test_a_file_that_was_put_there_by_hand_is_taken(tmp_path: Path) -> None:
    needs_login = Archive("a.zip", None, f"sha256:{hashlib.sha256(zipped()).hexdigest().upper()}", 0)
    with pytest.raises(UserError, match=r"only after a login; get it with a browser and put it at .*a\.zip"):
        fetch([needs_login], tmp_path / "new")
    assert tree(tmp_path) == {}
    (tmp_path / "a.zip").write_bytes(zipped())
    get("toy", [needs_login], tmp_path)
    assert contents(tmp_path / "unpacked") == FILES


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "/etc/passwd", "doi:10.1/x"])
def test_only_web_addresses_are_downloaded_from(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="is not a web address"):
        fetch([Archive("a.zip", url, None, 1)], tmp_path)


@pytest.mark.parametrize("file", ["", "..", "../x", "a/b", "/x", "a\\b", "C:x", ".hidden"])
def test_an_archive_has_a_plain_file_name(server: Server, tmp_path: Path, file: str) -> None:
    with pytest.raises(UserError, match="give a plain file name"):
        fetch([Archive(file, server.url("x"), None, 1)], tmp_path)
    assert server.asked == []


def test_a_folder_in_an_archives_place_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.zip").mkdir()
    with pytest.raises(UserError, match="is not a file"):
        fetch([offered(server, "a.zip", zipped())], tmp_path)


@pytest.mark.parametrize("size", [10**9, 0])
def test_no_room_for_a_download_is_told(server: Server, tmp_path: Path, monkeypatch, size: int) -> None:
    """Whether we know the size beforehand, or hear of it from the server."""
    offered(server, "a.mat", b"x" * 1000)
    free = 999 if size == 0 else archives.SPARE + 999
    monkeypatch.setattr(archives, "SPARE", 0)
    monkeypatch.setattr(download, "SPARE", archives.SPARE)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(UserError, match="no room for"):
        fetch([Archive("a.mat", server.url("plain/a.mat"), None, size)], tmp_path)
    assert tree(tmp_path) == {}


def test_a_disk_that_fills_up_is_told(server: Server, tmp_path: Path, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_transfer", full)
    with pytest.raises(UserError, match=r"cannot be written to .*No space left on device"):
        fetch([offered(server, "a.mat", b"x")], tmp_path)
    assert tree(tmp_path) == {}


# ------------------------------------------------------------------------------------- named sets, as packed


def cifar(names: tuple[str, ...]) -> bytes:
    """Files of ten records each: a label, then pixels."""
    rng = np.random.default_rng(0)
    files = {}
    for name in names:
        records = rng.integers(0, 256, (10, 3073), np.uint8)
        records[:, 0] = np.arange(10)
        files[f"cifar-10-batches-bin/{name}"] = records.tobytes()
    return tar(files=files)


WHOLE = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


@pytest.mark.parametrize("where", ["", "cifar10"])
def test_a_set_is_read_from_its_archive(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "cifar-10-binary.tar.gz").write_bytes(cifar(WHOLE))
    assert sources.find("cifar10", tmp_path) is None
    read = sources.read_named("cifar10", tmp_path)
    assert (len(read.train), len(read.test)) == (50, 10)
    assert sources.find("cifar10", tmp_path) == tmp_path / "cifar10" / "unpacked"
    assert sources.get("cifar10", tmp_path) == tmp_path / "cifar10" / "unpacked"


def test_an_archive_that_does_not_hold_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(cifar(WHOLE[:3]))
    before = tree(tmp_path)
    with pytest.raises(UserError, match="does not hold all of cifar10"):
        sources.read_named("cifar10", tmp_path)
    assert {k: v for k, v in tree(tmp_path).items() if not k.endswith(".lock")} == before


def test_what_cannot_be_got(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="login"):
        sources.get("imagenet-100", tmp_path)
    with pytest.raises(UserError, match="no data set"):
        sources.get("imagenet-1000", tmp_path)
    with pytest.raises(UserError, match="openldn datasets --get cifar10"):
        sources.read_named("cifar10", tmp_path)

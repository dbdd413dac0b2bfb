"""Files that are whole or absent, and never pickled."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from openldn.errors import UserError
from openldn.files import (
    check_absent,
    read_json,
    read_metadata,
    read_tensors,
    whole_folder,
    write_csv,
    write_json,
    write_tensors,
)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "p.csv", ("a",), [[1]])

    def rows() -> Iterator[list[int]]:
        yield [2]
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        write_csv(tmp_path / "p.csv", ("a",), rows())
    assert (tmp_path / "p.csv").read_bytes() == b"a\r\n1\r\n"
    with pytest.raises(TypeError):
        write_json(tmp_path / "new.json", object())
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_a_folder_appears_when_it_is_full(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "a" / "b") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "x").read_text() == "x"
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "other") as folder:
        (folder / "nowhere" / "x").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(UserError, match="exists already"), whole_folder(tmp_path / "a"):
        pass


def test_what_exists_or_cannot_be_made(tmp_path: Path) -> None:
    check_absent(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder; choose another --out"):
        check_absent(tmp_path / "file" / "run")
    with pytest.raises(UserError, match="openldn resume"):
        check_absent(tmp_path / "file")


def test_every_file_has_the_same_permissions(tmp_path: Path) -> None:
    """Those that the user's umask gives; safetensors alone makes files that nobody else may read."""
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
        write_csv(tmp_path / "a.csv", ("a",), [])
        write_tensors(tmp_path / "a.safetensors", {"0": torch.zeros(1)}, {})
    finally:
        os.umask(before)
    assert [oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == ["0o640"] * 3


def test_json_that_is_missing_or_broken(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(UserError, match=r"a\.json is missing: do this"):
        read_json(file, "do this")
    for text in ("", "{", "[" * 100_000, "\udcff"):
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(UserError, match=r"a\.json is damaged: do this"):
            read_json(file, "do this")
    write_json(file, {"a": [1, None, "ä"]})
    assert read_json(file, "") == {"a": [1, None, "ä"]}
    assert json.loads(file.read_text()) == {"a": [1, None, "ä"]}


def test_names_with_any_character_survive_a_csv_file(tmp_path: Path) -> None:
    import csv

    names = ["plain", "a,b", 'a"b', "a\rb", "a\nb", "ä"]
    write_csv(tmp_path / "a.csv", ("name",), [[name] for name in names])
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as f:
        assert [row["name"] for row in csv.DictReader(f)] == names


def test_tensors_come_back(tmp_path: Path) -> None:
    file, strided = tmp_path / "a.safetensors", torch.arange(6).view(2, 3).T
    write_tensors(file, {"a": strided, "same": strided, "b": torch.zeros(0, 2)}, {"about": "these"})
    tensors, about = read_tensors(file)
    assert about == read_metadata(file) == {"about": "these"}
    assert torch.equal(tensors["a"], strided)
    assert torch.equal(tensors["same"], strided)
    assert tensors["b"].shape == (0, 2)


def test_a_damaged_tensor_file_is_an_error_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95 not safetensors, but perhaps a pickle")
    with pytest.raises(UserError, match="damaged"):
        read_tensors(tmp_path / "model.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(UserError, match="damaged"):
        read_tensors(tmp_path / "folder.safetensors")
    with pytest.raises(UserError, match=r"other\.safetensors is missing"):
        read_tensors(tmp_path / "other.safetensors")


def test_what_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot be written|No such file"):
        write_tensors(tmp_path / "nowhere" / "x.safetensors", {"0": torch.zeros(1)}, {})


def test_links_are_replaced_not_followed(tmp_path: Path) -> None:
    """A stranger's folder could otherwise have us write elsewhere."""
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    (tmp_path / ".new.json.part").symlink_to(victim)
    (tmp_path / "new.json").symlink_to(victim)
    write_json(tmp_path / "new.json", 1)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new.json").is_symlink()

"""A run's files: whole or absent, never pickled."""

import json
from pathlib import Path

import pytest
import torch

from openldn.errors import UserError
from openldn.optimisers import Muon
from openldn.run import Run, read_tensors, write_csv, write_json, write_tensors


def test_a_tree_of_state_comes_back_as_it_was(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    state = {
        "step": 3,
        "rate": 1e-3 / 3,
        "name": "x",
        "none": None,
        "flag": True,
        "by number": {0: torch.arange(3), 1: {"deep": [torch.eye(2, dtype=torch.float64), 7]}},
        "empty": torch.zeros(2, 0, dtype=torch.int64),
        "strided": torch.arange(6).view(2, 3).T,
    }
    run.save_state("a", state)
    back = run.load_state("a")
    assert back is not None
    assert {k: back[k] for k in ("step", "rate", "name", "none", "flag")} == {
        k: state[k] for k in ("step", "rate", "name", "none", "flag")
    }
    assert torch.equal(back["by number"][0], torch.arange(3))
    assert torch.equal(back["by number"][1]["deep"][0], torch.eye(2, dtype=torch.float64))
    assert back["empty"].shape == (2, 0)
    assert torch.equal(back["strided"], torch.arange(6).view(2, 3).T)
    assert run.load_state("b") is None


def test_an_optimisers_state_comes_back(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    layers = [torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)) for _ in range(2)]
    one, two = (Muon(layer) for layer in layers)
    layers[0](torch.randn(2, 1, 4, 4)).square().sum().backward()
    one.step(0.1)
    run.save_state("a", {"optimiser": one.state_dict()})
    loaded = run.load_state("a")
    assert loaded is not None
    two.load_state_dict(loaded["optimiser"])
    assert two.rest.steps == 1
    for a, b in zip([*one.b, *one.rest.m, *one.rest.v], [*two.b, *two.rest.m, *two.rest.v], strict=True):
        assert float(a.norm()) > 0
        assert torch.equal(a, b)


def test_what_cannot_be_kept_is_refused_and_the_old_state_stays(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    run.save_state("a", {"step": 1})
    with pytest.raises(TypeError, match="object"):
        run.save_state("a", {"step": object()})
    assert run.load_state("a") == {"step": 1}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "p.csv", ("a",), [[1]])

    def rows():
        yield [2]
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        write_csv(tmp_path / "p.csv", ("a",), rows())
    assert (tmp_path / "p.csv").read_text() == "a\n1\n"
    with pytest.raises(TypeError):
        write_json(tmp_path / "new.json", object())
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_the_log_is_cut_to_the_last_checkpoint(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    run.log({"step": 1, "value": float("nan")})
    run.save_state("a", {"step": 1})
    run.log({"step": 2})
    with (run.path / "metrics.jsonl").open("a") as f:
        f.write('{"step": 3, "half a li')  # killed while writing
    run.cut_log()
    assert run.metrics() == [{"step": 1, "value": None}]
    run.save_state("b", {"step": 5})
    run.log({"step": 6})
    run.cut_log()
    assert run.metrics() == [{"step": 1, "value": None}]


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"seed": 1}, {})
    with pytest.raises(UserError, match="exists already"):
        Run.create(tmp_path / "run", {"seed": 2}, {})
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 1
    with pytest.raises(TypeError):
        Run.create(tmp_path / "other", {"seed": object()}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damaged_tensor_file_is_an_error_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95 not safetensors, but perhaps a pickle")
    with pytest.raises(UserError, match="damaged"):
        read_tensors(tmp_path / "model.safetensors")


def test_a_run_with_links_is_refused(tmp_path: Path) -> None:
    """A stranger's run could otherwise have us write elsewhere."""
    keys = ("digest", "image", "n_novel", "options", "settings")
    run = Run.create(tmp_path / "run", {"data": {"kind": "arrays"}, **{key: {} for key in keys}}, {})
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    Run.open(run.path)
    (run.path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        Run.open(run.path)
    (run.path / "metrics.jsonl").unlink()
    (run.path / ".new.json.part").symlink_to(victim)
    write_json(run.path / "new.json", 1)
    assert victim.read_text() == "precious"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    with run.locked(), pytest.raises(UserError, match="another process"), Run(run.path, {}).locked():
        pass
    with run.locked():  # and it is free again
        pass
    assert not (run.path / ".lock").exists()


def blank(path: Path, **changes: object) -> Run:
    keys = ("digest", "image", "n_novel", "options", "settings")
    return Run.create(path, {"data": {"kind": "arrays"}, **{key: {} for key in keys}, **changes}, {})


@pytest.mark.parametrize("data", [{}, None, "digits"])
def test_a_run_that_does_not_say_where_its_data_is(tmp_path: Path, data: object) -> None:
    blank(tmp_path / "run", data=data)
    with pytest.raises(UserError, match="'data' is missing"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("settings", [{}, {"discover": 3, "closed_world": 4}, [], None])
def test_settings_of_another_kind(tmp_path: Path, settings: object) -> None:
    run = blank(tmp_path / "run", settings=settings)
    with pytest.raises(UserError, match="does not fit this version"):
        _ = run.settings


def test_a_line_of_the_log_that_was_written_half(tmp_path: Path) -> None:
    run = blank(tmp_path / "run")
    run.log({"step": 1})
    with (run.path / "metrics.jsonl").open("ab") as f:
        f.write(b'{"step": \xff')
    assert run.metrics() == [{"step": 1}]


def test_checkpoints_that_hold_something_else(tmp_path: Path) -> None:
    run = blank(tmp_path / "run")
    for metadata in (
        {},
        {"tree": "no JSON", "log_length": "many"},
        {"tree": '{"tensor": "7"}', "log_length": ""},
    ):
        write_tensors(run.checkpoint("1-discover"), {"0": torch.zeros(1)}, metadata)
        with pytest.raises(UserError, match="damaged"):
            run.load_state("1-discover")
        with pytest.raises(UserError, match="damaged"):
            run.cut_log()


def test_checkpoints_may_be_removed(tmp_path: Path) -> None:
    run = blank(tmp_path / "run")
    run.checkpoint("x").parent.rmdir()
    run.save_state("1-discover", {"step": 3})
    assert run.load_state("1-discover") == {"step": 3}


def test_what_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written"):
        write_tensors(tmp_path / "nowhere" / "x.safetensors", {"0": torch.zeros(1)}, {})

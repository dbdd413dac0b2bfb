"""A run's folder: its state, its log, its configuration."""

import json
from pathlib import Path

import pytest
import torch

from openldn.errors import UserError
from openldn.files import read_tensors, write_tensors
from openldn.run import FORMAT, KEYS, Run, finite
from openldn.training.optimisers import Muon


def blank(path: Path, **changes: object) -> Run:
    """A run with a configuration that has all it must have."""
    config = {key: {} for key in KEYS} | {"data": {"kind": "arrays"}, "digest": "0", "n_novel": 2}
    return Run.create(path, {**config, **changes}, {})


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
    plain = ("step", "rate", "name", "none", "flag")
    assert {k: back[k] for k in plain} == {k: state[k] for k in plain}
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
    run.save_state("fresh", {"optimiser": two.state_dict()})
    loaded = run.load_state("a")
    assert loaded is not None
    two.load_state_dict(loaded["optimiser"])
    run.save_state("b", {"optimiser": two.state_dict()})
    a, b, fresh = (read_tensors(run.checkpoint(name)) for name in ("a", "b", "fresh"))
    assert a[1] == b[1] != fresh[1]  # the number of steps
    assert all(torch.equal(a[0][name], b[0][name]) for name in a[0])
    assert any(not torch.equal(a[0][name], fresh[0][name]) for name in a[0])


def test_what_cannot_be_kept_is_refused_and_the_old_state_stays(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    run.save_state("a", {"step": 1})
    with pytest.raises(TypeError, match="object"):
        run.save_state("a", {"step": object()})
    assert run.load_state("a") == {"step": 1}


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


def test_a_line_of_the_log_that_was_written_half(tmp_path: Path) -> None:
    run = blank(tmp_path / "run")
    run.log({"step": 1})
    with (run.path / "metrics.jsonl").open("ab") as f:
        f.write(b'{"step": \xff')
    assert run.metrics() == [{"step": 1}]


def test_numbers_that_json_does_not_know() -> None:
    given = {"a": float("nan"), "b": {"c": float("inf"), "d": 0.5}, "e": "nan", "f": 3}
    assert finite(given) == {"a": None, "b": {"c": None, "d": 0.5}, "e": "nan", "f": 3}


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"seed": 1}, {})
    with pytest.raises(UserError, match="exists already"):
        Run.create(tmp_path / "run", {"seed": 2}, {})
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 1
    with pytest.raises(TypeError):
        Run.create(tmp_path / "other", {"seed": object()}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_with_links_is_refused(tmp_path: Path) -> None:
    """A stranger's run could otherwise have us write elsewhere."""
    run, victim = blank(tmp_path / "run"), tmp_path / "victim.txt"
    victim.write_text("precious")
    Run.open(run.path)
    (run.path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        Run.open(run.path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {}, {})
    with run.locked(), pytest.raises(UserError, match="another process"), Run(run.path, {}).locked():
        pass
    with run.locked():  # and it is free again
        pass


def test_a_copy_has_neither_checkpoints_nor_the_lock(tmp_path: Path) -> None:
    run = blank(tmp_path / "run")
    run.save_state("1-discover", {"step": 1})
    run.log({"step": 1})
    with run.locked():
        run.copy_to(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "split.json",
    ]


# -------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize("version", [1, FORMAT + 1])
def test_a_run_of_another_format_is_refused(tmp_path: Path, version: int) -> None:
    blank(tmp_path / "run", format=version)
    formats = rf"\(run format {version}, this one reads {FORMAT}\)"
    with pytest.raises(
        UserError, match=f"made by another version of openldn {formats}; use that version, or"
    ):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("data", [{}, None, "digits"])
def test_a_run_that_does_not_say_where_its_data_is(tmp_path: Path, data: object) -> None:
    blank(tmp_path / "run", data=data)
    with pytest.raises(UserError, match="'data' is missing"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_configuration_that_lacks_something(tmp_path: Path, key: str) -> None:
    run = blank(tmp_path / "run")
    config = json.loads((run.path / "config.json").read_text())
    del config[key]
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"'{key}' is missing"):
        Run.open(run.path)


@pytest.mark.parametrize("settings", [[], None, 3])
def test_settings_of_another_type(tmp_path: Path, settings: object) -> None:
    blank(tmp_path / "run", settings=settings)
    with pytest.raises(UserError, match="'settings' is missing or of the wrong type"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("options", [{"unheard of": 1}, {"seed": "one"}, {"epochs": -1.0}])
def test_options_that_do_not_exist_or_fit(tmp_path: Path, options: object) -> None:
    run = blank(tmp_path / "run", options=options)
    with pytest.raises(UserError, match="does not fit this version"):
        _ = run.options


# ----------------------------------------------------------------------------------------- checkpoints


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

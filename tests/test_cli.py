"""The command line: help, results, and invalid input in one sentence."""

import csv
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import openldn
import toy
from openldn import cli, pipeline, systems
from openldn.cli import COMMANDS
from openldn.data import sources
from openldn.files import read_tensors
from openldn.model import Model
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
PROTOCOLS = {"openldn", "orca", "gcd", "anchored"}
CPU = ["--device", "cpu", "--precision", "float32"]
Finished = tuple[Path, Path, dict[str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A folder of images, a run on it, and the ground truth of its unlabelled images."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    truth = toy.write_folder(folder)
    out = folder.parent / "run"
    chosen = ["--method", "openldn-uda", "--novel", "2", "--epochs", "2", *CPU]
    cli.main(["train", str(folder), *chosen, "--out", str(out)])
    return folder, out, truth


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return [*csv.DictReader(f)]


def program(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`python -m openldn ...` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "openldn", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


# ---------------------------------------------------------------------------------- help and version


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_80_columns(command: str | None) -> None:
    """It is readable, and quick: it does not wait for torch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = program(*([command] if command else []), "--help", COLUMNS="80")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80
    assert not re.search(r"\{None[|}]|\(default: None\)|<class '", done.stdout)
    if command == "train":
        for group in ("data options", "system options", "training options"):
            assert f"─ {group} ─" in done.stdout
    # Seconds of computing, not of waiting: the machine may be busy with other things.
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.5


def test_help_does_not_load_torch() -> None:
    code = "from openldn.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    check = "import sys\nassert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code + check], check=True, stdout=subprocess.DEVNULL)


def test_every_option_of_train_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    flags = re.findall(r"^\W+(?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    names = {f"--{name.replace('_', '-')}" for name in openldn.Options.__dataclass_fields__} - {"--settings"}
    assert names | {"--labels", "--set", "--out"} <= {*flags}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    assert capsys.readouterr().out == f"openldn {openldn.__version__}\n"


# ------------------------------------------------------------------------------------- invalid input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--novel=abc"], r"novel='abc' cannot be used; give a whole number or auto"),
        (["--novel", "1.5"], r"novel='1.5' cannot be used"),
        (["--flip", "maybe"], r"flip='maybe' cannot be used; give true or false"),
        (["--set", "lr=abc"], r"lr='abc' cannot be used; give a number"),
        (["--set", "lr=-1"], r"lr=-1.0 cannot be used; give a number"),
        (["--set", "nonsense=1"], r"openldn-uda has no setting 'nonsense'; it has epochs, .*tau, .*mixup"),
        (["--set", "uda.tau=1"], r"has no setting 'uda.tau'.*stages: discover, uda"),
        (["--set", "lr"], r"--set lr is not of the form NAME=VALUE"),
        (["--set", "=1"], r"--set =1 is not of the form NAME=VALUE"),
        (
            ["--set", "order=sideways"],
            r"order='sideways' cannot be used; give one of omega-first, theta-first",
        ),
        (["--method", "orca", "--set", "pair=false"], r"orca has no setting 'pair'; it has .*margin"),
        (["--method", "magic"], r"there is no system 'magic'"),
        (["--epochs", "2", "--budget", "3"], r"--epochs and --budget both"),
        (["--evaluations=-1"], r"evaluations -1 is negative"),
        (["--save-every=-1"], r"save_every -1.0 is negative"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_invalid_choices_are_refused_in_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "digits", *arguments, "--out", str(tmp_path / "run")])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"error: .*{message}.*\n", said.err), said.err
    assert not (tmp_path / "run").exists()


def test_a_run_of_the_format_before_is_refused(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(finished[1])
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps({**run.config, "format": 1}))
    for arguments in (["resume", "old"], ["predict", "old", "."], ["evaluate", "old"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main([arguments[0], str(tmp_path / arguments[1]), *arguments[2:]])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert re.fullmatch(r"error: .*old was made by another version of openldn \(run format 1,.*\n", said)


# ------------------------------------------------------------------------------------------- training


def test_settings_are_recorded_as_they_were_given(tmp_path: Path) -> None:
    arguments = [
        "--set",
        "lr=1e-3",
        "--set",
        "uda.lr=5e-4",
        "--set",
        "pair=false",
        "--set",
        "order = omega-first",
    ]
    data = [
        "train",
        "digits",
        "--images",
        "60",
        "--epochs",
        "0.1",
        "--out",
        str(tmp_path / "run"),
        "--seed",
        "7",
    ]
    cli.main([*data, *arguments])
    run = Run.open(tmp_path / "run")
    assert (run.options.images, run.options.seed, run.options.epochs) == (60, 7, 0.1)
    recorded = run.config["settings"]
    assert (recorded["discover"]["lr"], recorded["uda"]["lr"]) == (1e-3, 5e-4)
    assert (recorded["discover"]["pair"], recorded["discover"]["order"]) == (False, "omega-first")
    for stage in systems.find("openldn-uda").stages:
        assert [*recorded[stage.name]] == [*stage.settings.described()]


def test_evaluations_on_the_command_line(tmp_path: Path) -> None:
    data = ["train", "digits", "--images", "100", "--method", "openldn", "--epochs", "5", *CPU]
    cli.main([*data, "--evaluations", "3", "--out", str(tmp_path / "run")])
    found = [line["phase"] for line in Run.open(tmp_path / "run").metrics() if "protocols" in line]
    assert found == ["discover"] * 3 + ["final"]


def test_the_same_through_python(finished: Finished, tmp_path: Path) -> None:
    folder, out, _ = finished
    choices: dict[str, Any] = {"method": "openldn-uda", "device": "cpu", "precision": "float32"}
    run = openldn.train(folder, novel=2, epochs=2, out=tmp_path / "run", quiet=True, **choices)
    assert (run.path / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()
    names = [str(path) for path in sorted((folder / "unlabelled").iterdir())]
    assert len(openldn.load(run.path).predict(names)) == len(names)


def test_bfloat16(finished: Finished, tmp_path: Path) -> None:
    """It is recorded, it makes a difference, and a model that is loaded works in it as well."""
    folder, out, _ = finished  # in float32
    choices = ["--method", "openldn-uda", "--novel", "2", "--epochs", "2", "--device", "cpu"]
    cli.main(["train", str(folder), *choices, "--precision", "bfloat16", "--out", str(tmp_path / "run")])
    assert Run.open(tmp_path / "run").config["precision"] == "bfloat16"
    assert Model.load(tmp_path / "run").network.mixed_precision
    weights, before = (read_tensors(run / "model.safetensors")[0] for run in (tmp_path / "run", out))
    assert not torch.equal(weights["network.head.weight"], before["network.head.weight"])
    cli.main(["predict", str(tmp_path / "run"), str(folder / "unlabelled"), "--out", str(tmp_path / "p.csv")])
    new = {row["image"]: row for row in rows(tmp_path / "p.csv")}
    for row in rows(tmp_path / "run/predictions.csv"):
        assert new[row["image"].removeprefix("unlabelled/")]["confidence"] == row["confidence"]


def test_labels_in_a_file(tmp_path: Path) -> None:
    """A flat folder and a CSV say the same as class folders do."""
    toy.write_folder(tmp_path / "tree")
    (tmp_path / "flat").mkdir()
    labels = ["image,label"]
    for path in sorted((tmp_path / "tree").rglob("*.png")):
        name = f"{path.parent.name}-{path.name}"
        path.rename(tmp_path / "flat" / name)
        if path.parent.name != "unlabelled":
            labels.append(f"{name},{path.parent.name}")
    (tmp_path / "labels.csv").write_text("\n".join(labels))
    arguments = ["--labels", str(tmp_path / "labels.csv"), "--novel", "2", "--method", "openldn"]
    cli.main(["train", str(tmp_path / "flat"), *arguments, "--epochs", "0.5", "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "classes.json").read_text())["known"] == ["class-0", "class-1"]
    recorded = json.loads((tmp_path / "run" / "split.json").read_text())
    assert sum(map(len, recorded["labelled"].values())) == len(labels) - 1


def test_finished_runs_have_nothing_to_resume(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    cli.main(["resume", str(out)])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert "novel-1" in capsys.readouterr().out


def test_class_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like the table's markup is not."""
    toy.write_folder(tmp_path / "photos")
    (tmp_path / "photos" / "class-0").rename(tmp_path / "photos" / "dog [small]")
    (tmp_path / "photos" / "class-1").rename(tmp_path / "photos" / "cat [red]")
    arguments = ["--novel", "2", "--method", "openldn", "--epochs", "0.2", "--out", str(tmp_path / "run")]
    cli.main(["train", str(tmp_path / "photos"), *arguments])
    assert "dog [small]" in capsys.readouterr().out


def test_plain_output_when_nobody_watches(tmp_path: Path) -> None:
    """No control sequences, results on stdout, progress on stderr."""
    choices = ["--images", "200", "--epochs", "0.5", "--out", str(tmp_path / "run")]
    done = program("train", "digits", *choices)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "discover: starts" in done.stderr
    assert "discover" not in done.stdout
    assert "anchored" in done.stdout


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "a run"
    process = subprocess.Popen(
        [sys.executable, "-m", "openldn", "train", "digits", *CPU, "--save-every", "0", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may have interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(3000):
        if (out / "checkpoints" / "1-discover.safetensors").exists():
            break
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    [line] = [line for line in errors.splitlines() if line.startswith("stopped")]
    assert re.search(rf"openldn resume '?{re.escape(str(out))}'?$", line)
    assert said == ""


def test_the_callers_warnings_stay_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    show, filters = warnings.showwarning, [*warnings.filters]
    cli.main(["systems"])
    with pytest.raises(SystemExit):
        cli.main(["train", "digits", "--method", "magic"])
    assert warnings.showwarning is show
    assert [*warnings.filters] == filters


# ------------------------------------------------------------------------------------ predict, evaluate


def test_predict(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, truth = finished
    cli.main(["predict", str(out), str(folder / "unlabelled"), "--out", str(tmp_path / "p.csv")])
    assert f"{len(truth)} images labelled" in capsys.readouterr().out
    new = {row["image"]: row for row in rows(tmp_path / "p.csv")}
    assert len(new) == len(truth)
    for row in rows(out / "predictions.csv"):
        assert new[row["image"].removeprefix("unlabelled/")]["label"] == row["label"]


def write_truth(file: Path, truth: dict[str, str]) -> Path:
    file.write_text("image,label\n" + "".join(f"{image},{label}\n" for image, label in truth.items()))
    return file


def test_evaluate(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, truth = finished
    file = write_truth(tmp_path / "truth.csv", truth)
    cli.main(["evaluate", str(out), "--truth", str(file), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["protocols"].keys() == PROTOCOLS
    assert result == openldn.evaluate(out, file)
    assert (result["images"], result["left_out"]) == (len(truth), 0)
    cli.main(["evaluate", str(out), "--truth", str(file), "--authors", "--json"])
    assert json.loads(capsys.readouterr().out)["protocols"].keys() == {*PROTOCOLS, "authors"}
    cli.main(["evaluate", str(out), "--truth", str(file)])
    shown = capsys.readouterr().out
    assert "anchored" in shown
    assert "were not unlabelled" not in shown


def test_ground_truth_may_name_all_images(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that were labelled, or that the run does not have, are counted and left out."""
    folder, out, truth = finished
    labelled = {f"{p.parent.name}/{p.name}": p.parent.name for p in folder.glob("class-*/*.png")}
    others = {"elsewhere/1.png": "class-0", "unlabelled/none.png": ""}  # the last one has no label
    file = write_truth(tmp_path / "all.csv", {**labelled, **others, **truth})
    found, alone = (openldn.evaluate(out, f) for f in (file, write_truth(tmp_path / "truth.csv", truth)))
    assert found["protocols"] == alone["protocols"]
    assert (found["images"], found["left_out"]) == (len(truth), len(labelled) + 1)
    cli.main(["evaluate", str(out), "--truth", str(file)])
    shown = capsys.readouterr().out
    assert f"{len(truth)} images were evaluated; {len(labelled) + 1} others in the file" in shown


def test_json_of_what_cannot_be_measured(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a novel image among the truth, novel accuracy is null, not NaN."""
    _, out, truth = finished
    known = {image: label for image, label in truth.items() if label == "class-0"}
    cli.main(["evaluate", str(out), "--truth", str(write_truth(tmp_path / "truth.csv", known)), "--json"])
    assert json.loads(capsys.readouterr().out)["protocols"]["openldn"]["novel"] is None


# --------------------------------------------------------------------------------- lists and the demo


def test_datasets_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["datasets"])
    first = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [name for name in first if name] == [*sources.NAMED]


def test_systems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["systems"])
    said = capsys.readouterr().out
    assert all(f" {name} " in said for name in systems.SYSTEMS)


@pytest.mark.parametrize("name", [*systems.SYSTEMS, "orca+uda"])
def test_a_system_shows_its_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["systems", name])
    said = capsys.readouterr().out
    system = systems.find(name)
    assert system.about in " ".join(said.split())
    assert system.paper in " ".join(said.split())
    for stage in system.stages:
        assert f"stage {stage.name}" in said
        if stage.objective is not None:
            assert all(f" {setting} " in said for setting in stage.settings.described())


TERMINAL = """
import os, pty, sys
os.environ |= {"COLUMNS": "80", "LINES": "50", "TERM": "xterm"}
sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "openldn", *sys.argv[1:]])))
"""


@pytest.mark.parametrize("arguments", [["systems"], ["systems", "orca"], ["systems", "openldn-uda"]])
def test_systems_fit_80_columns(arguments: list[str]) -> None:
    """On a terminal, which a pipe is not."""
    done = subprocess.run([sys.executable, "-c", TERMINAL, *arguments], capture_output=True, timeout=60)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stdout.decode()).replace("\r", "").splitlines()
    assert done.returncode == 0
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 80] == []
    assert any("orca" in line or "openldn" in line for line in lines)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, cut short; its text fits 80 columns but for the name of the folder."""
    original = pipeline.train
    monkeypatch.setattr(pipeline, "train", lambda *a, **k: original(*a, **k, epochs=0.2, images=200))
    monkeypatch.chdir(tmp_path)
    cli.main(["demo", "--out", "made-here"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in PROTOCOLS)
    assert "made-here" in printed
    assert max(map(len, printed.splitlines())) <= 80

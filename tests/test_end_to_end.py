"""The whole way, through Python and through the command line, on images that are made or that ship."""

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openldn
import toy
from openldn import cli
from openldn.data.problem import LabelledSet
from openldn.data.sources import digits
from openldn.errors import UserError
from openldn.model import Model
from openldn.run import Run, read_metadata, read_tensors

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")

PROTOCOLS = {"openldn", "orca", "gcd", "anchored"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A folder of images, a run on it, and the truth about its unlabelled images."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    truth = toy.write_folder(folder)
    out = folder.parent / "run"
    choices = ["--novel", "2", "--epochs", "3", "--device", "cpu", "--precision", "float32"]
    cli.main(["train", str(folder), *choices, "--out", str(out)])
    return folder, out, truth


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return [*csv.DictReader(f)]


def test_a_runs_folder(finished: tuple[Path, Path, dict[str, str]]) -> None:
    _, out, truth = finished
    config = json.loads((out / "config.json").read_text())
    assert config["settings"]["seed"] == 0
    assert {"openldn", "torch", "python", "data", "options"} <= config.keys()
    split = json.loads((out / "split.json").read_text())
    assert sorted(split["unlabelled"]) == sorted(truth)
    assert [*split["labelled"]] == ["class-0", "class-1"]
    classes = json.loads((out / "classes.json").read_text())
    assert classes == {"known": ["class-0", "class-1"], "novel": ["novel-1", "novel-2"]}
    for line in Run.open(out).metrics():
        assert {"phase", "step", "seconds"} <= line.keys()
    predictions = rows(out / "predictions.csv")
    assert sorted(row["image"] for row in predictions) == sorted(truth)
    assert {row["kind"] for row in predictions} <= {"known", "novel", "unsure"}
    assert all(0 <= float(row["confidence"]) <= 1 for row in predictions)
    assert not any(path.name.startswith(".") for path in out.rglob("*"))


def test_predict(finished: tuple[Path, Path, dict[str, str]], tmp_path: Path) -> None:
    folder, out, _ = finished
    cli.main(["predict", str(out), str(folder / "unlabelled"), "--out", str(tmp_path / "p.csv")])
    new = {row["image"]: row for row in rows(tmp_path / "p.csv")}
    for row in rows(out / "predictions.csv"):
        assert new[row["image"].removeprefix("unlabelled/")]["label"] == row["label"]


def test_evaluate(
    finished: tuple[Path, Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, truth = finished
    file = tmp_path / "truth.csv"
    file.write_text("image,label\n" + "".join(f"{image},{label}\n" for image, label in truth.items()))
    cli.main(["evaluate", str(out), "--truth", str(file), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["protocols"].keys() == PROTOCOLS
    assert result == openldn.evaluate(out, file)
    cli.main(["evaluate", str(out), "--truth", str(file)])
    assert "anchored" in capsys.readouterr().out


def test_the_same_through_python(finished: tuple[Path, Path, dict[str, str]], tmp_path: Path) -> None:
    folder, out, _ = finished
    choices = {"device": "cpu", "precision": "float32"}
    run = openldn.train(folder, novel=2, epochs=3, out=tmp_path / "run", quiet=True, **choices)
    assert (run.path / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()
    names = [str(path) for path in sorted((folder / "unlabelled").iterdir())]
    assert len(openldn.load(run.path).predict(names)) == len(names)


def test_bfloat16(finished: tuple[Path, Path, dict[str, str]], tmp_path: Path) -> None:
    """It is recorded, it makes a difference, and a model that is read again works in it as well."""
    folder, out, _ = finished  # in float32
    choices = ["--novel", "2", "--epochs", "3", "--precision", "bfloat16", "--device", "cpu"]
    cli.main(["train", str(folder), *choices, "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run/config.json").read_text())["settings"]["precision"] == "bfloat16"
    assert Model.load(tmp_path / "run").network.halved
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
    cli.main(["train", str(tmp_path / "flat"), *arguments, "--epochs", "1", "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "classes.json").read_text())["known"] == ["class-0", "class-1"]


def test_finished_runs_have_nothing_to_resume(
    finished: tuple[Path, Path, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    cli.main(["resume", str(out)])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert "novel-1" in capsys.readouterr().out


def test_auto_counts_and_resumes(tmp_path: Path) -> None:
    toy.write_folder(tmp_path / "photos")
    run = openldn.train(tmp_path / "photos", epochs=2, out=tmp_path / "run", quiet=True)
    counted = json.loads((run.path / "count.json").read_text())["n_novel"]
    assert len(json.loads((run.path / "classes.json").read_text())["novel"]) == counted
    before = read_tensors(run.path / "model.safetensors")[0]
    (run.path / "model.safetensors").unlink()
    openldn.resume(run.path, quiet=True)
    after = read_tensors(run.path / "model.safetensors")[0]
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_hidden_labels_never_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named set whose novel labels are shuffled gives the same weights to the bit, and other scores."""
    original: LabelledSet = digits.read(Path())

    def shuffled(folder: Path) -> LabelledSet:
        labels, novel = original.labels.copy(), original.labels >= 5
        labels[novel] = np.random.default_rng(0).permutation(labels[novel])
        tests = original.test_labels.copy()
        tests[tests >= 5] = np.random.default_rng(1).permutation(tests[tests >= 5])
        return replace(original, labels=labels, test_labels=tests)

    one = openldn.train("digits", epochs=1, out=tmp_path / "one", quiet=True)
    monkeypatch.setattr(digits, "read", shuffled)
    two = openldn.train("digits", epochs=1, out=tmp_path / "two", quiet=True)
    a, b = (read_tensors(run.path / "model.safetensors")[0] for run in (one, two))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert one.metrics()[-1]["protocols"] != two.metrics()[-1]["protocols"]


# ------------------------------------------------------------------------------------ kill -9, resume


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "openldn", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_killed_and_resumed_equals_never_interrupted(tmp_path: Path) -> None:
    """Killed three times without warning, a moment after different checkpoints."""
    common = ["--epochs", "6", "--device", "cpu", "--save-every", "0"]
    whole = start("train", "digits", *common, "--out", str(tmp_path / "whole"))
    killed = tmp_path / "killed"
    process = start("train", "digits", *common, "--out", str(killed))
    kills = [("1-discover", 5), ("1-discover", 20), ("2-uda", 10)]
    for name, step in kills:
        wait_for(process, killed, name, step)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "model.safetensors").exists()
        process = start("resume", str(killed))
    assert process.wait(120) == 0
    assert whole.wait(120) == 0
    a, b = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "killed"))
    assert all(torch.equal(a[k], b[k]) for k in a)

    def log(name: str) -> list[dict[str, Any]]:
        lines = Run.open(tmp_path / name).metrics()
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    evaluations = [[line for line in log(name) if "protocols" in line] for name in ("whole", "killed")]
    assert evaluations[0] == evaluations[1]


def wait_for(process: "subprocess.Popen[bytes]", run: Path, name: str, step: int) -> None:
    """Until the phase's checkpoint is at that step or later."""
    for _ in range(6000):
        file = run / "checkpoints" / f"{name}.safetensors"
        if file.exists():
            with suppress(
                UserError
            ):  # opened while another one took its place: its length is not what it says
                tree = json.loads(read_metadata(file)["tree"])
                if dict(tree["pairs"])["step"] >= step:
                    return
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("the run did not get that far")


# -------------------------------------------------------------------------------------- command line


def test_help_is_quick_and_without_torch() -> None:
    code = "from openldn.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    check = "import sys\nassert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys()"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code + check], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Seconds of computing, not of waiting: the machine may be busy with other things.
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.5


def test_datasets_lists_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["datasets"])
    printed = capsys.readouterr().out
    assert "digits" in printed
    assert "cifar10" in printed


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb, cut short: the full one is `make demo`."""
    from openldn import pipeline

    original = pipeline.train
    monkeypatch.setattr(pipeline, "train", lambda *a, **k: original(*a, **k, epochs=1))
    cli.main(["demo", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in PROTOCOLS)
    assert str(tmp_path / "run") in printed


def test_plain_output_when_nobody_watches(tmp_path: Path) -> None:
    """No control sequences, results on stdout, progress on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "openldn", "train", "digits", "--epochs", "1", "--out", str(tmp_path / "run")],
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"discover: starts" in done.stderr
    assert b"discover" not in done.stdout
    assert b"anchored" in done.stdout


def test_class_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like the table's markup is not."""
    toy.write_folder(tmp_path / "photos")
    (tmp_path / "photos" / "class-0").rename(tmp_path / "photos" / "dog [small]")
    (tmp_path / "photos" / "class-1").rename(tmp_path / "photos" / "cat [red]")
    arguments = ["--novel", "2", "--method", "openldn", "--epochs", "1", "--out", str(tmp_path / "run")]
    cli.main(["train", str(tmp_path / "photos"), *arguments])
    assert "dog [small]" in capsys.readouterr().out


def test_json_of_what_cannot_be_measured(
    finished: tuple[Path, Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a novel image among the truth, novel accuracy is null, not NaN."""
    _, out, truth = finished
    known = [f"{image},{label}" for image, label in truth.items() if label == "class-0"]
    (tmp_path / "truth.csv").write_text("\n".join(["image,label", *known]))
    cli.main(["evaluate", str(out), "--truth", str(tmp_path / "truth.csv"), "--json"])
    assert json.loads(capsys.readouterr().out)["protocols"]["openldn"]["novel"] is None


def test_a_folder_called_like_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy.write_folder(tmp_path / "digits")
    with pytest.raises(openldn.UserError, match=r"\./digits"):
        openldn.train("digits", epochs=1)
    run = openldn.train("./digits", epochs=1, novel=2, method="openldn", quiet=True)
    assert run.path == Path("runs/digits-openldn")


def test_options_that_mean_nothing_here_are_refused(tmp_path: Path) -> None:
    toy.write_folder(tmp_path / "photos")
    with pytest.raises(openldn.UserError, match="--labelled"):
        openldn.train(tmp_path / "photos", labelled=0.2)
    with pytest.raises(openldn.UserError, match="--size"):
        openldn.train("digits", size=32)

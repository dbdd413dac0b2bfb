"""What cannot be used is refused in one sentence, in Python and at the command line, and nothing is lost."""

import io
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import openldn
from openldn.cli import main
from openldn.errors import OpenLDNWarning

# Should something be accepted that must not be, it is at least trained quickly.
QUICK = {"method": "openldn", "novel": 2, "epochs": 0.1}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photos(at: Path, **counts: int) -> Path:
    """A folder of folders of so many images of 8 x 8 pixels."""
    at.mkdir(parents=True)
    for k, (name, n) in enumerate(counts.items()):
        (at / name).mkdir()
        for i in range(n):
            Image.fromarray(noise(8, 8, seed=100 * k + i)).save(at / name / f"{i}.png")
    return at


def usual(at: Path) -> Path:
    return photos(at, cat=3, dog=3, unlabelled=6)


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


PYTHON: dict[str, Callable[..., Any]] = {
    "train": lambda data, **options: openldn.train(data, quiet=True, **options),
    "resume": lambda run: openldn.resume(run, quiet=True),
    "predict": lambda run, images, out: openldn.predict(openldn.Run.open(run), Path(images), Path(out)),
    "evaluate": lambda run, truth=None: openldn.evaluate(
        openldn.Run.open(run), None if truth is None else Path(truth)
    ),
}


class Refusal:
    """Calls a verb one way or the other, and checks how it is refused."""

    def __init__(self, how: str, here: Path, capsys: pytest.CaptureFixture[str]):
        self.how, self.here, self.capsys = how, here, capsys

    def __call__(self, verb: str, *given: Any, mentions: tuple[Any, ...], **options: Any) -> None:
        before = tree(self.here)
        if self.how == "python":
            with pytest.raises(openldn.UserError) as e:
                PYTHON[verb](*given, **options)
            message = str(e.value)
        else:
            pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
            flags = [word for pair in pairs for word in pair]
            with pytest.raises(SystemExit) as stop:
                main([verb, *map(str, given), *flags])
            assert stop.value.code == 2
            seen = self.capsys.readouterr()
            assert seen.out == ""
            assert re.fullmatch(r"error: .*\n", seen.err), seen.err
            message = seen.err.removeprefix("error: ").rstrip("\n")
        check_sentence(message, mentions)
        assert tree(self.here) == before


def check_sentence(message: str, mentions: tuple[Any, ...]) -> None:
    """One line that says what is wrong, with what was given, and what to do."""
    assert "\n" not in message
    assert re.search(r"[;:] | must ", message), message
    assert not re.search(r"Traceback|Error\b|Errno", message), message
    for mention in mentions:
        assert str(mention) in message


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENLDN_DATA", raising=False)
    return tmp_path


@pytest.fixture(params=["python", "command line"])
def refused(request: pytest.FixtureRequest, here: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(request.param, here, capsys)


# --------------------------------------------------------------------------------------------- train


@pytest.mark.parametrize(
    ("counts", "mentions"),
    [
        ({}, ("photos", "no images")),
        ({"cat": 0, "unlabelled": 0}, ("photos", "no images")),
        ({"cat": 4, "unlabelled": 4}, ("cat", "one class")),
        ({"cat": 4, "dog": 4}, ("every image is labelled",)),
        ({"unlabelled": 4}, ("no image is labelled",)),
    ],
    ids=["no folders", "empty folders", "one class", "all labelled", "none labelled"],
)
def test_folders_without_a_problem(
    refused: Refusal, counts: dict[str, int], mentions: tuple[str, ...]
) -> None:
    refused("train", photos(refused.here / "photos", **counts), mentions=mentions, **QUICK)


def test_no_such_folder(refused: Refusal) -> None:
    refused("train", "pictures", mentions=("pictures", "digits", "cifar10"), **QUICK)
    refused("train", refused.here / "cifar11", mentions=("cifar11",), **QUICK)


def test_loose_images_without_a_label_file(refused: Refusal) -> None:
    at = usual(refused.here / "photos")
    shutil.copy(at / "cat" / "0.png", at / "loose.png")
    refused("train", at, mentions=("loose.png", "--labels"), **QUICK)


ROWS = "image,label\ncat/0.png,cat\ndog/0.png,dog\n"


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        (None, ("there is no file",)),
        (ROWS + "cat/99.png,cat\n", ("cat/99.png",)),
        (ROWS + "cat/0.png,dog\n", ("cat/0.png", "'cat'", "'dog'")),
        (ROWS + "cat/0.png,\n", ("cat/0.png", "'cat'")),
        ("file,label\ncat/0.png,cat\n", ("'image'", "file")),
        ("image,class\ncat/0.png,cat\n", ("'label'", "class")),
        ("image;label\ncat/0.png;cat\n", ("'image'", "image;label")),
        ("cat/0.png,cat\n", ("'image'", "cat/0.png")),
        ("", ("'image'",)),
        (ROWS + "cat/1,2.png,cat\n", ("line 4", "quotes")),
        ((ROWS + "cat/1.png,caf\xe9\n").encode("latin-1"), ("UTF-8",)),
        (ROWS.encode("utf-16"), ("UTF-8",)),
        (ROWS + "cat/1.png," + "x" * 200_000 + "\n", ("CSV",)),
        ("image,label\n", ("no image is labelled",)),
        ("image,label\ncat/0.png,cat\ncat/1.png,cat\n", ("cat", "one class")),
    ],
)
def test_label_files(refused: Refusal, text: str | bytes | None, mentions: tuple[str, ...]) -> None:
    at, file = usual(refused.here / "photos"), refused.here / "labels.csv"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    if not {"one class", "no image is labelled"} & {*mentions}:
        mentions = (*mentions, "labels.csv")
    refused("train", at, mentions=mentions, labels=file, **QUICK)


def test_a_label_file_that_is_a_folder(refused: Refusal) -> None:
    at = usual(refused.here / "photos")
    refused("train", at, mentions=(at, "CSV"), labels=at, **QUICK)


def jpeg() -> bytes:
    data = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(data, "JPEG")
    return data.getvalue()


UNREADABLE = {
    "text.png": b"This is no image.\n",
    "cut.jpg": jpeg()[: len(jpeg()) // 2],
    "empty.png": b"",
    "head.jpg": jpeg()[:20],
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_images(refused: Refusal, name: str) -> None:
    """A few are left out; two of fourteen are too many."""
    at = usual(refused.here / "photos")
    for again in ("", "2"):
        (at / "unlabelled" / f"{again}{name}").write_bytes(UNREADABLE[name])
    mentions = ("2 of 14", at / "unlabelled" / f"2{name}", "repair")
    refused("train", at, mentions=mentions, **QUICK)


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"novel": 0}, ("0", "at least 1")),
        ({"novel": -3}, ("-3", "at least 1")),
        ({"novel": 7}, ("7 novel", "6 unlabelled")),
        ({"method": "magic"}, ("'magic'", "openldn-uda")),
        ({"backbone": "vgg"}, ("'vgg'", "resnet18")),
        ({"seed": -1}, ("-1",)),
        ({"epochs": 0}, ("0", "epochs")),
        ({"epochs": -2}, ("-2", "epochs")),
        ({"epochs": "nan"}, ("nan", "epochs")),
        ({"epochs": "inf"}, ("inf", "epochs")),
        ({"size": 0}, ("0 pixels", "--size")),
        ({"size": -8}, ("-8 pixels", "--size")),
        ({"size": 1_000_000}, ("1000000 pixels", "--size")),
    ],
    ids=str,
)
def test_options_of_a_folder(refused: Refusal, options: dict[str, Any], mentions: tuple[str, ...]) -> None:
    at = usual(refused.here / "photos")
    if refused.how == "python" and isinstance(options.get("epochs"), str):
        options = {"epochs": float(options["epochs"])}
    refused("train", at, mentions=mentions, **QUICK | options)


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"novel": 0}, ("0", "at least 1")),
        ({"novel": 2000}, ("2000 novel",)),
        ({"method": "magic"}, ("'magic'",)),
        ({"backbone": "vgg"}, ("'vgg'",)),
        ({"seed": -1}, ("-1",)),
        ({"epochs": 0}, ("0", "epochs")),
        ({"known": 1.0}, ("--known", "1.0")),
        ({"known": 0.1}, ("--known", "0.1")),
        ({"known": -1.0}, ("--known", "-1.0")),
        ({"known": "nan"}, ("--known", "nan")),
        ({"labelled": 0.0}, ("--labelled", "0.0")),
        ({"labelled": 1.5}, ("--labelled", "1.5")),
        ({"labelled": "nan"}, ("--labelled", "nan")),
    ],
    ids=str,
)
def test_options_of_a_named_set(refused: Refusal, options: dict[str, Any], mentions: tuple[str, ...]) -> None:
    if refused.how == "python":
        options = {name: float(v) if v == "nan" else v for name, v in options.items()}
    refused("train", "digits", mentions=mentions, **QUICK | options)


def test_a_named_set_that_is_not_there(refused: Refusal) -> None:
    mentions = (refused.here, "data_batch_1.bin", "--data-dir", "cifar-10-binary.tar.gz")
    refused("train", "cifar10", mentions=mentions, data_dir=refused.here, **QUICK)


@pytest.mark.parametrize("what", ["run", "folder", "file"])
def test_what_is_there_is_never_overwritten(refused: Refusal, trained: Path, what: str) -> None:
    at, out = usual(refused.here / "photos"), refused.here / "out"
    if what == "run":
        shutil.copytree(trained / "run", out)
    if what == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("five years of work")
    if what == "file":
        out.write_text("five years of work")
    refused("train", at, mentions=(out, "--out"), out=out, **QUICK)


def test_a_run_below_a_file(refused: Refusal) -> None:
    at, out = usual(refused.here / "photos"), refused.here / "notes.txt" / "run"
    out.parent.write_text("not a folder")
    refused("train", at, mentions=(out.parent,), out=out, **QUICK)


# ------------------------------------------------------------------------------------------ in Python


@pytest.mark.parametrize(
    ("X", "y", "mentions"),
    [
        (np.zeros((0, 8, 8), np.uint8), [], ("no images",)),
        ([], [], ("no images",)),
        (noise(6, 64), None, ("(6, 64)",)),
        (noise(6, 8, 8, 4), None, ("(6, 8, 8, 4)",)),
        (noise(6, 3, 8, 8), None, ("(6, 3, 8, 8)",)),
        (noise(2, 6, 8, 8, 3), None, ("(2, 6, 8, 8, 3)",)),
        (np.uint8(7), None, ("()",)),
        (None, None, ("()",)),
        (noise(6, 8, 8) / 255, None, ("float64", "uint8")),
        (np.full((6, 8, 8), np.nan), None, ("NaN",)),
        (np.full((6, 8, 8), np.inf, np.float32), None, ("infinite",)),
        (noise(6, 8, 8).astype(int), None, ("int64", "uint8")),
        (noise(6, 8, 8) > 99, None, ("bool", "uint8")),
        (noise(6, 8, 8).astype(str), None, ("<U3", "uint8")),
        (noise(6, 7, 7), None, ("7 x 7", "8")),
        ([noise(8, 8), noise(8, 9)] * 3, None, ("size",)),
        ([noise(8, 8)] * 5 + ["a.png"], None, ("size",)),
        ("a.png", None, ("'a.png'", "list")),
        (Path("photos"), None, ("'photos'", "list")),
        (["a.png"] * 6, None, ("a.png",)),
        ([7] * 6, None, ("(6,)",)),
    ],
    ids=[
        *(
            "empty array",
            "empty list",
            "flat",
            "four channels",
            "channels first",
            "five dimensions",
            "number",
        ),
        *("none", "float", "NaN", "infinite", "int64", "bool", "text", "tiny", "ragged"),
        *("mixed", "str", "Path", "missing files", "numbers"),
    ],
)
def test_images_in_python(here: Path, X: Any, y: Any, mentions: tuple[str, ...]) -> None:
    fit_is_refused(X, [0, 1, -1, -1, -1, -1] if y is None else y, mentions)


@pytest.mark.parametrize(
    ("y", "mentions"),
    [
        ([0, 1, -1], ("6 images", "3 labels")),
        ([0, 1, -1, -1, -1, -1, -1], ("6 images", "7 labels")),
        ([], ("6 images", "0 labels")),
        (None, ("()",)),
        ([[0], [1], [-1], [-1], [-1], [-1]], ("(6, 1)",)),
        ([0, 1, "cat", -1, -1, -1], ("int", "str")),
        ([0, 1, None, None, None, None], ("int", "None")),
        ([0.0, 1.0, -1.0, -1.0, -1.0, -1.0], ("float",)),
        (np.array([0, 1, np.nan, np.nan, np.nan, np.nan]), ("float",)),
        (np.array(["a", "b", np.nan, np.nan, np.nan, np.nan], object), ("float", "str")),
        ([True, False, True, False, True, False], ("bool",)),
        ([0, 1, -2, -1, -1, -1], ("-2",)),
        ([0, 0, -1, -1, -1, -1], ("one class", "0")),
        ([0, 1, 0, 1, 0, 1], ("every image is labelled",)),
        ([-1] * 6, ("no image is labelled",)),
        (["a", "a", "", None, "", ""], ("one class", "a")),
        (["a", "b"] * 3, ("every image is labelled",)),
        (["", None] * 3, ("no image is labelled",)),
        ([0, 1, 0, 1, 0, -1], ("2 novel", "1 unlabelled")),
    ],
    ids=str,
)
def test_labels_in_python(here: Path, y: Any, mentions: tuple[str, ...]) -> None:
    fit_is_refused(noise(6, 8, 8), y, mentions)


@pytest.mark.parametrize(
    ("choices", "mentions"),
    [
        ({"n_novel": 0}, ("0", "at least 1")),
        ({"n_novel": -1}, ("-1", "at least 1")),
        ({"n_novel": 5}, ("5 novel", "4 unlabelled")),
        ({"n_novel": 1.5}, ("1.5", "auto")),
        ({"n_novel": True}, ("True", "auto")),
        ({"n_novel": "many"}, ("'many'", "auto")),
        ({"n_novel": None}, ("None", "auto")),
        ({"closed_world": "magic"}, ("magic", "openldn-mixmatch")),
        ({"backbone": "vgg"}, ("'vgg'", "resnet18")),
        ({"preset": "slow"}, ("'slow'", "fast")),
        ({"device": "abacus"}, ("'abacus'", "cpu")),
        ({"seed": -1}, ("-1",)),
        ({"epochs": 0}, ("0", "epochs")),
    ],
    ids=str,
)
def test_choices_in_python(here: Path, choices: dict[str, Any], mentions: tuple[str, ...]) -> None:
    fit_is_refused(noise(6, 8, 8), [0, 1, -1, -1, -1, -1], mentions, **choices)


def fit_is_refused(X: Any, y: Any, mentions: tuple[str, ...], **choices: Any) -> None:
    usual = {"n_novel": 2, "closed_world": None, "epochs": 0.1, "out": "run"}
    with pytest.raises(openldn.UserError) as e:
        openldn.OpenLDN(**usual | choices).fit(X, y)
    check_sentence(str(e.value), mentions)
    assert tree(Path()) == {}


@pytest.mark.parametrize(
    ("X", "mentions"),
    [
        (noise(2, 8, 8, 3), ("grey", "colour")),
        (noise(2, 16, 16), ("16", "8 pixels")),
        (noise(8, 8), ("(8, 8)",)),
        (noise(2, 8, 8) / 255, ("float64",)),
        (["a.png"], ("a.png",)),
        ([], ("no images",)),
    ],
    ids=["colour", "size", "one image", "float", "missing file", "empty"],
)
@pytest.mark.parametrize("verb", ["predict", "predict_proba", "transform"])
def test_images_to_predict_in_python(trained: Path, X: Any, mentions: tuple[str, ...], verb: str) -> None:
    with pytest.raises(openldn.UserError) as e:
        getattr(openldn.load(trained / "run"), verb)(X)
    check_sentence(str(e.value), mentions)


# -------------------------------------------------------------------------- resume, predict, evaluate


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, a finished `run` on them, and a finished run on `digits`."""
    at = tmp_path_factory.mktemp("trained")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OpenLDNWarning)  # so short a run finds nothing
        openldn.train(usual(at / "photos"), out=at / "run", quiet=True, **QUICK | {"epochs": 2})
        openldn.train("digits", out=at / "digits", quiet=True, method="openldn", epochs=0.01)
    return at


@pytest.fixture
def copied(refused: Refusal, trained: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    return Path(shutil.copytree(trained / "run", refused.here / "run"))


def arguments(verb: str, run: Path, trained: Path) -> dict[str, Any]:
    """What a verb is given beside the run, so that only the run is at fault."""
    if verb == "predict":
        return {"given": (run, trained / "photos"), "out": run.parent / "new.csv"}
    if verb == "evaluate":
        truth = trained / "truth.csv"
        truth.write_text("image,label\nunlabelled/0.png,cat\nunlabelled/1.png,bird\n")
        return {"given": (run,), "truth": truth}
    return {"given": (run,)}


VERBS = pytest.mark.parametrize("verb", ["resume", "predict", "evaluate"])


def refused_run(refused: Refusal, verb: str, run: Path, trained: Path, mentions: tuple[Any, ...]) -> None:
    told = arguments(verb, run, trained)
    refused(verb, *told.pop("given"), mentions=mentions, **told)


@VERBS
@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "images"])
def test_what_is_not_a_run(refused: Refusal, trained: Path, verb: str, what: str) -> None:
    run = refused.here / "run"
    if what == "a file":
        run.write_text("not a run")
    if what == "an empty folder":
        run.mkdir()
    if what == "images":
        usual(run)
    refused_run(refused, verb, run, trained, (run, "folder"))


def without(*keys: str) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({k: v for k, v in json.loads(data).items() if k not in keys}).encode()


@VERBS
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff\xfe" + data,
        lambda data: b"[]",
        lambda data: b"{}",
        lambda data: b'{"format": 2}',
        without("options"),
        without("data"),
    ],
    ids=["empty", "cut", "not UTF-8", "list", "nothing", "format only", "no options", "no data"],
)
def test_damaged_configurations(
    refused: Refusal, trained: Path, copied: Path, verb: str, damage: Callable[[bytes], bytes]
) -> None:
    file = copied / "config.json"
    file.write_bytes(damage(file.read_bytes()))
    refused_run(refused, verb, copied, trained, (file,))


@VERBS
@pytest.mark.parametrize("version", [0, 1, 99, "two", None])
def test_runs_of_another_version(
    refused: Refusal, trained: Path, copied: Path, verb: str, version: object
) -> None:
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": version}))
    refused_run(refused, verb, copied, trained, (copied, version, "version"))


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_incomplete_runs(refused: Refusal, trained: Path, copied: Path, verb: str) -> None:
    (copied / "model.safetensors").unlink()
    refused_run(refused, verb, copied, trained, (copied, "openldn resume"))


def test_incomplete_runs_go_on(here: Path, trained: Path) -> None:
    """And end where they would have ended."""
    run = Path(shutil.copytree(trained / "run", here / "run"))
    (run / "model.safetensors").unlink()
    (run / "predictions.csv").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OpenLDNWarning)
        openldn.resume(run, quiet=True)
    assert (run / "predictions.csv").read_bytes() == (trained / "run" / "predictions.csv").read_bytes()
    ended, expected = load_file(run / "model.safetensors"), load_file(trained / "run" / "model.safetensors")
    assert ended.keys() == expected.keys()
    assert all(torch.equal(ended[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "what", ["images gone", "image gone", "image changed", "label changed", "checkpoint"]
)
def test_incomplete_runs_that_cannot_go_on(refused: Refusal, copied: Path, what: str) -> None:
    (copied / "model.safetensors").unlink()
    at, config = usual(refused.here / "photos"), copied / "config.json"
    record = json.loads(config.read_text())
    record["data"]["path"] = str(at)
    config.write_text(json.dumps(record))
    mentions: tuple[Any, ...] = (copied,)
    if what == "images gone":
        at.rename(refused.here / "elsewhere")
        mentions = (at,)
    if what == "image gone":
        (at / "unlabelled" / "0.png").unlink()
    if what == "image changed":
        Image.fromarray(noise(8, 8, seed=999)).save(at / "cat" / "0.png")
    if what == "label changed":
        (at / "cat" / "0.png").rename(at / "dog" / "00.png")
    if what == "checkpoint":
        [file] = (copied / "checkpoints").iterdir()
        file.write_bytes(file.read_bytes()[:-100])
        mentions = (file, "damaged")
    refused("resume", copied, mentions=mentions)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the head": lambda data: data[:100],
    "cut at the end": lambda data: data[:-1],
    "text": lambda data: b"This is no model.\n" * 99,
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@VERBS
def test_damaged_models(refused: Refusal, trained: Path, verb: str, damage: str) -> None:
    run = Path(shutil.copytree(trained / ("digits" if verb == "evaluate" else "run"), refused.here / "run"))
    file = run / "model.safetensors"
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    if verb == "evaluate":
        refused("evaluate", run, mentions=(file, "damaged"))
    else:
        refused_run(refused, verb, run, trained, (file, "damaged"))


def test_loading_damaged_models(here: Path, trained: Path) -> None:
    run = Path(shutil.copytree(trained / "run", here / "run"))
    file = run / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(openldn.UserError) as e:
        openldn.load(run)
    check_sentence(str(e.value), (file, "damaged"))


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
@pytest.mark.parametrize("text", [None, "", "[", "{}", '{"known": 1, "novel": 2}'])
def test_damaged_class_names(
    refused: Refusal, trained: Path, copied: Path, verb: str, text: str | None
) -> None:
    file = copied / "classes.json"
    file.unlink() if text is None else file.write_text(text)
    refused_run(refused, verb, copied, trained, (copied,))


@pytest.mark.parametrize("text", [None, "", "image,label\nunlabelled/0.png,zebra\n"])
def test_damaged_predictions(refused: Refusal, trained: Path, copied: Path, text: str | None) -> None:
    file = copied / "predictions.csv"
    file.unlink() if text is None else file.write_text(text)
    refused_run(refused, "evaluate", copied, trained, ("predictions.csv",))


# ------------------------------------------------------------------- what predict and evaluate are given


@pytest.mark.parametrize("what", ["nothing", "empty folder", "unreadable image", "text file"])
def test_nothing_to_predict(refused: Refusal, copied: Path, what: str) -> None:
    at = refused.here / "new"
    mentions: tuple[Any, ...] = (at, "image")
    if what == "empty folder":
        at.mkdir()
        (at / "notes.txt").write_text("no image")
    if what == "unreadable image":
        at.mkdir()
        (at / "cut.jpg").write_bytes(UNREADABLE["cut.jpg"])
        mentions = (at / "cut.jpg", "truncated")
    if what == "text file":
        at.write_text("no image")
        mentions = (at, "not an image")
    refused("predict", copied, at, mentions=mentions, out=refused.here / "new.csv")


def test_predictions_never_overwrite(refused: Refusal, trained: Path, copied: Path) -> None:
    out = refused.here / "new.csv"
    out.write_text("image,label\nmine,all mine\n")
    refused("predict", copied, trained / "photos", mentions=(out, "--out"), out=out)
    refused("predict", copied, trained / "photos", mentions=(copied, "--out"), out=copied)


def test_predictions_in_a_folder_that_is_not_there(refused: Refusal, trained: Path, copied: Path) -> None:
    out = refused.here / "elsewhere" / "new.csv"
    refused("predict", copied, trained / "photos", mentions=(out.parent,), out=out)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        (None, ("there is no",)),
        ("image,label\nunlabelled/99.png,cat\n", ("unlabelled/99.png", "unlabelled/0.png")),
        ("image,label\ncat/0.png,cat\n", ("cat/0.png", "unlabelled")),
        ("image,label\nunlabelled/0.png,cat\nunlabelled/0.png,dog\n", ("unlabelled/0.png",)),
        ("image,label\n", ("unlabelled",)),
        ("image,label\nunlabelled/0.png,\n", ("unlabelled",)),
        ("image,class\nunlabelled/0.png,cat\n", ("'label'",)),
        (b"image,label\nunlabelled/0.png,caf\xe9\n", ("UTF-8",)),
    ],
    ids=["missing", "unknown", "labelled", "disagreeing", "empty", "no labels", "no column", "latin-1"],
)
def test_truth(refused: Refusal, copied: Path, text: str | bytes | None, mentions: tuple[str, ...]) -> None:
    file = refused.here / "truth.csv"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    refused("evaluate", copied, mentions=(file, *mentions), truth=file)


def test_folder_runs_need_the_truth(refused: Refusal, copied: Path) -> None:
    refused("evaluate", copied, mentions=(copied, "--truth"))

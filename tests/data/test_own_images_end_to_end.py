"""The user's own images through training and prediction."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from test_own_images import noise, save, spoil

import openldn
import toy
from openldn.cli import main
from openldn.data import reading
from openldn.errors import OpenLDNWarning
from openldn.run import write_csv


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as f:
        return [*csv.DictReader(f)]


@pytest.mark.filterwarnings("always::openldn.errors.OpenLDNWarning")
@pytest.mark.parametrize(
    ("per_class", "n_broken"), [(30, 0), pytest.param(500, 43, marks=pytest.mark.slow)], ids=["120", "2000"]
)
def test_trains_predicts_and_reports_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], per_class: int, n_broken: int
) -> None:
    """Formats mixed, some files broken in every way and more of them cut off, through the command line."""
    data, suffixes = tmp_path / "photos", ("png", "jpg", "webp", "bmp", "tif", "gif")
    pictures, labels = toy.pictures(4, per_class)
    for i, (picture, k) in enumerate(zip(pictures, labels.tolist(), strict=True)):
        folder = f"class {k}" if k < 2 and i % 2 else "unlabelled"
        path = data / folder / f"{i}.{suffixes[i % len(suffixes)]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).resize((16 + i % 5, 16)).save(path)
    raw = {"1.dng", "2.svg"}
    bad = {*spoil(data / "unlabelled")}
    for name in raw:
        (data / "unlabelled" / name).touch()
    for i in range(n_broken):
        whole = save(data / "unlabelled" / f"cut {i}.png", seed=i, size=30)
        whole.write_bytes(whole.read_bytes()[: 100 + i])
        bad.add(whole.name)
    run, out = tmp_path / "run", tmp_path / "new.csv"
    main(["train", str(data), "--novel", "2", "--epochs", "1", "--out", str(run), "--method", "openldn"])
    total, said = 4 * per_class + 1 + len(bad) + len(raw), " ".join(capsys.readouterr().err.split())
    assert f"warning: {len(bad)} of {total} images cannot be" in said
    assert f"warning: {len(raw)} of {total} images cannot be" in said
    bad |= raw
    listed = rows(run / "skipped.csv")
    assert {row["image"] for row in listed} == {f"unlabelled/{name}" for name in bad}
    assert all(row["reason"] for row in listed)
    main(["predict", str(run), str(data / "unlabelled"), "--out", str(out)])
    said = " ".join(capsys.readouterr().err.split())
    assert f"warning: {len(bad - raw)} of " in said
    assert f"warning: {len(raw)} of " in said
    n_good = sum(1 for path in (data / "unlabelled").iterdir() if path.name not in bad)
    assert len(rows(out)) == len(rows(run / "predictions.csv")) == n_good
    assert {row["image"] for row in rows(tmp_path / "new.skipped.csv")} == bad


def test_a_split_can_be_given_back(tmp_path: Path) -> None:
    """To another seed, which would have drawn other images."""
    quick = {"method": "openldn", "epochs": 0.05, "quiet": True, "images": 200}
    first = openldn.train("digits", out=tmp_path / "1", seed=0, **quick)
    split = first.path / "split.json"
    second = openldn.train("digits", out=tmp_path / "2", seed=1, split=str(split), **quick)
    other = openldn.train("digits", out=tmp_path / "3", seed=1, **quick)
    assert json.loads((second.path / "split.json").read_text()) == json.loads(split.read_text())
    assert json.loads((other.path / "split.json").read_text()) != json.loads(split.read_text())
    # The file may be gone later: the run has its own.
    split.unlink()
    assert openldn.evaluate(second)["protocols"]


def colourful(path: Path, hue: int, seed: int, size: int = 40) -> None:
    """Noise that is bright in one channel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(size, size, 3, seed=seed) // 3
    pixels[..., hue] += 150
    Image.fromarray(pixels).save(path)


@pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
def test_colour_images_are_the_same_in_training_and_in_prediction(tmp_path: Path) -> None:
    for i in range(60):
        colourful(tmp_path / "photos" / ("a", "b", "unlabelled")[i % 3] / f"{i}.png", i % 3, seed=i)
    run = openldn.train(
        tmp_path / "photos", novel=1, epochs=2, method="openldn", out=tmp_path / "run", quiet=True
    )
    openldn.predict(run, tmp_path / "photos/unlabelled", tmp_path / "new.csv")
    before = {row["image"].removeprefix("unlabelled/"): row for row in rows(run.path / "predictions.csv")}
    for row in rows(tmp_path / "new.csv"):
        assert row["confidence"] == before[row["image"]]["confidence"]
    paths = [str(path) for path in sorted((tmp_path / "photos/unlabelled").iterdir())]
    (new,) = reading.new_images(paths, size=32, channels=3)
    expected = [
        np.asarray(ImageOps.fit(Image.open(path), (32, 32), Image.Resampling.BICUBIC)) for path in paths
    ]
    assert np.array_equal(new.images.permute(0, 2, 3, 1).numpy(), np.stack(expected))


def test_training_on_the_fly_equals_training_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.write_folder(tmp_path / "photos")
    quick = {"novel": 2, "epochs": 3, "method": "openldn", "quiet": True}
    stored = openldn.train(tmp_path / "photos", out=tmp_path / "1", **quick)
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.warns(OpenLDNWarning, match="room"):
        late = openldn.train(tmp_path / "photos", out=tmp_path / "2", **quick)
    one, two = (load_file(run.path / "model.safetensors") for run in (stored, late))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_any_name_survives_a_csv_file(tmp_path: Path) -> None:
    odd = ["a\rb.png", "a\nb.png", 'a"b.png', "a,b.png", " a ", "a\r\nb"]
    write_csv(tmp_path / "x.csv", ("image",), [(name,) for name in odd])
    assert [row["image"] for row in rows(tmp_path / "x.csv")] == odd

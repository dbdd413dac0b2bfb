"""Minutes, or real data: `make test-slow`, with OPENLDN_DATA at the folder of cifar10, mnist and the like."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openldn
from openldn.data import sources

pytestmark = pytest.mark.slow


def needs(name: str) -> pytest.MarkDecorator:
    reason = f"{name} is not at {sources.home(None)}; set OPENLDN_DATA"
    return pytest.mark.skipif(sources.find(name, None) is None, reason=reason)


needs_cifar10 = needs("cifar10")


@needs_cifar10
def test_cifar10_as_published() -> None:
    whole = sources.read_named("cifar10", None)
    assert whole.train.images.shape == (50_000, 3, 32, 32)
    assert whole.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(whole.train.labels).tolist() == [5_000] * 10
    assert np.bincount(whole.test.labels).tolist() == [1_000] * 10
    assert whole.train.labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert whole.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert whole.train.images[0, :, 0, 0].tolist() == [59, 62, 63]


@needs("mnist")
def test_mnist_as_published() -> None:
    whole = sources.read_named("mnist", None)
    assert whole.train.images.shape == (60_000, 1, 28, 28)
    assert whole.test.images.shape == (10_000, 1, 28, 28)
    counts = [5_923, 6_742, 5_958, 6_131, 5_842, 5_421, 5_918, 6_265, 5_851, 5_949]
    assert np.bincount(whole.train.labels).tolist() == counts
    assert np.bincount(whole.test.labels).tolist() == [
        980,
        1_135,
        1_032,
        1_010,
        982,
        892,
        958,
        1_028,
        974,
        1_009,
    ]
    assert whole.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert whole.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert whole.train.images[0, 0, 5, 12:16].tolist() == [3, 18, 18, 18]  # where the five's stroke begins
    assert not whole.flip


@needs("fashion-mnist")
def test_fashion_mnist_as_published() -> None:
    whole = sources.read_named("fashion-mnist", None)
    assert whole.train.images.shape == (60_000, 1, 28, 28)
    assert whole.test.images.shape == (10_000, 1, 28, 28)
    assert np.bincount(whole.train.labels).tolist() == [6_000] * 10
    assert np.bincount(whole.test.labels).tolist() == [1_000] * 10
    assert [whole.classes[k] for k in whole.train.labels[:3]] == ["Ankle boot", "T-shirt/top", "T-shirt/top"]
    assert [whole.classes[k] for k in whole.test.labels[:3]] == ["Ankle boot", "Pullover", "Trouser"]
    assert whole.train.images[0, 0, 3, 12:17].tolist() == [1, 0, 0, 13, 73]  # the boot's upper edge
    assert whole.flip


@needs_cifar10
@pytest.mark.parametrize(("preset", "images"), [("fast", 3_000), ("paper", 300)])
def test_an_epoch_of_stage_1_on_cifar10(preset: Any, images: int, tmp_path: Path) -> None:
    """On a few images of each class; losses and diagnostics are plausible, whatever the accuracy."""
    run = openldn.train(
        "cifar10", method="openldn", preset=preset, images=images, epochs=1, out=tmp_path / "run", quiet=True
    )
    lines = [line for line in run.metrics() if "ce" in line]
    assert lines
    for line in lines:
        assert 0 < line["ce"] < 5
        assert 0 <= line["pair"] < 1
        assert -math.log(10) - 1e-4 <= line["entropy"] <= 0
        assert 0 < line["omega_gradient"] < 1
        assert 0 <= line["similarity_mean"] <= 1
    if preset == "fast":  # a few dozen steps
        first, last = (np.mean([line["ce"] for line in part]) for part in (lines[:5], lines[-5:]))
        assert last < 0.9 * first
        assert run.metrics()[-1]["protocols"]["anchored"]["known"] > 20  # chance is 10


def test_the_readmes_python_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    [section] = re.findall(r"^## From Python\n(.*?)(?=^## |\Z)", readme, re.DOTALL | re.MULTILINE)
    example = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "digits-model" / "model.safetensors").exists()
    assert "[0 1 2 3 4 5 6 7 8 9]" in capsys.readouterr().out

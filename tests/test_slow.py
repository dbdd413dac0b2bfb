"""Minutes, or real data: `make test-slow`, with OPENLDN_DATA at the folder of cifar10, mnist and the like."""

import math
import os
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
    assert whole.images.shape == (50_000, 3, 32, 32)
    assert whole.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(whole.labels).tolist() == [5_000] * 10
    assert np.bincount(whole.test_labels).tolist() == [1_000] * 10
    assert whole.labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert whole.test_labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert whole.images[0, :, 0, 0].tolist() == [59, 62, 63]


@needs("mnist")
def test_mnist_as_published() -> None:
    whole = sources.read_named("mnist", None)
    assert whole.images.shape == (60_000, 1, 28, 28)
    assert whole.test_images.shape == (10_000, 1, 28, 28)
    counts = [5_923, 6_742, 5_958, 6_131, 5_842, 5_421, 5_918, 6_265, 5_851, 5_949]
    assert np.bincount(whole.labels).tolist() == counts
    assert np.bincount(whole.test_labels).tolist() == [
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
    assert whole.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert whole.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert whole.images[0, 0, 5, 12:16].tolist() == [3, 18, 18, 18]  # where the five's stroke begins
    assert not whole.flip


@needs("fashion-mnist")
def test_fashion_mnist_as_published() -> None:
    whole = sources.read_named("fashion-mnist", None)
    assert whole.images.shape == (60_000, 1, 28, 28)
    assert whole.test_images.shape == (10_000, 1, 28, 28)
    assert np.bincount(whole.labels).tolist() == [6_000] * 10
    assert np.bincount(whole.test_labels).tolist() == [1_000] * 10
    assert [whole.classes[k] for k in whole.labels[:3]] == ["Ankle boot", "T-shirt/top", "T-shirt/top"]
    assert [whole.classes[k] for k in whole.test_labels[:3]] == ["Ankle boot", "Pullover", "Trouser"]
    assert whole.images[0, 0, 3, 12:17].tolist() == [1, 0, 0, 13, 73]  # the boot's upper edge
    assert whole.flip


@needs_cifar10
@pytest.mark.parametrize(("preset", "images"), [("fast", 3_000), ("paper", 300)])
def test_an_epoch_of_stage_1_on_cifar10(preset: Any, images: int, tmp_path: Path) -> None:
    """On a few images of each class; the figures are sane, whatever the accuracy."""
    run = openldn.train(
        "cifar10", method="openldn", preset=preset, images=images, epochs=1, out=tmp_path / "run", quiet=True
    )
    for line in run.metrics():
        if "ce" in line:
            assert 0 < line["ce"] < 5
            assert 0 <= line["pair"] < 1
            assert -math.log(10) - 1e-4 <= line["entropy"] <= 0
            assert 0 < line["omega_gradient"] < 1
            assert 0 <= line["similarity_mean"] <= 1
    assert run.metrics()[-1]["protocols"]["openldn"]["all"] > 10


def test_the_readmes_python_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        exec(compile(example, "README.md", "exec"), {})
    finally:
        os.chdir(here)
    assert (tmp_path / "digits-model" / "model.safetensors").exists()
    assert "[0 1 2 3 4 5 6 7 8 9]" in capsys.readouterr().out

"""Minutes, or real data: `make test-slow`, with OPENLDN_DATA pointing at the folder that holds cifar10."""

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openldn
from openldn.data import sources
from openldn.data.sources import cifar10

pytestmark = pytest.mark.slow

needs_cifar10 = pytest.mark.skipif(
    not cifar10.present(sources.find("cifar10", None)),
    reason=f"CIFAR-10 is not at {sources.home(None)}; set OPENLDN_DATA",
)


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

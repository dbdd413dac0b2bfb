"""Floating-point precision: measured on the CPU, once."""

import pytest
import torch

from openldn import device


@pytest.mark.parametrize(("half", "expected"), [(2.0, "bfloat16"), (1.1, "float32"), (0.01, "float32")])
def test_precision_is_the_faster_one_by_measurement(
    half: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "bfloat16_gain", lambda: half)
    assert device.precision(torch.device("cpu")) == expected
    assert device.precision(torch.device("mps")) == "float32"


def test_precision_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or two runs with one seed could differ."""
    found = device.bfloat16_gain()
    assert found > 0
    monkeypatch.setattr(device.time, "thread_time", lambda: 0.0)
    assert device.bfloat16_gain() == found

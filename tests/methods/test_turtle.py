"""TURTLE with labels: its loss by plain loops, labels that stay, and features of Gaussian classes."""

import math

import numpy as np
import pytest
import torch

from openldn.methods.turtle import Settings, Turtle, clamped, turtle_loss
from toy import as_outputs as outputs
from toy import gaussians, on_features


@pytest.mark.parametrize("labels", [[1, -1, 0, -1, 2], [-1] * 5])
def test_the_loss_by_loops(labels: list[int]) -> None:
    g = torch.Generator().manual_seed(0)
    logits, agreed = (torch.randn(5, 3, generator=g) for _ in range(2))
    agreed = agreed.log_softmax(dim=1)
    p = logits.softmax(dim=1).double().tolist()
    tau = [[float(c == y) for c in range(3)] if y >= 0 else p[i] for i, y in enumerate(labels)]
    cross = -sum(t * float(a) for row, other in zip(tau, agreed, strict=True) for t, a in zip(row, other))
    shares = [sum(row[c] for row in tau) / 5 for c in range(3)]
    expected = cross / 5 + 1.5 * sum(s * math.log(s) for s in shares)
    given = [i for i, y in enumerate(labels) if y >= 0]
    if given:
        expected -= sum(math.log(p[i][labels[i]]) for i in given) / len(given)
    assert float(turtle_loss(logits, agreed, torch.tensor(labels), 1.5)) == pytest.approx(expected, rel=1e-5)


def test_labels_are_kept_in_the_labelling() -> None:
    tau = torch.tensor([[0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])
    found = clamped(tau, torch.tensor([0, -1, 1]))
    assert torch.equal(found, torch.tensor([[1.0, 0.0], [0.3, 0.7], [0.0, 1.0]]))


@pytest.mark.parametrize("labelled", [10, 1])
def test_gaussian_classes_are_found(labelled: int) -> None:
    z, y = gaussians([30] * 5)
    given = on_features(z, y, [labelled] * 3, 2)
    made = Turtle(Settings(steps=60, batch=100))
    made.fit(outputs, given, seed=0)
    p = made.probabilities(outputs(given.images))
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
    found = p.argmax(dim=1).numpy()
    known = y < 3
    assert float(np.mean(found[known] == y[known])) > 0.95
    assert len({*zip(y[~known].tolist(), found[~known].tolist(), strict=True)}) <= 4
    again = Turtle(Settings(steps=60, batch=100))
    again.fit(outputs, given, seed=0)
    assert torch.equal(again.probabilities(outputs(given.images)), p)

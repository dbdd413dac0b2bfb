"""PIM: its loss by plain loops, what is held out, and features of Gaussian classes."""

import math

import numpy as np
import pytest
import torch

from openldn.methods import pim
from openldn.methods.pim import PIM, Settings, hold_out, pim_loss
from toy import as_outputs as outputs
from toy import gaussians, on_features


@pytest.mark.parametrize("weight", [0.0, 2.5])
def test_the_loss_by_loops(weight: float) -> None:
    log_p = (2 * torch.randn(7, 3, generator=torch.Generator().manual_seed(0))).log_softmax(dim=1)
    labels = torch.tensor([1, -1, 0, -1, -1, 2, -1])
    rows = log_p.double().tolist()
    given = [i for i, y in enumerate(labels.tolist()) if y >= 0]
    free = [i for i in range(7) if i not in given]
    supervised = -sum(rows[i][int(labels[i])] for i in given) / len(given)
    conditional = -sum(math.exp(v) * v for i in free for v in rows[i]) / len(free)
    shares = [sum(math.exp(row[c]) for row in rows) / 7 for c in range(3)]
    marginal = -sum(s * math.log(s) for s in shares)
    found = pim_loss(log_p, labels, labels >= 0, weight)
    assert float(found) == pytest.approx(supervised + conditional - weight * marginal, rel=1e-5)


def test_a_share_of_the_labels_is_held_out_and_every_class_keeps_one() -> None:
    labels = torch.tensor([0] * 20 + [-1] * 7 + [1] * 2 + [2])
    kept, rows = hold_out(labels, 3, seed=0)
    assert [int((labels[rows] == k).sum()) for k in range(3)] == [4, 0, 0]
    assert {*kept[rows].tolist()} == {-1}
    others = [i for i in range(len(labels)) if i not in rows.tolist()]
    assert torch.equal(kept[others], labels[others])
    _, most = hold_out(labels, 3, seed=0, share=1.0)
    assert [int((labels[most] == k).sum()) for k in range(3)] == [19, 1, 0]
    assert hold_out(labels, 3, seed=1)[1].tolist() != rows.tolist()


@pytest.mark.parametrize("labelled", [10, 1])
def test_gaussian_classes_are_found(labelled: int) -> None:
    z, y = gaussians([30] * 5)
    given = on_features(z, y, [labelled] * 3, 2)
    made = PIM(Settings(steps=40))
    made.fit(outputs, given, seed=0)
    p = made.probabilities(outputs(given.images))
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
    found = p.argmax(dim=1).numpy()
    known = y < 3
    assert float(np.mean(found[known] == y[known])) > 0.95
    assert len({*zip(y[~known].tolist(), found[~known].tolist(), strict=True)}) <= 4
    assert made.fits(made.state, 5, 3, 2)
    assert not made.fits(made.state, 5, 3, 3)


def test_the_weight_of_class_shares_is_the_best_on_labels_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that is right with one of the candidates alone; that one fits all labels afterwards."""
    z, y = gaussians([20] * 4)
    given = on_features(z, y, [10, 10], 2)
    asked = list[tuple[float, int]]()

    def fitted(self: PIM, z: torch.Tensor, labels: torch.Tensor, *rest: float) -> dict[str, torch.Tensor]:
        weight = rest[2]
        asked.append((weight, int((labels >= 0).sum())))
        sign = 1 if weight == 2.0 else -1
        means = torch.stack([z[labels == k].mean(dim=0) for k in range(2)])
        return {"weight": torch.cat([sign * means, torch.zeros(2, z.shape[1])]), "bias": torch.zeros(4)}

    monkeypatch.setattr(PIM, "fitted", fitted)
    PIM().fit(outputs, given, seed=0)
    assert asked == [*((weight, 16) for weight in pim.LAMBDAS), (2.0, 20)]
    asked.clear()
    PIM(Settings(marginal_weight=0.7)).fit(outputs, given, seed=0)
    assert asked == [(0.7, 20)]

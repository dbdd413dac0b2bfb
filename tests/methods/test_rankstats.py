"""RankStats: pairs by their strongest features, and their loss across views."""

import math

import numpy as np
import pytest
import torch

from openldn.methods.rankstats import pair_loss, same_top_k


def test_top_k_features_are_compared_as_sets() -> None:
    z = torch.tensor([[5.0, 4, 3, 0, 1], [3.0, 5, 4, 1, 0], [5.0, 4, 0, 3, 1], [0.0, 1, 2, 3, 4]])
    expected = [[float({*np.argsort(-a)[:3]} == {*np.argsort(-b)[:3]}) for b in z.numpy()] for a in z.numpy()]
    assert same_top_k(z, k=3).tolist() == expected
    assert expected[0] == [1, 1, 0, 0]  # the order does not matter
    assert same_top_k(z, k=50).tolist() == [[1.0] * 4] * 4  # all features are compared


def test_pairs_are_formed_across_views() -> None:
    torch.manual_seed(0)
    p, q = torch.rand(3, 4).softmax(1), torch.rand(3, 4).softmax(1)
    s = torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]])
    total = 0.0
    for i in range(3):
        for j in range(3):
            together = float(p[i] @ q[j])
            total -= math.log(together if s[i, j] else 1 - together)
    assert float(pair_loss(p, q, s)) == pytest.approx(total / 9, rel=1e-5)

"""The pair-similarity network."""

import pytest
import torch

from openldn.nets.similarity import PairSimilarity


def test_similarity_splits_its_first_layer() -> None:
    """Against the plain form: every pair concatenated."""
    torch.manual_seed(0)
    net, z = PairSimilarity(5, hidden=7).requires_grad_(False), torch.randn(4, 5)
    for i in range(4):
        for j in range(4):
            pair = torch.cat([z[i], z[j]])
            expected = torch.sigmoid(net.out(torch.relu(net.hidden(pair))))
            assert float(net(z)[i, j]) == pytest.approx(float(expected), abs=1e-6)

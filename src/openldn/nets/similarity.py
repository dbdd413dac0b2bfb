"""f_Ω, the pair-similarity network."""

import torch
from torch import Tensor, nn


class PairSimilarity(nn.Module):
    """Features of n images -> similarity in [0, 1] of every ordered pair.  (n, d) -> (n, n)

    One hidden layer of 100 units on the pair [z_i, z_j]. That layer splits as W1 z_i + W2 z_j, so n
    projections and a broadcast sum do the work, and the (n, n, 2d) tensor of pairs is never built.
    """

    def __init__(self, d: int, hidden: int = 100):
        super().__init__()
        self.hidden = nn.Linear(2 * d, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, z: Tensor) -> Tensor:
        w1, w2 = self.hidden.weight.chunk(2, dim=1)
        pairs = (z @ w1.T + self.hidden.bias)[:, None] + (z @ w2.T)[None, :]  # (n, n, hidden)
        return torch.sigmoid(self.out(torch.relu(pairs))).squeeze(-1)

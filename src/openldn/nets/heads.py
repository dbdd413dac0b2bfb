"""Heads: features z (n, d) -> logits (n, C). The softmax of the logits is what a system predicts.

A system with a head of its own defines it in its file.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """Base of all heads but the linear one: number of features in, number of logits out."""

    def __init__(self, d: int, n_outputs: int):
        super().__init__()
        self.in_features, self.out_features = d, n_outputs

    def features(self, z: Tensor) -> Tensor:
        """The features that logits are computed from and that are clustered; by default the backbone's."""
        return z


class Linear(nn.Linear):
    """A linear layer."""

    def __init__(self, d: int, n_outputs: int, n_known: int = 0):
        super().__init__(d, n_outputs)

    def features(self, z: Tensor) -> Tensor:
        """The backbone's."""
        return z


class Cosine(Head):
    """A prototype for each class; logits are cosine similarities divided by a temperature.

    Some systems normalise prototypes after each step. Here their length does not matter.
    """

    temperature = 0.1

    def __init__(self, d: int, n_outputs: int, n_known: int = 0):
        super().__init__(d, n_outputs)
        self.weight = nn.Parameter(F.normalize(torch.randn(n_outputs, d), dim=1))

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=1), F.normalize(self.weight, dim=1)) / self.temperature


HeadBuilder = Callable[[int, int, int], Head | Linear]  # features, outputs, known classes -> head


def projector(d: int, hidden: int, width: int) -> nn.Sequential:
    """An MLP with one hidden layer, from d to `width` features."""
    return nn.Sequential(
        nn.Linear(d, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
    )

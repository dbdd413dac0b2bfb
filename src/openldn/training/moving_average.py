"""Exponential moving average (EMA) of a network."""

import copy

import torch

from openldn.nets.classifier import Classifier


class MovingAverage:
    """EMA of every floating-point entry of a network's state, running statistics of BatchNorm included.

    By hand, since torch's `AveragedModel` copies running statistics instead of averaging them.
    """

    def __init__(self, network: Classifier):
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, network: Classifier, step: int, horizon: float) -> None:
        """After step number `step` (from 0): decay 1 - 1/horizon, but a plain mean until `horizon` steps."""
        share = max(1 / (step + 1), 1 / max(horizon, 1.0))
        source = network.state_dict()
        for name, average in self.network.state_dict().items():
            if average.is_floating_point():
                average.lerp_(source[name], share)
            else:
                average.copy_(source[name])

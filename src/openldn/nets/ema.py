"""A network that is the moving average of another."""

import copy

import torch

from openldn.nets.classifier import Classifier


class MovingAverage:
    """Averages every floating-point entry of a network's state, BatchNorm's statistics included.

    `horizon` is how many steps are remembered (decay 1 - 1/horizon); before that many have been made, it
    is the plain mean of all so far.
    """

    def __init__(self, network: Classifier, horizon: float):
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.horizon = max(horizon, 1.0)

    @torch.no_grad()
    def update(self, network: Classifier, step: int) -> None:
        """Moves towards `network` after its step number `step` (from 0)."""
        share = max(1 / (step + 1), 1 / self.horizon)
        source = network.state_dict()
        for name, average in self.network.state_dict().items():
            if average.is_floating_point():
                average.lerp_(source[name], share)
            else:
                average.copy_(source[name])

"""What training costs, counted as it happens, in image passes: 1 forward, 2 backward."""

from contextvars import ContextVar

import torch
from torch import nn


class Passes:
    """Context manager that counts image passes through classifiers: forward 1, backward 2, forward-mode 2.

    An image that is downsized first counts by its area. Nested counters do not add to the outer one.
    """

    _open: ContextVar["Passes | None"] = ContextVar("passes", default=None)

    def __init__(self, total: float = 0.0):
        self.total = total

    def __enter__(self) -> "Passes":
        self._before = self._open.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.reset(self._before)

    @classmethod
    def count(cls, n: float) -> None:
        """Adds `n` to the innermost counter, if there is one."""
        if (counter := cls._open.get()) is not None:
            counter.total += n


def backward_cost(backbone: nn.Module, channels: int, size: int) -> float:
    """FLOPs of the backward pass in units of the forward pass, as torch counts them.

    2 by convention where everything is trained; less where early layers are frozen.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imported late: it is slow to load

    training = [m for m in backbone.modules() if m.training]  # frozen BatchNorm is not
    image = torch.zeros(1, channels, size, size, device=next(backbone.parameters()).device)
    with torch.enable_grad(), FlopCounterMode(display=False) as flops:
        z = backbone.eval()(image)
        forward = flops.get_total_flops()
        torch.autograd.grad(z.sum(), [p for p in backbone.parameters() if p.requires_grad], allow_unused=True)
    for m in training:
        m.training = True
    return float((flops.get_total_flops() - forward) / forward)

"""What turns gradients into steps.

By hand, for two reasons: torch's optimisers import a compiler that nobody here uses, over a second at each
start; and none of them steps along the principal directions of a filter bank, as Muon does.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from openldn import config


class Optimiser(Protocol):
    """Parameters, and what is remembered of their gradients."""

    def zero_grad(self) -> None: ...
    def step(self, lr: float) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def optimiser(name: config.Optimiser, network: nn.Module) -> Optimiser:
    """One by name, for all of a network's parameters that are trained."""
    return Muon(network) if name == "muon" else Adam([*network.parameters()])


class Adam:
    """Adam (Kingma and Ba, 2015), as torch has it; what is not trained is left out."""

    def __init__(self, params: Sequence[Tensor]):
        self.params = [p for p in params if p.requires_grad]
        self.m, self.v = ([torch.zeros_like(p) for p in self.params] for _ in range(2))
        self.steps = 0

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """One step; a parameter without a gradient stays where it is."""
        self.steps += 1
        moved = [(p, p.grad, m, v) for p, m, v in zip(self.params, self.m, self.v, strict=True)]
        moved = [row for row in moved if row[1] is not None]
        if not moved:
            return
        params, g, m, v = (list(column) for column in zip(*moved, strict=True))
        torch._foreach_lerp_(m, g, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, g, g, 1 - beta2)
        scale = torch._foreach_sqrt(v)
        torch._foreach_div_(scale, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(scale, eps)
        torch._foreach_addcdiv_(params, m, scale, -lr / (1 - beta1**self.steps))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "m": self.m, "v": self.v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name in ("m", "v"):
            for kept, saved in zip(getattr(self, name), state[name], strict=True):
                kept.copy_(saved)


class Muon:
    """Muon (Jordan and others, 2024) for convolutions, Adam for the rest.

    A bank of filters is a matrix with a row per filter. It steps along its momentum with all singular values
    made about one, and is brought to one norm, √rows, before: the scale of a convolution that a
    normalisation follows does not matter but for how far a step goes.
    """

    def __init__(self, network: nn.Module, momentum: float = 0.6, times_adam: float = 60.0):
        filters = {m.weight for m in network.modules() if isinstance(m, nn.Conv2d)}
        self.filters = [w for w in network.parameters() if w in filters and w.requires_grad]
        self.rest = Adam([p for p in network.parameters() if p not in filters])
        self.b = [torch.zeros_like(w) for w in self.filters]
        self.momentum, self.times_adam = momentum, times_adam

    def zero_grad(self) -> None:
        self.rest.zero_grad()
        for w in self.filters:
            w.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step; `lr` is Adam's, and filters go so many times as far."""
        for w, b in zip(self.filters, self.b, strict=True):
            if w.grad is None:
                continue
            b.mul_(self.momentum).add_(w.grad)
            ahead = w.grad.add(b, alpha=self.momentum)  # Nesterov's
            w.mul_(len(w) ** 0.5 / w.norm().clamp_min(1e-12))
            w.sub_(orthogonal(ahead.flatten(1)).view_as(w), alpha=self.times_adam * lr)
        self.rest.step(lr)

    def state_dict(self) -> dict[str, Any]:
        return {"b": self.b, "rest": self.rest.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rest.load_state_dict(state["rest"])
        for kept, saved in zip(self.b, state["b"], strict=True):
            kept.copy_(saved)


def orthogonal(g: Tensor, steps: int = 3) -> Tensor:
    """A matrix with the singular vectors of g and singular values near one, without finding them.

    Each step applies an odd polynomial to the singular values that drives them towards one from anywhere
    in (0, 1]; its coefficients trade accuracy for speed.
    """
    tall = len(g) > g.shape[1]
    x: Tensor = (g.T if tall else g) / g.norm().clamp_min(1e-12)
    for _ in range(steps):
        s = x @ x.T
        x = 3.4445 * x + (-4.775 * s + 2.0315 * (s @ s)) @ x
    return x.T if tall else x

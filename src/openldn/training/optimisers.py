"""Optimisers.

By hand for two reasons. Importing `torch.optim` loads the compiler, over a second at each start. And
`torch.optim.Muon` takes two-dimensional weights only; a bank of filters has four dimensions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from openldn.maths import torch_private as foreach
from openldn.training.settings import OptimiserName


def optimiser(
    name: OptimiserName,
    network: nn.Module,
    slower: Mapping[Tensor, float] | None = None,
    l2: float = 0.0,
) -> "Adam | Muon | SGD":
    """An optimiser by name, for all trainable parameters of a network.

    `slower` has the learning rate of some of them, in units of the others' (not for Muon). `l2` is for SGD.
    """
    if name == "muon":
        return Muon(network)
    params = [*network.parameters()]
    rates = [(slower or {}).get(p, 1.0) for p in params]
    return Adam(params, rates) if name == "adam" else SGD(params, rates, l2, nesterov=name == "nesterov")


def discriminative_rates(network: nn.Module, last: float, first: float) -> dict[Tensor, float]:
    """Learning rates of pretrained weights: `last` for the last layer, falling to `first` for the first.

    They fall geometrically (discriminative fine-tuning; Howard and Ruder, 2018): early layers are of use for
    all images and should hardly change.
    """
    params = [*network.parameters()]
    n = max(1, len(params) - 1)
    return {p: first ** (1 - i / n) * last ** (i / n) for i, p in enumerate(params)}


class Adam:
    """Adam (Kingma and Ba, 2015), equal to torch's; parameters that are not trained are left out.

    `rates` are learning rates of parameters in units of the common one.
    """

    def __init__(self, params: Sequence[Tensor], rates: Sequence[float] | None = None):
        kept = [(p, r) for p, r in zip(params, rates or [1.0] * len(params), strict=True) if p.requires_grad]
        self.params, self.rates = [p for p, _ in kept], [r for _, r in kept]
        self.m, self.v = ([torch.zeros_like(p) for p in self.params] for _ in range(2))
        self.steps = 0

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """One step; a parameter without a gradient stays where it is."""
        self.steps += 1
        rows = zip(self.params, self.m, self.v, self.rates, strict=True)
        moved = [(p, p.grad, m, v, rate) for p, m, v, rate in rows if p.grad is not None]
        if not moved:
            return
        params, g, m, v, rates = (list(column) for column in zip(*moved, strict=True))
        foreach.lerp_(m, g, 1 - beta1)
        foreach.mul_(v, beta2)
        foreach.addcmul_(v, g, g, 1 - beta2)
        scale = foreach.sqrt(v)
        foreach.div_(scale, (1 - beta2**self.steps) ** 0.5)
        foreach.add_(scale, eps)
        step = -lr / (1 - beta1**self.steps)
        if {*rates} == {1.0}:
            foreach.addcdiv_(params, m, scale, step)
        else:
            foreach.addcdiv_(params, m, scale, [step * rate for rate in rates])

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "m": self.m, "v": self.v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name in ("m", "v"):
            for kept, saved in zip(getattr(self, name), state[name], strict=True):
                kept.copy_(saved)


class SGD:
    """SGD with momentum, equal to torch's; parameters that are not trained are left out.

    The L2 penalty is of matrices and filters, not of biases and normalisations.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        rates: Sequence[float] | None = None,
        l2: float = 0.0,
        momentum: float = 0.9,
        nesterov: bool = False,
    ):
        kept = [(p, r) for p, r in zip(params, rates or [1.0] * len(params), strict=True) if p.requires_grad]
        self.params, self.rates = [p for p, _ in kept], [r for _, r in kept]
        self.b = [torch.zeros_like(p) for p in self.params]
        self.l2, self.momentum, self.nesterov = l2, momentum, nesterov

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step; a parameter without a gradient stays where it is."""
        for p, b, rate in zip(self.params, self.b, self.rates, strict=True):
            if p.grad is None:
                continue
            g = p.grad.add(p, alpha=self.l2) if self.l2 and p.ndim > 1 else p.grad
            b.mul_(self.momentum).add_(g)
            p.sub_(g.add(b, alpha=self.momentum) if self.nesterov else b, alpha=rate * lr)

    def state_dict(self) -> dict[str, Any]:
        return {"b": self.b}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for kept, saved in zip(self.b, state["b"], strict=True):
            kept.copy_(saved)


class Muon:
    """Muon (Jordan et al., 2024) for convolutions, Adam for all other parameters.

    A filter bank is a matrix with a row per filter. Its update is the momentum with all singular values set
    to about one. Before, the bank is scaled to the norm √rows: where a normalisation follows, the scale of
    a convolution matters only for the relative size of a step.
    """

    def __init__(self, network: nn.Module, momentum: float = 0.6, times_adam: float = 60.0):
        filters = {m.weight for m in network.modules() if isinstance(m, nn.Conv2d)}
        self.filters = [w for w in network.parameters() if w in filters and w.requires_grad]
        self.adam = Adam([p for p in network.parameters() if p not in filters])
        self.b = [torch.zeros_like(w) for w in self.filters]
        self.momentum, self.times_adam = momentum, times_adam

    def zero_grad(self) -> None:
        self.adam.zero_grad()
        for w in self.filters:
            w.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step; `lr` is Adam's, and that of filters is `times_adam` as large."""
        for w, b in zip(self.filters, self.b, strict=True):
            if w.grad is None:
                continue
            b.mul_(self.momentum).add_(w.grad)
            nesterov = w.grad.add(b, alpha=self.momentum)
            w.mul_(len(w) ** 0.5 / w.norm().clamp_min(1e-12))
            w.sub_(orthogonalised(nesterov.flatten(1)).view_as(w), alpha=self.times_adam * lr)
        self.adam.step(lr)

    def state_dict(self) -> dict[str, Any]:
        return {"b": self.b, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        for kept, saved in zip(self.b, state["b"], strict=True):
            kept.copy_(saved)


def orthogonalised(g: Tensor, steps: int = 3) -> Tensor:
    """A matrix with the singular vectors of g and singular values near one (Newton-Schulz iteration).

    Each step applies an odd polynomial to the singular values, which drives them towards one from anywhere
    in (0, 1]; its coefficients trade accuracy for speed.
    """
    tall = len(g) > g.shape[1]
    x: Tensor = (g.T if tall else g) / g.norm().clamp_min(1e-12)
    for _ in range(steps):
        s = x @ x.T
        x = 3.4445 * x + (-4.775 * s + 2.0315 * (s @ s)) @ x
    return x.T if tall else x

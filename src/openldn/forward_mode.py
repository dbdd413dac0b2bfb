"""The derivative of a network's outputs along a direction in its parameters, by one pass forward.

Torch can do this for any network. For convolutions and batch normalisation, which are nearly all of the
work, it does more than is needed; the two rules below are exact too, and cheaper (docs/results.md).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Params = Mapping[str, Tensor]


@torch.no_grad()
def directional(
    f: Callable[[Params], tuple[Tensor, ...]], theta: Params, v: Params
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Values u = f(θ) and derivatives u̇ = (∂f/∂θ) v."""
    # Attention has a forward-mode derivative in its plain form only, which this asks for.
    with fwd.dual_level(), _Rules(), sdpa_kernel(SDPBackend.MATH):
        duals = {name: fwd.make_dual(p.detach(), v[name]) for name, p in theta.items()}
        pairs = [fwd.unpack_dual(u) for u in f(duals)]
        primals = tuple(u.primal for u in pairs)
        return primals, tuple(torch.zeros_like(u.primal) if u.tangent is None else u.tangent for u in pairs)


class _Rules(TorchFunctionMode):
    """Within, convolutions and batch normalisations of dual numbers go by the rules below."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if rule := _RULES.get(func):
            split = [fwd.unpack_dual(a) if isinstance(a, Tensor) else (a, None) for a in args]
            values, dots = [s[0] for s in split], [s[1] for s in split]
            if (result := rule(values, dots, kwargs or {})) is not None:
                return fwd.make_dual(*result)
        return func(*args, **(kwargs or {}))


def _convolution(values: list[Any], dots: list[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Of y = W x + b:  ẏ = W ẋ + Ẇ x + ḃ."""
    if kwargs or len(values) < 3:
        return None
    (x, w, b, *how), (x_dot, w_dot, b_dot) = values, dots[:3]
    terms = []
    if x_dot is not None:
        terms.append(torch.conv2d(x_dot, w, None, *how))
    if w_dot is not None:
        terms.append(torch.conv2d(x, w_dot, b_dot, *how))
    elif b_dot is not None:
        return None
    if not terms:
        return None
    return torch.conv2d(x, w, b, *how), terms[0].add_(terms[1]) if len(terms) == 2 else terms[0]


def _batch_norm(values: list[Any], dots: list[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Of y = γ x̂ + β with batch statistics:  ẏ = γ (∂x̂/∂x) ẋ + γ̇ x̂ + β̇.

    ∂x̂/∂x is symmetric, so γ (∂x̂/∂x) ẋ is what the backward kernel makes of ẋ.
    """
    if kwargs or any(d is None for d in dots[:3]) or not values[5]:
        return None
    (x, gamma, beta, mean, var, training, momentum, eps, _), (x_dot, gamma_dot, beta_dot) = values, dots[:3]
    y, mu, r = torch.native_batch_norm(x, gamma, beta, mean, var, training, momentum, eps)
    y_dot = torch.ops.aten.native_batch_norm_backward(
        x_dot, x, gamma, mean, var, mu, r, training, eps, [True, False, False]
    )[0]
    shape = (1, -1, *(1,) * (x.ndim - 2))  # γ̇ x̂ + β̇ = a x + b for each channel
    a, b = gamma_dot * r, beta_dot - gamma_dot * r * mu
    return y, y_dot.addcmul_(x, a.to(x.dtype).view(shape)).add_(b.to(x.dtype).view(shape))


_RULES: dict[Any, Callable[..., tuple[Tensor, Tensor] | None]] = {
    torch.conv2d: _convolution,
    torch.batch_norm: _batch_norm,
}

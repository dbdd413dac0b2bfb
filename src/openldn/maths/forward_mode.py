"""Forward-mode differentiation: the derivative of a network's outputs along a direction in its parameters.

Torch can do this for any network, in one forward pass. For convolutions and batch normalisation, which are
nearly all of the work, it does more than is needed. The two rules below are exact too, and cheaper.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import repeat
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Params = Mapping[str, Tensor]


class Tape(TorchFunctionMode):
    """Records the convolutions of an ordinary forward pass, so that `directional` need not repeat them.

    The state of the random generators is kept too: dropout is drawn again as it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolved: list[Tensor] = []
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.conv2d:
            self.convolved.append(result.detach())
        return result


@torch.no_grad()
def directional(
    f: Callable[[Params], tuple[Tensor, ...]], theta: Params, v: Params, tape: Tape | None = None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Values u = f(θ) and Jacobian-vector products u̇ = (∂f/∂θ) v; `tape`, if given, is of f(θ)."""
    with ExitStack() as stack:
        if tape is not None:
            stack.enter_context(torch.random.fork_rng(devices=range(len(tape.cuda))))
            torch.set_rng_state(tape.cpu)
            torch.cuda.set_rng_state_all(tape.cuda)
        stack.enter_context(fwd.dual_level())
        stack.enter_context(_Rules(tape))
        # Of the attention kernels only the plain one has a forward-mode derivative.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        duals = {name: fwd.make_dual(p.detach(), v[name]) for name, p in theta.items()}
        pairs = [fwd.unpack_dual(u) for u in f(duals)]
        primals = tuple(u.primal for u in pairs)
        return primals, tuple(torch.zeros_like(u.primal) if u.tangent is None else u.tangent for u in pairs)


class _Rules(TorchFunctionMode):
    """Applies the rules below to convolutions and batch normalisations of dual numbers."""

    def __init__(self, tape: Tape | None):
        super().__init__()
        self.convolved: Iterator[Tensor | None] = iter(tape.convolved) if tape else repeat(None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.conv2d, torch.batch_norm):
            return func(*args, **kwargs)
        split = [fwd.unpack_dual(a) if isinstance(a, Tensor) else (a, None) for a in args]
        values, dots = [s[0] for s in split], [s[1] for s in split]
        if func is torch.conv2d:
            result = _convolution(values, dots, kwargs, next(self.convolved))
        else:
            result = _batch_norm(values, dots, kwargs)
        return func(*args, **kwargs) if result is None else fwd.make_dual(*result)


def _convolution(
    values: list[Any], dots: list[Any], kwargs: dict[str, Any], y: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Of y = W x + b:  ẏ = W ẋ + Ẇ x + ḃ. None where torch's own rule is needed; y may be known already."""
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
    y = torch.conv2d(x, w, b, *how) if y is None else y
    return y, terms[0].add_(terms[1]) if len(terms) == 2 else terms[0]


def _batch_norm(values: list[Any], dots: list[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Of y = γ x̂ + β with batch statistics:  ẏ = γ (∂x̂/∂x) ẋ + γ̇ x̂ + β̇. None where torch's rule is needed.

    ∂x̂/∂x is symmetric, so γ (∂x̂/∂x) ẋ is what the backward kernel makes of ẋ in place of a gradient.
    """
    if kwargs or any(dot is None for dot in dots[:3]) or not values[5]:
        return None
    x, gamma, beta, running_mean, running_var, training, momentum, eps, _ = values
    x_dot, gamma_dot, beta_dot = dots[:3]
    y, mean, inverse_std = torch.native_batch_norm(
        x, gamma, beta, running_mean, running_var, training, momentum, eps
    )
    y_dot = torch.ops.aten.native_batch_norm_backward(
        x_dot, x, gamma, running_mean, running_var, mean, inverse_std, training, eps, [True, False, False]
    )[0]
    # γ̇ x̂ + β̇ = a x + b for each channel
    a = gamma_dot * inverse_std
    b = beta_dot - a * mean
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return y, y_dot.addcmul_(x, a.to(x.dtype).view(shape)).add_(b.to(x.dtype).view(shape))

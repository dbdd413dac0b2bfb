"""The exact gradient of a bi-level problem, without differentiating twice through the network.

A network with parameters θ takes one step on an inner loss that also depends on ω, and an outer loss
judges where it arrives:

    θ'(ω) = θ − α ∇θ inner(u(θ), ω)          u(θ): the outputs of the network on the batch
    J(ω)  = outer(θ'(ω))

With v = ∇outer(θ'), the chain rule gives

    ∇J(ω) = −α ∇ω ⟨∇θ inner(u(θ), ω), v⟩ = −α ∇ω D,   D = the derivative of inner along u̇ = (∂u/∂θ) v

One forward-mode pass through the network gives u and u̇. D is then a function of the small u, u̇ and ω alone,
and an ordinary backward pass through *that* gives the gradient. Terms of the inner loss that do not
depend on ω matter for θ' but not for D, so they can be left out of `inner` here.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import jvp

from openldn.maths.forward_mode import Params, Tape, directional


def hypergradient(
    outputs: Callable[[Params], tuple[Tensor, ...]],
    inner: Callable[..., Tensor],
    theta: Params,
    v: Params,
    omega: Sequence[Tensor],
    alpha: float,
    tape: Tape | None = None,
) -> tuple[Tensor, ...]:
    """∇J(ω), one tensor per entry of `omega`.

    `outputs` maps θ to the tuple u; `inner` maps u to a scalar and depends on `omega` through its closure.
    A `tape` of outputs(θ), where the step has made that pass already, saves a third of the work.
    """
    u, u_dot = directional(outputs, theta, v, tape)
    slope = jvp(inner, u, u_dot)[1]
    return torch.autograd.grad(-alpha * slope, omega)

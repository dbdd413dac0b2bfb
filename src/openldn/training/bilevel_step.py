"""One step of bi-level optimisation, for every system that has one.

inner   θ'(Ω) = θ − α ∇θ L(θ, Ω)                 one step of the network
outer   Ω ← Ω − lr ∇Ω CE(labelled images; θ'(Ω))
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from openldn.maths.bilevel import hypergradient
from openldn.maths.forward_mode import Params, Tape
from openldn.nets.classifier import Classifier, full_precision, running_statistics_frozen
from openldn.nets.cost import Passes
from openldn.training.optimisers import Adam


class OuterProblem:
    """A module Ω and its optimiser."""

    def __init__(self, omega: nn.Module):
        self.omega, self.optimiser = omega, Adam([*omega.parameters()])

    def improve(
        self,
        network: Classifier,
        *,
        theta: Params,
        ahead: Params,
        x: Tensor,
        judged: Tensor,
        y: Tensor,
        known: Callable[[Tensor], Tensor],
        outputs: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
        inner: Callable[..., Tensor],
        alpha: float,
        lr: float,
        tape: Tape | None = None,
    ) -> Tensor:
        """One step of Ω by its exact gradient; returns the gradient's norm.

        `theta` is θ and `ahead` is θ'. The first rows of `judged` are the labelled images of y (l,); `known`
        maps logits to those that cross-entropy judges. `outputs` maps features and logits of x to the tuple u
        and `inner` maps u to the part of L that depends on Ω.
        """

        def u(params: Params) -> tuple[Tensor, ...]:
            return outputs(*functional_call(network, dict(params), (x,)))

        with running_statistics_frozen(network):
            ahead = {name: p.requires_grad_() for name, p in ahead.items()}
            _, logits = functional_call(network, ahead, (judged,))
            loss = F.cross_entropy(known(logits[: len(y)]), y)
            slopes = torch.autograd.grad(loss, [*ahead.values()], materialize_grads=True)
            v = dict(zip(ahead, slopes, strict=True))
            with full_precision(network):  # torch has no fast forward mode in bfloat16
                gradient = hypergradient(u, inner, theta, v, self.optimiser.params, alpha, tape)
        for w, g in zip(self.optimiser.params, gradient, strict=True):
            w.grad = g
        self.optimiser.step(lr)
        self.optimiser.zero_grad()  # another optimiser may hold these parameters too
        norm: Tensor = torch.stack([g.norm() for g in gradient]).norm()
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"omega": self.omega.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.omega.load_state_dict(state["omega"])
        self.optimiser.load_state_dict(state["optimiser"])


def look_ahead(loss: Tensor, theta: Mapping[str, Tensor], alpha: float, n_images: int) -> dict[str, Tensor]:
    """θ' = θ − α ∇θ loss, without taking the step. The graph stays, to be differentiated again."""
    Passes.count(2 * n_images)  # a second backward pass over the same forward pass
    slopes = torch.autograd.grad(loss, [*theta.values()], retain_graph=True, materialize_grads=True)
    return {name: p.detach() - alpha * g for (name, p), g in zip(theta.items(), slopes, strict=True)}

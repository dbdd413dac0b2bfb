"""DS3L (Guo et al., ICML 2020): unlabelled images count as much as helps the labelled ones.

Known classes alone. Two weak views of unlabelled images; ℓ_j is how much the network's opinions of them
differ, and w_Ω(p_j) how much that counts: a small network's say, of nothing but the first opinion p_j.

    inner:  θ' = θ − α ∇ [CE(labelled) + λ(t) Σ_j w_j ℓ_j / Σ_j w_j]        outer:  CE(labelled) at θ'

The gradient in Ω is that of `bilevel`, exact, from ℓ_j and p_j and their derivatives along one direction.
What w_Ω makes little of is taken to be novel.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from openldn.bilevel import hypergradient
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.forward_mode import Params
from openldn.nets.classifier import Classifier, Passes, in_full, statistics_frozen
from openldn.nets.heads import Weighted
from openldn.optimisers import Adam
from openldn.phases.schedule import late
from openldn.phases.training import Method


class DS3L(Method):
    """Ω learns at every fourth step, less and less as the network does; the look-ahead is a plain step, as
    the authors'.
    """

    name = "ds3l"
    labelled_views = ("weak",)
    unlabelled_views = ("weak", "weak")
    composition = "equal"
    weight = 10.0  # λ in the end
    alpha = 1e-3
    omega_lr = 1e-3
    every = 4

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        assert isinstance(network.head, Weighted)
        self.omega = Adam([*network.head.weigh.parameters()])
        self.step = 0
        self.seen = torch.zeros(2)  # mean and spread of the weights lately

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        """A step, and at every fourth a way back to look ahead, the judgement, and a pass along it."""
        rows = l + 2 * u
        return 3.0 * rows + (2 * rows + 3 * l + 3 * rows) / self.every

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        y, l, u = batch.y, len(batch.y), len(batch.rows)  # noqa: E741
        weight = self.weight * late(progress, 1.0)
        rows, head = torch.cat([*batch.x, *batch.u]), network.head
        assert isinstance(head, Weighted)
        logits = head.classes(network(rows).z)
        ce = F.cross_entropy(logits[:l], y)
        p, difference = opinions(logits[l:], u)
        if self.step % self.every == 0:
            inner = ce + weight * weighted(head.deserved(p), difference)
            self.improve(network, rows, y, inner, weight, u, self.omega_lr * (1 - progress))
        self.step += 1
        with torch.no_grad():
            w = head.deserved(p)
        self.seen = torch.stack([w.sigmoid().mean(), w.sigmoid().std()])
        return {"labelled": ce, "unlabelled": weight * weighted(w, difference)}

    def improve(
        self, network: Classifier, rows: Tensor, y: Tensor, loss: Tensor, weight: float, u: int, lr: float
    ) -> None:
        """Ω ← Ω − lr ∇_Ω CE(labelled) at θ'(Ω)."""
        head, l = network.head, len(y)  # noqa: E741
        assert isinstance(head, Weighted)
        theta: dict[str, Tensor] = {
            name: p
            for name, p in network.named_parameters()
            if p.requires_grad and not name.startswith("head.weigh")
        }
        Passes.count(2 * len(rows))  # a second way back over the same pass
        slopes = torch.autograd.grad(loss, [*theta.values()], retain_graph=True, materialize_grads=True)
        ahead = {
            name: (p.detach() - self.alpha * g).requires_grad_()
            for (name, p), g in zip(theta.items(), slopes, strict=True)
        }

        def said(params: Params) -> tuple[Tensor, ...]:
            _, logits = functional_call(network, dict(params), (rows,))
            return opinions(logits[l:, :-1], u)

        def inner(p: Tensor, difference: Tensor) -> Tensor:
            return weight * weighted(head.deserved(p), difference)

        with statistics_frozen(network):
            _, logits = functional_call(network, ahead, (rows[: max(l, 2)],))
            outer = F.cross_entropy(logits[:l, :-1], y)
            slopes = torch.autograd.grad(outer, [*ahead.values()], materialize_grads=True)
            v = dict(zip(ahead, slopes, strict=True))
            with in_full(network):
                # For a step of 1, not α: Adam does not mind the scale, unless gradients are as small as ε.
                found = hypergradient(said, inner, theta, v, self.omega.params, 1.0)
        for w, g in zip(self.omega.params, found, strict=True):
            w.grad = g
        self.omega.step(lr)
        self.omega.zero_grad()  # the network's optimiser has these too, and leaves alone what has no gradient

    def figures(self) -> dict[str, float]:
        return {"weight_mean": float(self.seen[0]), "weight_spread": float(self.seen[1])}

    def get_extra_state(self) -> dict[str, Any]:
        """What is kept beside parameters."""
        return {"omega": self.omega.state_dict(), "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.omega.load_state_dict(state["omega"])
        self.step = state["step"]


def opinions(logits: Tensor, u: int) -> tuple[Tensor, Tensor]:
    """p_j of the first u rows, and ℓ_j, by which the others differ from them.  (2u, K) -> (u, K), (u,)

    The first opinion is a target; the second one moves.
    """
    p, q = logits.softmax(dim=1).split(u)
    return p, (q - p.detach()).square().mean(dim=1)


def weighted(w: Tensor, difference: Tensor) -> Tensor:
    """The mean of differences (u,) with weights whose logits are w (u,) or (u, 1)."""
    w = w.flatten().sigmoid()
    return (w * difference).sum() / w.sum().clamp_min(1e-8)

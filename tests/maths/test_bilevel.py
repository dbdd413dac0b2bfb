"""The hypergradient against finite differences; `training/test_bilevel_step.py` has double backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from openldn.maths.bilevel import hypergradient
from openldn.maths.losses import pair_loss
from openldn.nets.similarity import PairSimilarity


def test_equals_finite_differences() -> None:
    """On a network of a few parameters, by moving each ω a little."""
    torch.manual_seed(2)
    d, alpha, eps = 3, 0.1, 1e-5
    net = nn.Linear(4, d).double()
    head = torch.randn(d, 2, dtype=torch.float64)
    similarity = PairSimilarity(d, hidden=5).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])

    def outputs(theta):
        z = torch.tanh(functional_call(net, dict(theta), (x,)))
        return z, (z @ head).softmax(dim=1)

    def inner(z, p):
        return pair_loss(p, similarity(z))

    def ahead():
        theta = dict(net.named_parameters())
        slopes = torch.autograd.grad(inner(*outputs(theta)), [*theta.values()])
        return {n: (p - alpha * g).detach() for (n, p), g in zip(theta.items(), slopes, strict=True)}

    def outer(theta):
        return F.nll_loss(outputs(theta)[1].log(), y)

    at = {n: p.requires_grad_() for n, p in ahead().items()}
    v = dict(zip(at, torch.autograd.grad(outer(at), [*at.values()]), strict=True))
    theta, omega = dict(net.named_parameters()), [*similarity.parameters()]
    exact = hypergradient(outputs, inner, theta, v, omega, alpha)
    for w, g in zip(omega, exact, strict=True):
        for i in range(w.numel()):
            flat = w.data.view(-1)
            old = float(flat[i])
            flat[i] = old + eps
            up = outer(ahead()).item()
            flat[i] = old - eps
            down = outer(ahead()).item()
            flat[i] = old
            assert float(g.view(-1)[i]) == pytest.approx((up - down) / (2 * eps), abs=1e-9, rel=1e-4)

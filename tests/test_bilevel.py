"""The hypergradient against double backward, against finite differences, and BatchNorm's statistics."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from openldn.bilevel import hypergradient
from openldn.config import PRESETS
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.forward_mode import Tape, directional
from openldn.losses import pair_loss
from openldn.nets.classifier import Classifier, statistics_frozen
from openldn.nets.similarity import PairSimilarity
from openldn.optimisers import Adam
from openldn.phases.discover import Discover


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def phase(dtype: torch.dtype, **settings: object) -> Discover:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    labels = torch.tensor([0, 1] * 10 + [-1] * 20)
    problem = Problem(images, labels, tuple(map(str, range(40))), (0, 1), n_novel=2)
    network = Classifier(convnet(), 4, torch.zeros(1), torch.ones(1), 8).to(dtype)
    made = Discover(problem, network, replace(PRESETS["paper"].discover, **settings))
    made.similarity_optimiser = Adam([*made.similarity.to(dtype).parameters()])
    return made


def batch(dtype: torch.dtype, l: int = 6, u: int = 7) -> Batch:  # noqa: E741
    g = torch.Generator().manual_seed(1)
    x = torch.rand(l + 2 * u, 1, 8, 8, generator=g, dtype=dtype)
    y = torch.arange(l) % 2
    return Batch((x[:l],), y, (x[l : l + u], x[l + u :]), torch.arange(u))


def by_double_backward(made: Discover, seen: Batch, attach: bool) -> list[torch.Tensor]:
    """The textbook way: the step as a graph, differentiated whole."""
    network, similarity = copy.deepcopy(made.network), made.similarity
    theta = dict(network.named_parameters())
    (x,), (weak, strong), y = seen.x, seen.u, seen.y
    mixed = made.settings.views == "mixed"
    rows = torch.cat([x, strong] if mixed else [x, weak, strong])

    def pair(rows: torch.Tensor, n: int) -> torch.Tensor:
        z, logits = functional_call(network, theta, (rows,))
        return pair_loss(logits[:n].softmax(dim=1), similarity(z[:n] if attach else z[:n].detach()))

    def slopes(loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(loss, [*theta.values()], create_graph=True)

    z, logits = functional_call(network, theta, (rows,))
    said = made.average.network(weak).logits if mixed else logits[len(y) : len(y) + len(weak)]
    terms = made.losses(z, logits, y, said.detach(), attach)
    terms["pair"] = pair(rows, len(y) + len(weak))
    step = slopes(sum(terms.values()))
    if few := made.settings.omega_rows == "few":
        # The real step, but Ω feels it through the pairs of a part of the rows.
        felt = slopes(pair(rows[: 2 * len(y)], 2 * len(y)))
        step = [s.detach() + f - f.detach() for s, f in zip(step, felt, strict=True)]
    ahead = {n: p - made.settings.alpha * g for (n, p), g in zip(theta.items(), step, strict=True)}
    _, logits = functional_call(network, ahead, (x if few else rows,))
    outer = F.cross_entropy(logits[: len(y)], y)
    return [*torch.autograd.grad(outer, [*similarity.parameters()])]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("attach", ["lookahead", "both", "neither"])
@pytest.mark.parametrize("rows", ["all", "few"])
@pytest.mark.parametrize("views", ["weak-strong", "mixed"])
def test_equals_double_backward(
    dtype: torch.dtype, tolerance: float, attach: str, rows: str, views: str
) -> None:
    made, seen = phase(dtype, attach=attach, omega_rows=rows, views=views), batch(dtype)
    expected = by_double_backward(made, seen, attach != "neither")
    made.step(seen, 0.0)
    for w, g in zip(made.similarity.parameters(), expected, strict=True):
        assert w.grad is not None
        scale = torch.stack([e.norm() for e in expected]).norm()
        assert float((w.grad - g).norm() / scale) < tolerance
        assert float(scale) > 0


@pytest.mark.parametrize("rows", ["all", "few"])
def test_theta_first_equals_double_backward_at_the_real_step(rows: str) -> None:
    """With plain SGD as the real step, the paper's order is the look-ahead made real."""
    made = phase(torch.float64, order="theta-first", attach="both", omega_rows=rows)
    seen = batch(torch.float64)
    expected = by_double_backward(made, seen, attach=True)
    losses = made.step(seen, 0.0)
    sgd = torch.optim.SGD(made.network.parameters(), lr=made.settings.alpha)
    sgd.zero_grad()
    sum(losses.values()).backward()
    sgd.step()
    made.after_step(seen, 0.0)
    scale = torch.stack([e.norm() for e in expected]).norm()
    for w, g in zip(made.similarity.parameters(), expected, strict=True):
        assert float((w.grad - g).norm() / scale) < 1e-9


@pytest.mark.parametrize("rows", ["all", "few"])
def test_in_bfloat16_it_is_nearly_the_same(rows: str) -> None:
    full, half = (phase(torch.float32, attach="both", omega_rows=rows) for _ in range(2))
    half.network.halved = True
    for made in (full, half):
        made.step(batch(torch.float32), 0.0)
    a, b = (torch.cat([w.grad.flatten() for w in p.similarity.parameters()]) for p in (full, half))
    assert 0 < float((a - b).norm() / a.norm()) < 0.1


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


@pytest.mark.parametrize("order", ["omega-first", "theta-first"])
@pytest.mark.parametrize("rows", ["all", "few"])
def test_batchnorm_statistics_move_once_a_step(order: str, rows: str) -> None:
    made, seen = phase(torch.float32, order=order, omega_rows=rows), batch(torch.float32)
    plain = copy.deepcopy(made.network)
    plain(torch.cat([*seen.x, *seen.u]))
    made.step(seen, 0.0)
    made.after_step(seen, 0.0)
    for name, buffer in made.network.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name)), name
        if name.endswith("num_batches_tracked"):
            assert int(buffer) == 1


def test_similarity_splits_its_first_layer() -> None:
    """Against the plain form: every pair concatenated."""
    torch.manual_seed(0)
    net, z = PairSimilarity(5, hidden=7).requires_grad_(False), torch.randn(4, 5)
    for i in range(4):
        for j in range(4):
            pair = torch.cat([z[i], z[j]])
            expected = torch.sigmoid(net.out(torch.relu(net.hidden(pair))))
            assert float(net(z)[i, j]) == pytest.approx(float(expected), abs=1e-6)


def test_detached_features_get_no_gradient_through_the_similarity_net() -> None:
    made, seen = phase(torch.float64), batch(torch.float64)
    z, logits = made.network(torch.cat([*seen.x, *seen.u]))
    p = logits[:13].softmax(dim=1).detach()
    attached = made.pair(z[:13], p, seen.y, attach=True)
    assert float(torch.autograd.grad(attached, z, retain_graph=True)[0].norm()) > 0
    assert not made.pair(z[:13], p, seen.y, attach=False).requires_grad


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)], id="bias and stride"),
        pytest.param([nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.ReLU()], id="groups"),
        pytest.param([nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)], id="norm"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Tanh()], id="norm in evaluation"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2).requires_grad_(False)], id="frozen weights"),
        pytest.param([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2)], id="other layers"),
    ],
)
def test_forward_mode_equals_torchs_own(body: list[nn.Module]) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(*body).double()
    x = torch.randn(5, 3, 9, 9, dtype=torch.float64)
    theta = {name: p for name, p in network.named_parameters() if p.requires_grad}
    v = {name: torch.randn_like(p) for name, p in theta.items()}

    def f(params):
        return (functional_call(network, dict(params), (x,)),)

    with statistics_frozen(network):
        with torch.no_grad():
            u, u_dot = torch.func.jvp(f, ({k: p.detach() for k, p in theta.items()},), (v,))
        values, slopes = directional(f, theta, v)
    torch.testing.assert_close(values, u, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes, u_dot, rtol=1e-10, atol=1e-10)


def test_a_tape_saves_convolutions_and_changes_nothing() -> None:
    """Random layers included: the masks of the taped pass are drawn again, and no others disturbed."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 4, 3), nn.Dropout(), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False)]
    network = nn.Sequential(*layers, nn.Dropout2d()).double()
    x = torch.randn(5, 3, 9, 9, dtype=torch.float64)
    theta = dict(network.named_parameters())
    v = {name: torch.randn_like(p) for name, p in theta.items()}

    def f(params):
        return (functional_call(network, dict(params), (x,)),)

    def after(step):
        torch.manual_seed(5)
        return f({name: p.detach() + step * v[name] for name, p in theta.items()})[0]

    with statistics_frozen(network):
        torch.manual_seed(5)
        with Tape() as tape:
            expected = f(theta)[0]
        assert [y.shape[1] for y in tape.convolved] == [4, 5]
        state = torch.get_rng_state()
        (value,), (slope,) = directional(f, theta, v, tape)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(value, expected)
        torch.testing.assert_close(slope, (after(1e-6) - after(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-6)
        # without the tape the masks are others
        assert not torch.equal(directional(f, theta, v)[0][0], expected)
        # the recorded convolutions are what is used
        tape.convolved[-1].add_(1.0)
        assert not torch.equal(directional(f, theta, v, tape)[0][0], expected)

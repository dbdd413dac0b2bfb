"""Steps of Ω against double backward through the step, for both systems that have one."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import toy
from openldn.data.batches import Batch
from openldn.maths.losses import pair_loss
from openldn.methods.ds3l import DS3L, Weighted, predictions, weighted_mean
from openldn.methods.openldn import Discover
from openldn.nets.classifier import Classifier, running_statistics_frozen
from openldn.nets.cost import Passes
from openldn.training.bilevel_step import OuterProblem, look_ahead
from openldn.training.loop import Training
from openldn.training.schedules import sigmoid_ramp


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


def at_work(method: str, dtype: torch.dtype, **settings: Any) -> Training:
    """A stage whose network and Ω have a type of numbers, and a tiny backbone."""
    torch.manual_seed(0)
    made = toy.training(method, body=convnet(), **settings)
    made.network.to(dtype)
    outer: OuterProblem = made.objective.outer  # type: ignore[assignment]
    made.objective.outer = OuterProblem(outer.omega.to(dtype))
    return made


def batch(dtype: torch.dtype, l: int = 6, u: int = 7) -> Batch:  # noqa: E741
    g = torch.Generator().manual_seed(1)
    x = torch.rand(l + 2 * u, 1, 8, 8, generator=g, dtype=dtype)
    return Batch((x[:l],), torch.arange(l) % 2, (x[l : l + u], x[l + u :]), torch.arange(u))


def gradients(made: Training) -> list[list[Tensor]]:
    """Will hold the gradients of Ω at each of its steps, which it still takes."""
    outer: OuterProblem = made.objective.outer  # type: ignore[assignment]
    found, step = list[list[Tensor]](), outer.optimiser.step

    def noted(lr: float) -> None:
        found.append([p.grad.clone() for p in outer.omega.parameters()])  # type: ignore[union-attr]
        step(lr)

    outer.optimiser.step = noted  # type: ignore[method-assign, assignment]
    return found


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Relative."""
    scale = torch.stack([e.norm() for e in expected]).norm()
    assert float(scale) > 0
    return max(float((f - e).norm() / scale) for f, e in zip(found, expected, strict=True))


# ------------------------------------------------------------------------------------------- OpenLDN


def of_discover(made: Training, seen: Batch, attach: bool) -> list[Tensor]:
    """The textbook way: the step as a graph, differentiated whole."""
    objective = made.objective
    assert isinstance(objective, Discover)
    network, omega, settings = copy.deepcopy(made.network), objective.outer.omega, objective.settings
    theta = dict(network.named_parameters())
    (x,), (weak, strong), y = seen.x, seen.u, seen.y
    rows = torch.cat([x, weak, strong])

    def pair(rows: Tensor, n: int) -> Tensor:
        z, logits = functional_call(network, theta, (rows,))
        return pair_loss(logits[:n].softmax(dim=1), omega(z[:n] if attach else z[:n].detach()))

    def slopes(loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, [*theta.values()], create_graph=True)

    z, logits = functional_call(network, theta, (rows,))
    terms = objective.terms(z, logits, y, attach)
    terms["pair"] = pair(rows, len(y) + len(weak))
    step = slopes(torch.stack([*terms.values()]).sum())
    if few := settings.omega_rows == "few":
        # The real step, but Ω feels it through the pairs of a part of the rows.
        felt = slopes(pair(rows[: 2 * len(y)], 2 * len(y)))
        step = tuple(s.detach() + f - f.detach() for s, f in zip(step, felt, strict=True))
    ahead = {name: p - settings.alpha * g for (name, p), g in zip(theta.items(), step, strict=True)}
    _, logits = functional_call(network, ahead, (x if few else rows,))
    outer = F.cross_entropy(logits[: len(y)], y)
    return [*torch.autograd.grad(outer, [*omega.parameters()])]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("attach", ["lookahead", "both", "neither"])
@pytest.mark.parametrize("rows", ["all", "few"])
def test_omega_first_equals_double_backward(
    dtype: torch.dtype, tolerance: float, attach: str, rows: str
) -> None:
    made = at_work("openldn", dtype, order="omega-first", attach=attach, omega_rows=rows)
    seen, found = batch(dtype), gradients(made)
    expected = of_discover(made, seen, attach != "neither")
    made.objective.losses(made.network, made.network, seen, 0.0)
    assert len(found) == 1
    assert distance(found[0], expected) < tolerance


@pytest.mark.parametrize("rows", ["all", "few"])
def test_theta_first_equals_double_backward_at_the_real_step(rows: str) -> None:
    """With plain SGD as the real step, the paper's order is the look-ahead made real."""
    made = at_work("openldn", torch.float64, order="theta-first", attach="both", omega_rows=rows)
    seen, found = batch(torch.float64), gradients(made)
    expected = of_discover(made, seen, attach=True)
    losses = made.objective.losses(made.network, made.network, seen, 0.0)
    sgd = torch.optim.SGD(made.network.parameters(), lr=made.objective.settings.alpha)
    torch.stack([*losses.values()]).sum().backward()
    sgd.step()
    assert found == []  # it is improved after the step
    made.objective.after_step(made.network, seen, 0.0)
    assert len(found) == 1
    assert distance(found[0], expected) < 1e-9


@pytest.mark.parametrize("rows", ["all", "few"])
def test_mixed_precision_gives_nearly_the_same_gradient(rows: str) -> None:
    found = []
    for mixed in (False, True):
        made = at_work("openldn", torch.float32, order="omega-first", attach="both", omega_rows=rows)
        made.network.mixed_precision = mixed
        found.append(gradients(made))
        made.objective.losses(made.network, made.network, batch(torch.float32), 0.0)
        assert made.network.mixed_precision is mixed
    a, b = (torch.cat([g.flatten() for g in each[0]]) for each in found)
    assert 0 < float((a - b).norm() / a.norm()) < 0.1


@pytest.mark.parametrize("order", ["omega-first", "theta-first"])
@pytest.mark.parametrize("rows", ["all", "few"])
def test_running_statistics_move_once_a_step(order: str, rows: str) -> None:
    made = at_work("openldn", torch.float32, order=order, omega_rows=rows)
    seen, plain = batch(torch.float32), copy.deepcopy(made.network)
    plain(torch.cat([*seen.x, *seen.u]))
    made.objective.losses(made.network, made.network, seen, 0.0)
    made.objective.after_step(made.network, seen, 0.0)
    for name, buffer in made.network.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name)), name
        if name.endswith("num_batches_tracked"):
            assert int(buffer) == 1


# ----------------------------------------------------------------------------------------------- DS3L


def test_ds3l_improves_its_weights_by_the_exact_gradient() -> None:
    """Against double backward through the look-ahead. Its α is left to Adam, which ignores the scale."""
    made = at_work("ds3l", torch.float64)
    network, head = made.network, made.network.head
    assert isinstance(made.objective, DS3L)
    assert isinstance(head, Weighted)
    seen, found, progress = batch(torch.float64), gradients(made), 0.5
    rows, y = torch.cat([*seen.x, *seen.u]), seen.y
    l, u, settings = len(y), len(seen.rows), made.objective.settings  # noqa: E741
    with running_statistics_frozen(network):
        own = {name: p for name, p in network.named_parameters() if not name.startswith("head.weigh")}
        logits = head.classes(network(rows).z)
        p, difference = predictions(logits[l:], u)
        weight = settings.consistency * sigmoid_ramp(progress, 1.0)
        inner = F.cross_entropy(logits[:l], y) + weight * weighted_mean(head.weight_logit(p), difference)
        slopes = torch.autograd.grad(inner, [*own.values()], create_graph=True)
        ahead = {k: q - settings.alpha * g for (k, q), g in zip(own.items(), slopes, strict=True)}
        _, judged = functional_call(network, ahead, (rows[:l],))
        outer = F.cross_entropy(judged[:, :-1], y)
        expected = [*torch.autograd.grad(outer, [*head.weigh.parameters()])]
    made.objective.losses(network, network, seen, progress)
    assert len(found) == 1
    assert distance([settings.alpha * g for g in found[0]], expected) < 1e-6


# --------------------------------------------------------------------------------- the outer problem


def test_an_outer_step_lowers_the_outer_loss_and_leaves_no_gradient() -> None:
    """The norm that it returns is that of the gradient."""
    made = at_work("openldn", torch.float64, order="omega-first", attach="both", omega_rows="all")
    objective, seen, found = made.objective, batch(torch.float64), gradients(made)
    assert isinstance(objective, Discover)
    before = [p.clone() for p in objective.outer.omega.parameters()]
    objective.losses(made.network, made.network, seen, 0.0)
    norm = float(torch.cat([g.flatten() for g in found[0]]).norm())
    assert objective.diagnostics()["omega_gradient"] == pytest.approx(norm)
    for old, new, g in zip(before, objective.outer.omega.parameters(), found[0], strict=True):
        assert new.grad is None
        moved = g.abs() > 1e-6 * norm
        assert torch.equal((new - old).sign()[moved], -g.sign()[moved])  # Adam's first step is by sign


def test_the_outer_state_comes_back() -> None:
    one, other = (at_work("openldn", torch.float32, order="omega-first").objective for _ in range(2))
    assert isinstance(one, Discover)
    assert isinstance(other, Discover)
    made = at_work("openldn", torch.float32)
    one.losses(made.network, made.network, batch(torch.float32), 0.0)
    other.outer.load_state_dict(copy.deepcopy(one.outer.state_dict()))
    for a, b in zip(one.outer.omega.parameters(), other.outer.omega.parameters(), strict=True):
        assert torch.equal(a, b)
    assert other.outer.optimiser.steps == 1
    for a, b in zip(one.outer.optimiser.m, other.outer.optimiser.m, strict=True):
        assert torch.equal(a, b)


def test_looking_ahead_is_a_plain_gradient_step_that_is_not_taken() -> None:
    network: Classifier = toy.classifier(convnet(), 3, channels=1)
    theta = dict(network.named_parameters())
    before = {name: p.detach().clone() for name, p in theta.items()}
    x = torch.rand(5, 1, 8, 8)
    loss = network(x).logits.square().mean()
    with Passes() as passes:
        ahead = look_ahead(loss, theta, 0.1, n_images=5)
    assert passes.total == 10  # a backward pass
    loss.backward()  # the graph is still there
    for name, p in theta.items():
        assert torch.equal(p, before[name])
        assert p.grad is not None
        torch.testing.assert_close(ahead[name], before[name] - 0.1 * p.grad)
        assert not ahead[name].requires_grad

"""Every wrapper of a private name of torch against a loop, and the two names without a public form."""

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor, nn

from openldn.maths import torch_private
from openldn.maths.torch_private import BatchNorm, in_forward_mode


def tensors(seed: int) -> list[Tensor]:
    """Of several shapes, all entries above a half."""
    g = torch.Generator().manual_seed(seed)
    return [0.5 + torch.rand(shape, generator=g) for shape in ((3,), (2, 4), (1, 2, 3, 3), ())]


def copies(xs: list[Tensor]) -> list[Tensor]:
    return [x.clone() for x in xs]


@pytest.mark.parametrize("scalar", [0.3, -2.0])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add_", lambda x, s: x + s),
        ("mul_", lambda x, s: x * s),
        ("div_", lambda x, s: x / s),
    ],
)
def test_operations_with_a_scalar(name: str, expected, scalar: float) -> None:
    xs = tensors(0)
    before = copies(xs)
    getattr(torch_private, name)(xs, scalar)
    for x, old in zip(xs, before, strict=True):
        torch.testing.assert_close(x, expected(old, scalar))


def test_square_roots_are_new_tensors() -> None:
    xs = tensors(0)
    before = copies(xs)
    roots = torch_private.sqrt(xs)
    for x, old, root in zip(xs, before, roots, strict=True):
        assert torch.equal(x, old)
        torch.testing.assert_close(root, old.sqrt())
        assert root is not x


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
def test_linear_interpolation(weight: float) -> None:
    xs, ys = tensors(0), tensors(1)
    before = copies(xs)
    torch_private.lerp_(xs, ys, weight)
    for x, y, old in zip(xs, ys, before, strict=True):
        torch.testing.assert_close(x, old + weight * (y - old))


@pytest.mark.parametrize(
    ("name", "expected"), [("addcmul_", lambda y, z: y * z), ("addcdiv_", lambda y, z: y / z)]
)
def test_scaled_products_and_quotients(name: str, expected) -> None:
    xs, ys, zs = tensors(0), tensors(1), tensors(2)
    before = copies(xs)
    getattr(torch_private, name)(xs, ys, zs, -0.7)
    for x, y, z, old in zip(xs, ys, zs, before, strict=True):
        torch.testing.assert_close(x, old - 0.7 * expected(y, z))


def test_any_sequence_will_do_and_tensors_are_changed_in_place() -> None:
    xs = tensors(0)
    ids = [x.data_ptr() for x in xs]
    torch_private.mul_(tuple(xs), 2.0)
    torch_private.lerp_(tuple(xs), tuple(tensors(1)), 0.5)
    assert [x.data_ptr() for x in xs] == ids


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_norm_is_the_base_of_all_batch_normalisations(norm: type[nn.Module]) -> None:
    assert issubclass(norm, BatchNorm)
    made = norm(3)
    assert made.track_running_stats is True  # what the base is there for


@pytest.mark.parametrize("other", [nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.Linear(3, 3)])
def test_other_layers_are_no_batch_normalisation(other: nn.Module) -> None:
    assert not isinstance(other, BatchNorm)


def test_forward_mode_is_seen_while_it_lasts() -> None:
    assert not in_forward_mode()
    with fwd.dual_level():
        assert in_forward_mode()
    assert not in_forward_mode()
    inside = list[bool]()

    def f(x: Tensor) -> Tensor:
        inside.append(in_forward_mode())
        return x.square()

    torch.func.jvp(f, (torch.ones(2),), (torch.ones(2),))
    torch.func.grad(lambda x: f(x).sum())(torch.ones(2))  # backward mode is not forward mode
    assert inside == [True, False]
    assert not in_forward_mode()

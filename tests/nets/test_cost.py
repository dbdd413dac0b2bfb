"""Image passes as they are counted, and the cost of backward passes against multiply-adds by hand."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import toy
from openldn.maths.forward_mode import directional
from openldn.model import new_network
from openldn.nets.backbones import build
from openldn.nets.classifier import Classifier
from openldn.nets.cost import Passes, backward_cost

# Multiply-adds of each convolution of the small net on 8 x 8 grey images: filters times output pixels.
SMALL = {
    "whiten": 8 * 4 * 7**2,
    "first": 32 * 8 * 9 * 7**2,
    "second": 32 * 32 * 9 * 3**2,  # after a max-pool
    "third": 64 * 32 * 9 * 3**2,
    "fourth": 64 * 64 * 9,
}
# Of ResNet-18 on 16 x 16 colour images. Of the later stages: the first convolution, the others, the shortcut.
STEM, STAGE_1 = 64 * 3 * 9 * 16**2, 4 * 64 * 64 * 9 * 16**2
FIRST, OTHERS, SHORTCUT = 128 * 64 * 9 * 8**2, 3 * 128 * 128 * 9 * 8**2, 128 * 64 * 8**2
RESNET18 = STEM + STAGE_1 + 3 * (FIRST + OTHERS + SHORTCUT)  # each has half the pixels, twice the channels


def network(name: str, channels: int, size: int) -> Classifier:
    return toy.classifier(build(name, channels, size), 6, channels, size)


@pytest.mark.parametrize(
    ("name", "channels", "size", "forward", "backward"),
    [
        # Gradients of weights cost as much as the forward pass, and so do gradients of inputs, which the
        # first convolutions of the last stage need not have.
        ("small", 1, 8, sum(SMALL.values()), SMALL["third"] + 2 * SMALL["fourth"]),
        ("resnet18", 3, 16, RESNET18, FIRST + SHORTCUT + 2 * OTHERS),
    ],
)
def test_frozen_early_layers_make_the_backward_pass_cheaper(
    name: str, channels: int, size: int, forward: int, backward: int
) -> None:
    made = network(name, channels, size)
    assert made.backward_cost == 2  # by convention, where everything is trained
    made.freeze_early(channels, size)
    assert made.backward_cost == pytest.approx(backward / forward, rel=1e-9)
    with Passes() as passes:
        made(torch.rand(5, channels, size, size))
    assert passes.total == pytest.approx(5 * (1 + backward / forward))


def test_where_all_is_trained_only_the_gradient_of_the_image_is_saved() -> None:
    assert backward_cost(build("resnet18", 3, 16), 3, 16) == pytest.approx(2 - STEM / RESNET18, rel=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_measuring_the_cost_leaves_no_trace(training: bool) -> None:
    backbone = build("small", 1, 8).train(training)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with torch.no_grad():
        backward_cost(backbone, 1, 8)
    assert all(m.training is training for m in backbone.modules())
    assert all(p.grad is None for p in backbone.parameters())
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_the_last_stage_alone_is_trained_and_backbones_of_others_are_left_alone() -> None:
    made = network("resnet18", 3, 16)
    made.freeze_early(3, 16)
    trained = {name.split(".")[1] for name, p in made.backbone.named_parameters() if p.requires_grad}
    assert trained == {"7", "8"}  # of a stem and eight blocks
    assert all(p.requires_grad for p in made.head.parameters())
    own = toy.classifier(toy.backbone(), 6, channels=1)
    own.freeze_early(1, 8)
    assert all(p.requires_grad for p in own.parameters())
    assert own.backward_cost == 2


# ------------------------------------------------------------------------------------------- counters


def tiny() -> Classifier:
    problem, _ = toy.split()
    return new_network(problem, toy.training("openldn").stage, toy.backbone(), toy.CPU)


def test_passes_are_one_forward_two_backward_and_two_more_in_forward_mode() -> None:
    made, x = tiny(), torch.rand(10, 1, 8, 8)
    with Passes() as trained:
        made(x)
    with Passes() as looked, torch.no_grad():
        made(x)
    theta = dict(made.named_parameters())
    v = {name: torch.ones_like(p) for name, p in theta.items()}
    with Passes() as along:
        directional(lambda params: tuple(torch.func.functional_call(made, dict(params), (x,))), theta, v)
    assert (trained.total, looked.total, along.total) == (30, 10, 30)


def test_downsized_images_count_by_their_area() -> None:
    made, x = tiny(), torch.rand(10, 1, 8, 8)
    made.training_size = 4
    with Passes() as passes, torch.no_grad():
        made(x)
    assert passes.total == 2.5


def test_nested_counters_do_not_add_to_the_outer_one() -> None:
    Passes.count(100)  # nobody counts
    outer, inner = Passes(), Passes(total=1)
    with outer:
        Passes.count(2)
        with inner:
            Passes.count(30)
        Passes.count(4)
        with suppress(RuntimeError), inner:
            Passes.count(500)
            raise RuntimeError
        Passes.count(6)
    Passes.count(100)
    assert (outer.total, inner.total) == (12, 531)
    with outer:  # a counter may be opened again
        Passes.count(1)
    assert outer.total == 13


def test_a_backbone_without_convolutions_has_a_cost_too() -> None:
    """A linear layer of the image: a gradient of its weights, none of its input."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    forward = 64 * 16 + 16 * 4
    assert backward_cost(backbone, 1, 8) == pytest.approx((64 * 16 + 2 * 16 * 4) / forward)

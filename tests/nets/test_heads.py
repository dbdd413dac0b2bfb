"""Heads: every system's gives logits; logits of prototypes are cosines."""

import pytest
import torch

from openldn.nets.heads import Cosine, HeadBuilder, Linear, projector
from openldn.systems import SYSTEMS

HEADS = {stage.head.__name__: stage.head for system in SYSTEMS.values() for stage in system.stages}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_heads_map_features_to_logits(head: HeadBuilder) -> None:
    torch.manual_seed(0)
    made = head(8, 5, 3)
    assert (made.in_features, made.out_features) == (8, 5)
    z = torch.randn(6, 8)
    logits = made(made.features(z))
    assert logits.shape == (6, 5)
    assert bool(logits.isfinite().all())
    assert logits[:, :3].std() > 0  # of known classes, or of as many clusters
    loss = logits.logsumexp(dim=1).sum()
    felt = torch.autograd.grad(loss, [*made.parameters()], allow_unused=True)
    assert any(g is not None and float(g.abs().max()) > 0 for g in felt)


def test_a_linear_head_is_a_linear_layer_on_the_backbones_features() -> None:
    torch.manual_seed(0)
    head, z = Linear(4, 3).requires_grad_(False), torch.randn(5, 4)
    assert head.features(z) is z
    for i in range(5):
        for k in range(3):
            expected = sum(float(a * b) for a, b in zip(z[i], head.weight[k], strict=True)) + float(
                head.bias[k]
            )
            assert float(head(z)[i, k]) == pytest.approx(expected, abs=1e-6)


def test_prototype_logits_are_cosines_over_a_temperature_whatever_the_lengths() -> None:
    torch.manual_seed(0)
    head, z = Cosine(4, 3).requires_grad_(False), torch.randn(5, 4)
    head.weight.mul_(torch.tensor([[0.1], [1.0], [30.0]]))
    for i in range(5):
        for k in range(3):
            a, b = z[i], head.weight[k]
            cosine = float(a @ b) / float(a.norm()) / float(b.norm())
            assert float(head(7 * z)[i, k]) == pytest.approx(cosine / 0.1, abs=1e-4)


def test_a_projector_has_one_normalised_hidden_layer() -> None:
    torch.manual_seed(0)
    made, z = projector(4, hidden=6, width=3), torch.randn(10, 4)
    hidden = z @ made[0].weight.T
    hidden = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + 1e-5).sqrt()
    expected = hidden.relu() @ made[3].weight.T + made[3].bias
    torch.testing.assert_close(made(z), expected)

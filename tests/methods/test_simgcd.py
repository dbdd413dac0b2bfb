"""SimGCD and GCD: contrastive learning, and self-distillation at a lower temperature."""

import torch
import torch.nn.functional as F
from torch import nn

import toy
from openldn.data.batches import Batch
from openldn.maths.losses import contrast, supervised_contrast
from openldn.methods.gcd import Settings, contrasts
from openldn.methods.simgcd import SimGCD


def test_gcd_weighs_both_contrasts() -> None:
    torch.manual_seed(0)
    a, b, y = torch.randn(6, 4), torch.randn(6, 4), torch.tensor([0, 1, 0])
    found = contrasts(a, b, y, Settings(supervised_weight=0.2, temperature=0.5, supervised_temperature=0.3))
    labelled = supervised_contrast(torch.cat([a[:3], b[:3]]), torch.cat([y, y]), 0.3)
    torch.testing.assert_close(found["labelled"], 0.2 * labelled)
    torch.testing.assert_close(found["unlabelled"], 0.8 * contrast(a, b, 0.5))


def test_simgcd_learns_from_the_other_view_sharpened() -> None:
    objective = toy.training("simgcd", batch=40).objective
    assert isinstance(objective, SimGCD)
    objective.projector = nn.Identity()  # type: ignore[assignment]
    torch.manual_seed(0)
    one, other, y = 3 * torch.randn(8, 6), 3 * torch.randn(8, 6), torch.tensor([0, 1, 0])
    views = tuple(map(toy.as_images, (one, other)))
    batch = Batch(tuple(v[:3] for v in views), y, tuple(v[3:] for v in views), torch.arange(5))
    found = objective.losses(toy.Echo(), toy.Echo(), batch, 1.0)  # type: ignore[arg-type]
    distilled = 0.0  # in the end the teacher's temperature is 0.04 where the student's is 0.1
    for teacher, student in ((one, other), (other, one)):
        q = (teacher * 0.1 / 0.04).softmax(dim=1)
        distilled -= float((q * student.log_softmax(dim=1)).sum()) / 16
    p = torch.cat([one, other]).softmax(dim=1).mean(dim=0)
    terms = 0.65 * contrast(one, other, 1.0) + 0.65 * distilled
    torch.testing.assert_close(found["unlabelled"], terms)
    torch.testing.assert_close(found["entropy"], 0.65 * 2.0 * (p * p.log()).sum())
    given = torch.cat([one[:3], other[:3]])
    twice = torch.cat([y, y])
    labelled = 0.35 * (supervised_contrast(given, twice, 0.07) + F.cross_entropy(given, twice))
    torch.testing.assert_close(found["labelled"], labelled)

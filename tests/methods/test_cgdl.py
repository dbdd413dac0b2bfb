"""CGDL: Gaussians, and the density of known classes."""

import numpy as np
import pytest
import torch

from openldn.methods.cgdl import class_gaussians, divergence, log_density, product
from openldn.nets.classifier import Outputs


def test_gaussians_multiply_and_diverge_as_they_should() -> None:
    torch.manual_seed(0)
    a, b = ((torch.randn(4, 2), torch.randn(4, 2)) for _ in range(2))
    mean, log_variance = product(a, b)
    precision = 1 / a[1].exp() + 1 / b[1].exp()
    torch.testing.assert_close(log_variance.exp(), 1 / precision)
    torch.testing.assert_close(mean, (a[0] / a[1].exp() + b[0] / b[1].exp()) / precision)
    p, q = (torch.distributions.Normal(m, (0.5 * v).exp()) for m, v in (a, b))
    torch.testing.assert_close(divergence(a, b), torch.distributions.kl_divergence(p, q).sum(dim=1))


def test_densities_are_those_of_gaussians_of_rightly_classified_images() -> None:
    """Up to a constant; scatter matrices are shrunk towards the identity."""
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(0)
    y = torch.arange(2).repeat_interleave(40)
    z = torch.from_numpy(rng.standard_normal((80, 3)) + 4 * np.eye(3)[y]).float()
    logits = 5 * torch.nn.functional.one_hot(y, 2).float()
    logits[:5] = logits[:5].flip(1)  # wrong: they do not count
    outputs = Outputs(z, logits)
    state = class_gaussians(outputs, y, 2)
    expected = []
    for k in range(2):
        own = z[(y == k) & (logits.argmax(dim=1) == y)].double().numpy()
        assert len(own) == (35 if k == 0 else 40)
        scatter = np.cov(own.T, bias=True)
        scatter += (0.1 * np.diag(scatter).mean() + 1e-6) * np.eye(3)
        expected.append(multivariate_normal(own.mean(axis=0), scatter).logpdf(z.numpy()))
    found = log_density(outputs, state) - 1.5 * np.log(2 * np.pi)
    assert found.tolist() == pytest.approx(np.max(expected, axis=0).tolist(), rel=1e-3, abs=1e-3)


def test_a_class_that_is_never_classified_rightly_still_has_a_gaussian() -> None:
    z, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)
    state = class_gaussians(Outputs(z, torch.eye(2)[1 - y]), y, 2)
    assert bool(torch.isfinite(state["precision"]).all())
    torch.testing.assert_close(state["means"][0], z[y == 0].mean(dim=0))

"""Positive-unlabelled learning: the optimum of its loss, Elkan and Noto's rule, clusters of the rest."""

import numpy as np
import pytest
import torch

import toy
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.maths.metrics import confusion, matched
from openldn.methods.pu_clustering import (
    Augmented,
    ClusterTheRest,
    Settings,
    known_probabilities,
    pu_losses,
    whitening,
)
from openldn.nets.classifier import Outputs

# Six kinds of images: two known classes and a novel one, of which the fourth kind may be known or novel.
P_LABELLED = torch.tensor(
    [[0.3, 0.1, 0.0, 0.1, 0.0, 0.0], [0.0, 0.1, 0.4, 0.0, 0.0, 0.0]]
)  # by class, sums to 1
P_NOVEL = torch.tensor([0.0, 0.0, 0.0, 0.2, 0.5, 0.3])


@pytest.mark.parametrize("w", [0.5, 1.5])
def test_the_optimum_of_the_loss_gives_the_probability_of_being_known(w: float) -> None:
    """Descent on the expected loss over a table of logits, then Elkan and Noto's rule, against counting."""
    share = 0.4
    p_unlabelled = share * P_LABELLED.sum(0) + (1 - share) * P_NOVEL
    logits = torch.zeros(6, 3, requires_grad=True)
    steps = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9, tolerance_change=0)

    def loss() -> torch.Tensor:
        steps.zero_grad()
        terms = [
            pu_losses(logits[i : i + 1], torch.tensor([k]), logits[i : i + 1], w)
            for k in range(2)
            for i in range(6)
        ]
        labelled = sum(p * s["ce"] for p, s in zip(P_LABELLED.flatten(), terms, strict=True))
        total = labelled + sum(p * s["unlabelled"] for p, s in zip(p_unlabelled, terms, strict=False))
        total.backward()  # type: ignore[union-attr]
        return total  # type: ignore[return-value]

    steps.step(loss)
    found = known_probabilities(logits.detach(), torch.tensor(share), torch.tensor(w))
    expected = share * P_LABELLED.T / p_unlabelled[:, None]
    assert torch.allclose(found, expected, atol=2e-3)


def test_probabilities_of_known_classes_sum_to_at_most_one() -> None:
    p = known_probabilities(
        torch.tensor([[9.0, 0.0, -9.0], [0.0, 0.0, 200.0], [-200.0, 200.0, -200.0]]),
        *torch.tensor([0.5, 0.5]),
    )
    assert (p >= 0).all()
    assert (p.sum(dim=1) <= 1 + 1e-6).all()
    assert p[1].sum() < 1e-6
    assert p[2].sum() == 1


def elongated(n: int = 300) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Two known and two novel classes, their features and labels; the second feature is noise alone."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), n)
    z = np.stack([3.0 * (y % 2) + rng.normal(0, 0.4, 4 * n), rng.normal(0, 15, 4 * n)], axis=1)
    z = np.concatenate([z, 3.0 * (y[:, None] > 1) + rng.normal(0, 0.4, (4 * n, 1))], axis=1)
    labels = np.where((y < 2) & (rng.random(4 * n) < 0.5), y, -1)
    problem = Problem(
        torch.zeros(4 * n, 1, 8, 8, dtype=torch.uint8),
        torch.from_numpy(labels),
        tuple(map(str, range(4 * n))),
        ("a", "b"),
        n_novel=2,
    )
    return problem, torch.from_numpy(z).float(), torch.from_numpy(y)


@pytest.mark.parametrize("early", [False, True])
def test_clusters_ignore_directions_that_augmentation_changes(early: bool) -> None:
    """In features of the second-to-last stage, if there are any."""
    from sklearn.cluster import KMeans

    problem, z, y = elongated()
    torch.manual_seed(0)
    # A network that tells known from novel well, but not perfectly.
    novel = (z[:, 2] - 1.5) * 4
    logits = torch.stack([-3 * z[:, 0], 3 * z[:, 0] - 9, novel], dim=1)

    def outputs(images: Images) -> Outputs:
        if not isinstance(images, Augmented):
            return seen(problem.labelled if len(images) == len(problem.labelled) else problem.unlabelled)
        assert isinstance(images.images, Part)  # a view changes the second feature as much as it varies
        return seen(images.images.rows, torch.tensor([0.3, 15.0, 0.3]))

    def seen(rows: torch.Tensor, changed: torch.Tensor | float = 0.0) -> Outputs:
        made = z[rows] + torch.randn(len(rows), 3) * changed
        return Outputs(torch.rand(len(rows), 5), logits[rows], made) if early else Outputs(made, logits[rows])

    predictor = ClusterTheRest(Settings())
    predictor.fit(outputs, problem, seed=0)
    u, true = problem.unlabelled, y[problem.unlabelled].numpy()
    p = predictor.probabilities(seen(u))
    assert torch.allclose(p.sum(dim=1), torch.ones(len(u)), atol=1e-5)
    assert torch.allclose(p.mean(dim=0), problem.class_prior(), atol=3e-3)
    right = matched(confusion(true, p.argmax(1).numpy(), 4, 4)) / len(u)
    assert right > 0.95
    blind = KMeans(4, n_init=10, random_state=0).fit(z[u].numpy()).labels_
    assert matched(confusion(true, blind, 4, 4)) / len(u) < 0.6
    assert predictor.fits(predictor.state, 3, 2, 2)
    assert not predictor.fits(predictor.state, 4, 2, 2)
    assert not predictor.fits(predictor.state | {"centres": torch.zeros(3, 3)}, 3, 2, 2)
    assert not predictor.fits(predictor.state | {"whitening": torch.zeros(3, 2)}, 3, 2, 2)


def test_augmented_images_are_a_function_of_their_keys() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 3, 16, 16), dtype=np.uint8))
    rows = torch.tensor([4, 1])
    one, other = (Augmented(images, True, None, keys=(0, k)) for k in range(2))
    assert (len(one), one.shape, one[rows].dtype) == (9, images.shape, torch.uint8)
    assert torch.equal(one[rows], one[torch.arange(9)][rows])  # whatever other rows are asked for
    assert not torch.equal(one[rows], other[rows])
    assert not torch.equal(one[rows], images[rows])


def test_whitened_views_vary_equally_in_all_directions() -> None:
    """Views of an image around their mean have unit covariance, up to the shrinkage."""
    torch.manual_seed(0)
    mix = torch.randn(4, 4, dtype=torch.float64)
    views = (torch.randn(1, 300, 4) * 9 + torch.randn(6, 300, 4) @ mix.float()).float()
    made = whitening(views, shrink=0.0)
    within = ((views - views.mean(dim=0)) @ made).flatten(0, 1).double()
    covariance = within.T @ within / len(within)
    torch.testing.assert_close(covariance, torch.eye(4, dtype=torch.float64), atol=1e-3, rtol=0)
    shrunk = ((views - views.mean(dim=0)) @ whitening(views, shrink=10.0)).flatten(0, 1)
    assert float((shrunk.T @ shrunk / len(shrunk)).diagonal().max()) < 0.5


@pytest.mark.parametrize(
    ("max_epochs", "max_images", "images"), [(2.0, 0, 360), (0.5, 500, 500), (0.5, 0, 90)]
)
def test_early_stopping_comes_after_some_epochs_or_images(
    max_epochs: float, max_images: int, images: int
) -> None:
    """There are 180 unlabelled images."""
    training = toy.training("pu-clustering", max_epochs=max_epochs, max_images=max_images, batch=40)
    assert training.objective.max_steps() == round(images / training.composition.unlabelled)
    assert training.clock(1e9).max_steps == training.objective.max_steps()

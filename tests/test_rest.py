"""Known classes against the rest: what the loss leads to, what follows from it, and groups of the rest."""

import numpy as np
import pytest
import torch

from openldn import rest
from openldn.balance import shares
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.metrics import confusion, matched
from openldn.nets.classifier import Classifier, Outputs
from openldn.phases.schedule import oversampled, side
from openldn.predictors import Groups, Seen

# Six kinds of images. Two known classes and a novel one; a known and the novel class share the fourth kind.
P_LABELLED = torch.tensor(
    [[0.3, 0.1, 0.0, 0.1, 0.0, 0.0], [0.0, 0.1, 0.4, 0.0, 0.0, 0.0]]
)  # by class, sums to 1
P_NOVEL = torch.tensor([0.0, 0.0, 0.0, 0.2, 0.5, 0.3])


def test_what_the_loss_leads_to_is_the_share_of_known_images() -> None:
    """Descent on the expected loss over a table of logits, then Elkan and Noto's rule, against counting."""
    share = 0.4
    p_unlabelled = share * P_LABELLED.sum(0) + (1 - share) * P_NOVEL
    logits = torch.zeros(6, 3, requires_grad=True)
    steps = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9, tolerance_change=0)

    def loss() -> torch.Tensor:
        steps.zero_grad()
        said = [
            rest.rest_losses(logits[i : i + 1], torch.tensor([k]), logits[i : i + 1])
            for k in range(2)
            for i in range(6)
        ]
        labelled = sum(w * s["ce"] for w, s in zip(P_LABELLED.flatten(), said, strict=True))
        total = labelled + sum(w * s["rest"] for w, s in zip(p_unlabelled, said, strict=False))
        total.backward()  # type: ignore[union-attr]
        return total  # type: ignore[return-value]

    steps.step(loss)
    found = rest.known(logits.detach(), torch.tensor(share))
    expected = share * P_LABELLED.T / p_unlabelled[:, None]
    assert torch.allclose(found, expected, atol=2e-3)


def test_no_more_than_all_of_it_is_known() -> None:
    p = rest.known(
        torch.tensor([[9.0, 0.0, -9.0], [0.0, 0.0, 200.0], [-200.0, 200.0, -200.0]]), torch.tensor(0.5)
    )
    assert (p >= 0).all()
    assert (p.sum(dim=1) <= 1 + 1e-6).all()
    assert p[1].sum() < 1e-6
    assert p[2].sum() == 1


def elongated(n: int = 300) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Two known and two novel classes that vary a lot in a direction that tells nothing, and features."""
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
def test_groups_do_not_follow_what_views_change(early: bool) -> None:
    """In features of the stage before the last, if there are any."""
    from sklearn.cluster import KMeans

    problem, z, y = elongated()
    torch.manual_seed(0)
    # A network that tells known from novel well, but not perfectly.
    novel = (z[:, 2] - 1.5) * 4
    logits = torch.stack([-3 * z[:, 0], 3 * z[:, 0] - 9, novel], dim=1)

    def outputs(images: Images) -> Outputs:
        if not isinstance(images, Seen):
            return seen(problem.labelled if len(images) == len(problem.labelled) else problem.unlabelled)
        assert isinstance(images.images, Part)  # a view changes the second feature as much as it varies
        return seen(images.images.rows, torch.tensor([0.3, 15.0, 0.3]))

    def seen(rows: torch.Tensor, changed: torch.Tensor | float = 0.0) -> Outputs:
        made = z[rows] + torch.randn(len(rows), 3) * changed
        return Outputs(torch.rand(len(rows), 5), logits[rows], made) if early else Outputs(made, logits[rows])

    predictor = Groups()
    predictor.fit(outputs, problem, seed=0)
    u, true = problem.unlabelled, y[problem.unlabelled].numpy()
    p = predictor.probabilities(seen(u))
    assert torch.allclose(p.sum(dim=1), torch.ones(len(u)), atol=1e-5)
    assert torch.allclose(p.mean(dim=0), shares(problem), atol=3e-3)
    right = matched(confusion(true, p.argmax(1).numpy(), 4, 4)) / len(u)
    assert right > 0.95
    blind = KMeans(4, n_init=10, random_state=0).fit(z[u].numpy()).labels_
    assert matched(confusion(true, blind, 4, 4)) / len(u) < 0.6
    assert predictor.fits(predictor.state, 3, 2, 2)
    assert not predictor.fits(predictor.state, 4, 2, 2)
    assert not predictor.fits(predictor.state | {"centres": torch.zeros(3, 3)}, 3, 2, 2)
    assert not predictor.fits(predictor.state | {"round": torch.zeros(3, 2)}, 3, 2, 2)


def test_views_are_as_many_images_of_the_same_size_and_come_again() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 3, 16, 16), dtype=np.uint8))
    rows = torch.tensor([4, 1])
    one, other = Seen(images, True, keys=(0, 0)), Seen(images, True, keys=(0, 1))
    assert (len(one), one.shape, one[rows].dtype) == (9, images.shape, torch.uint8)
    assert torch.equal(one[rows], one[torch.arange(9)][rows])  # whoever else is asked about
    assert not torch.equal(one[rows], other[rows])
    assert not torch.equal(one[rows], images[rows])


@pytest.mark.parametrize(
    ("size", "expected"), [(32, [16, 24, 32]), (28, [14, 21, 28]), (20, [14, 15, 20]), (8, [8, 8, 8])]
)
def test_images_grow_in_thirds_and_are_never_too_small(size: int, expected: list[int]) -> None:
    assert [side(progress, size) for progress in (0.0, 0.34, 0.67)] == expected
    assert side(1.0, size) == size


def test_a_network_sees_images_at_the_size_it_was_told() -> None:
    class Sees(torch.nn.Module):
        out_features = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.shape = x.shape
            return x.mean(dim=(2, 3))

    network = Classifier(Sees(), 2, torch.zeros(3), torch.ones(3), 32)
    x = torch.full((2, 3, 32, 32), 0.25)
    for pixels in (None, 16, 32):
        network.pixels = pixels
        assert torch.allclose(network(x).z, torch.tensor(0.25))
        assert network.backbone.shape == (2, 3, pixels or 32, pixels or 32)


@pytest.mark.parametrize(
    ("n_labelled", "n_unlabelled"), [(250, 750), (50, 950), (900, 100), (1, 999), (999, 1)]
)
def test_labelled_images_are_seen_more_often_within_reason(n_labelled: int, n_unlabelled: int) -> None:
    """Three times as often as others, to the nearest image of a batch, but never more than half of it."""
    labels = torch.tensor([0] * n_labelled + [-1] * n_unlabelled)
    names = tuple(map(str, range(1000)))
    problem = Problem(torch.zeros(1000, 1, 8, 8, dtype=torch.uint8), labels, names, (0,), n_novel=1)
    few, many = oversampled(problem, 100, 3.0)
    assert few + many == 100
    assert 1 <= few <= 50
    often = [k / n_labelled / ((100 - k) / n_unlabelled) for k in range(1, 51)]
    assert abs(often[few - 1] - 3) == min(abs(each - 3) for each in often)

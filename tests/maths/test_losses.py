"""Every term against its formula written out in loops."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.maths.losses import (
    contrast,
    cosine,
    entropy_loss,
    mixup,
    nearest_pairs,
    pair_bce,
    pair_loss,
    pseudo_label_loss,
    sharpen,
    sinkhorn,
    supervised_contrast,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probabilities(n: int, c: int, seed: int = 0) -> Tensor:
    return (2 * normal(n, c, seed=seed)).softmax(dim=1)


def similarities(n: int, seed: int = 0) -> Tensor:
    return normal(n, n, seed=seed + 100).sigmoid()


def cos(a: Tensor, b: Tensor) -> float:
    x, y = a.tolist(), b.tolist()
    dot = sum(i * j for i, j in zip(x, y, strict=True))
    return dot / math.sqrt(sum(i * i for i in x)) / math.sqrt(sum(j * j for j in y))


# ---------------------------------------------------------------------------------------- pairs


def test_cosine_of_every_pair() -> None:
    x = normal(5, 3)
    for i in range(5):
        for j in range(5):
            assert float(cosine(x)[i, j]) == pytest.approx(cos(x[i], x[j]), abs=1e-12)


def test_cosine_with_a_row_of_zeros_is_zero() -> None:
    assert cosine(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0, 0], [0, pytest.approx(1)]]


def test_pair_loss_is_the_mean_over_all_ordered_pairs() -> None:
    p, s = probabilities(6, 4), similarities(6)
    total = sum((cos(p[i], p[j]) - float(s[i, j])) ** 2 for i in range(6) for j in range(6))
    assert float(pair_loss(p, s)) == pytest.approx(total / 36, abs=1e-12)


def test_pair_loss_by_hand() -> None:
    """Two images of one class, one of another: only the pair said to differ costs, 1 in each order."""
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    s = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert float(pair_loss(p, s)) == pytest.approx(2 / 9)


def test_pair_loss_does_not_grow_with_the_batch() -> None:
    p, s = probabilities(5, 3), similarities(5)
    once = float(pair_loss(p, s))
    assert float(pair_loss(p.repeat(2, 1), s.repeat(2, 2))) == pytest.approx(once, rel=1e-12)
    assert float(pair_loss(p.repeat(7, 1), s.repeat(7, 7))) == pytest.approx(once, rel=1e-12)


def test_pair_bce_is_the_mean_cross_entropy_over_all_ordered_pairs() -> None:
    p, s = probabilities(6, 4), (similarities(6) > 0.5).double()
    total = 0.0
    for i in range(6):
        for j in range(6):
            c = min(max(cos(p[i], p[j]), 1e-6), 1 - 1e-6)
            total -= math.log(c) if s[i, j] else math.log(1 - c)
    assert float(pair_bce(p, s)) == pytest.approx(total / 36, rel=1e-9)


def test_pair_bce_is_finite_where_predictions_are_certain_and_wrong() -> None:
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    s = 1 - (p.detach() @ p.detach().T)
    loss = pair_bce(p, s)
    assert loss.item() == pytest.approx(-math.log(1e-6), rel=1e-6)
    loss.backward()
    assert bool(p.grad.isfinite().all())


# -------------------------------------------------------------------------------------- entropy


def test_entropy_loss_by_hand() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert float(entropy_loss(p)) == pytest.approx(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))


@pytest.mark.parametrize("c", [2, 5, 10])
def test_entropy_loss_is_lowest_where_all_classes_are_in_use(c: int) -> None:
    """It is the mean prediction that should be uniform; each one may be certain."""
    lowest = float(entropy_loss(torch.eye(c, dtype=torch.float64)))
    assert lowest == pytest.approx(-math.log(c), abs=1e-9)
    for seed in range(20):
        assert float(entropy_loss(probabilities(8, c, seed))) > lowest
    collapsed = torch.eye(c, dtype=torch.float64)[[0] * 8].requires_grad_()
    highest = entropy_loss(collapsed)
    assert highest.item() == pytest.approx(0, abs=1e-5)
    highest.backward()
    assert bool(collapsed.grad.isfinite().all())


# --------------------------------------------------------------------------------- pseudo-labels


@pytest.mark.parametrize("tau", [0.0, 0.5, 0.7, 0.95, 1.0])
def test_pseudo_label_loss_keeps_masked_rows_in_the_denominator(tau: float) -> None:
    weak, strong = 2 * normal(12, 4), normal(12, 4, seed=1)
    total, above = 0.0, 0
    for w, s in zip(weak.softmax(dim=1).tolist(), strong.softmax(dim=1).tolist(), strict=True):
        if max(w) >= tau:
            above += 1
            total -= math.log(s[w.index(max(w))])
    loss, share = pseudo_label_loss(weak, strong, tau)
    assert float(loss) == pytest.approx(total / 12, rel=1e-12)
    assert float(share) == pytest.approx(above / 12)
    if tau == 0.7:
        assert 0 < above < 12


def test_a_confidence_that_equals_tau_counts() -> None:
    weak, strong = torch.zeros(3, 2), torch.tensor([[0.0, 1.0]] * 3)
    loss, share = pseudo_label_loss(weak, strong, 0.5)
    assert float(share) == 1
    assert float(loss) == pytest.approx(math.log(1 + math.e))
    loss, share = pseudo_label_loss(weak, strong, 0.5000001)
    assert float(share) == 0
    assert float(loss) == 0


def test_pseudo_labels_teach_the_strong_view_alone() -> None:
    weak, strong = (2 * normal(6, 3)).requires_grad_(), normal(6, 3, seed=1).requires_grad_()
    loss, share = pseudo_label_loss(weak, strong, 0.7)
    loss.backward()
    assert weak.grad is None
    assert not share.requires_grad
    confidence, target = weak.detach().softmax(dim=1).max(dim=1)
    assert 0 < int((confidence >= 0.7).sum()) < 6
    for i in range(6):
        slope = strong.detach()[i].softmax(dim=0)
        slope[target[i]] -= 1
        expected = slope / 6 if confidence[i] >= 0.7 else torch.zeros(3, dtype=torch.float64)
        assert torch.allclose(strong.grad[i], expected, atol=1e-12)


# ------------------------------------------------------------------------------- nearest neighbours


def partner(z: Tensor, y: list[int], i: int) -> int:
    """ORCA's rule for row i, in a loop."""
    n_labelled = len(y)
    if i < n_labelled:
        allowed = [j for j in range(n_labelled) if j != i and y[j] == y[i]]
    else:
        allowed = [j for j in range(len(z)) if j != i]
    return max(allowed, key=lambda j: cos(z[i], z[j]), default=i)


@pytest.mark.parametrize("seed", range(20))
def test_nearest_pairs_against_brute_force(seed: int) -> None:
    z = normal(14, 3, seed=seed)
    y = torch.randint(0, 4, (6,), generator=torch.Generator().manual_seed(seed))
    found = nearest_pairs(z, y).tolist()
    assert found == [partner(z, y.tolist(), i) for i in range(14)]
    assert all(found[i] != i for i in range(6, 14))


def test_a_labelled_row_alone_in_its_class_is_its_own_partner() -> None:
    z = normal(6, 3)
    z[4] = z[1]  # an unlabelled twin does not matter
    found = nearest_pairs(z, torch.tensor([0, 1, 0, 2])).tolist()
    assert found[:4] == [2, 1, 0, 3]
    assert found[4] == 1


@pytest.mark.parametrize("opposite", [-1.0, -0.1, -7.3])
def test_opposite_features_are_still_other_rows(opposite: float) -> None:
    """A cosine of -1, or what rounding makes of it, is no reason to choose oneself."""
    base = normal(1, 5).float()
    labelled, unlabelled = torch.tensor([3, 3]), torch.empty(0, dtype=torch.int64)
    for y in (labelled, unlabelled):
        assert nearest_pairs(torch.cat([base, opposite * base]), y).tolist() == [1, 0]


def test_without_labels_every_row_has_its_nearest_other() -> None:
    z = normal(9, 4)
    y = torch.empty(0, dtype=torch.int64)
    assert nearest_pairs(z, y).tolist() == [partner(z, [], i) for i in range(9)]


# ------------------------------------------------------------------------------ sharpening, mixing


def entropy(row: list[float]) -> float:
    return -sum(q * math.log(q) for q in row if q > 0)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 0.9])
def test_sharpen_brings_rows_closer_to_one_hot(temperature: float) -> None:
    p = probabilities(8, 5)
    made = sharpen(p, temperature)
    for before, after in zip(p.tolist(), made.tolist(), strict=True):
        powers = [q ** (1 / temperature) for q in before]
        assert after == pytest.approx([q / sum(powers) for q in powers], rel=1e-9)
        assert sum(after) == pytest.approx(1, rel=1e-12)
        assert entropy(after) < entropy(before)
        assert after.index(max(after)) == before.index(max(before))


def test_sharpen_leaves_what_cannot_be_sharper() -> None:
    p = probabilities(4, 3)
    assert torch.allclose(sharpen(p, 1.0), p)
    still = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    assert torch.allclose(sharpen(still, 0.5), still)


def test_mixup_keeps_the_larger_share_its_own() -> None:
    """Rows of the identity show who was mixed with whom, and by how much."""
    n, y = 6, probabilities(6, 3).float()
    for seed in range(30):
        torch.manual_seed(seed)
        shares, targets = mixup(0.75, torch.eye(n), y)
        own = shares.diagonal()
        assert float(own.min()) >= 0.5
        assert shares.sum(dim=0).tolist() == pytest.approx([1] * n)  # everyone is someone's other
        assert shares.sum(dim=1).tolist() == pytest.approx([1] * n)
        assert int((shares > 0).sum(dim=1).max()) <= 2
        assert torch.allclose(targets, shares @ y, atol=1e-6)  # the same for inputs and targets


@pytest.mark.parametrize("alpha", [0.2, 0.75, 1.0])
def test_mixup_draws_its_share_from_a_beta_distribution(alpha: float) -> None:
    torch.manual_seed(0)
    x = torch.eye(8)
    drawn = []
    while len(drawn) < 500:
        own = mixup(alpha, x)[0].diagonal().min()
        drawn.append(float(own))  # rows mixed with themselves have 1
    other = np.random.default_rng(0).beta(alpha, alpha, 100_000)
    expected = np.maximum(other, 1 - other)
    bound = 5 * expected.std() / math.sqrt(500)
    assert np.mean(drawn) == pytest.approx(expected.mean(), abs=bound)
    assert np.median(drawn) == pytest.approx(np.median(expected), abs=0.06)


def test_mixup_takes_images_and_leaves_its_input() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(5, 3, 4, 4), torch.eye(5)
    before = x.clone()
    mixed, targets = mixup(0.5, x, y)
    assert torch.equal(x, before)
    assert torch.equal(y, torch.eye(5))
    expected = torch.einsum("ij,jchw->ichw", targets, x)
    assert torch.allclose(mixed, expected, atol=1e-6)


def test_mixup_of_zero_is_none() -> None:
    """As settings say."""
    x, y = torch.rand(5, 3), torch.eye(5)
    for own in (True, False):
        mixed, targets = mixup(0.0, x, y, own=own)
        assert torch.equal(mixed, x)
        assert torch.equal(targets, y)


# --------------------------------------------------------------------------- contrastive, Sinkhorn


def test_nt_xent_against_a_loop() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    rows = [F.normalize(row, dim=0) for row in torch.cat([a, b])]
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10
        others = sum(math.exp(float(rows[i] @ rows[j]) / 0.2) for j in range(10) if j != i)
        total -= math.log(math.exp(float(rows[i] @ rows[partner]) / 0.2) / others)
    assert float(contrast(a, b, 0.2)) == pytest.approx(total / 10, rel=1e-5)


def test_supervised_contrast_against_a_loop() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(6, 3), [0, 1, 0, 2, 1, 0]  # the one of class 2 has no positive
    rows = [F.normalize(row, dim=0) for row in z]
    losses = []
    for i in range(6):
        same = [j for j in range(6) if j != i and y[j] == y[i]]
        others = sum(math.exp(float(rows[i] @ rows[j]) / 0.1) for j in range(6) if j != i)
        if same:
            each = [math.log(math.exp(float(rows[i] @ rows[j]) / 0.1) / others) for j in same]
            losses.append(-sum(each) / len(same))
    found = supervised_contrast(z, torch.tensor(y), 0.1)
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert float(supervised_contrast(z[:3], torch.arange(3), 0.1)) == 0  # no row has a positive


@pytest.mark.parametrize("prior", [None, [0.5, 0.3, 0.2]])
def test_sinkhorn_follows_the_prior(prior: list[float] | None) -> None:
    torch.manual_seed(0)
    scores = torch.randn(40, 3)
    wanted = torch.tensor(prior or [1 / 3] * 3)
    q = sinkhorn(scores, eps=0.5, rounds=200, prior=None if prior is None else wanted)
    torch.testing.assert_close(q.sum(dim=1), torch.ones(40))
    torch.testing.assert_close(q.mean(dim=0), wanted, atol=1e-4, rtol=0)
    # The textbook form: the columns and rows of an exponential are scaled in turn.
    plain = (scores.double() / 0.5).exp()
    for _ in range(200):
        plain = plain / plain.sum(dim=0) * wanted.double() * 40
        plain = plain / plain.sum(dim=1, keepdim=True)
    torch.testing.assert_close(q, plain.float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinkhorn_does_not_overflow(dtype: torch.dtype) -> None:
    scores = torch.tensor([[9.0, -9.0], [8.0, 7.0], [-9.0, -9.0]], dtype=dtype)  # e^180 overflows
    q = sinkhorn(scores)
    assert torch.isfinite(q).all()
    torch.testing.assert_close(q.sum(dim=1), torch.ones(3))

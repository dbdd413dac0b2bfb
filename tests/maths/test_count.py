"""The number of novel classes: ours with its interval and evidence, DTC's and GCD's."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.maths import count
from openldn.maths.count import Clustering


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer hidings than by default."""
    monkeypatch.setattr(count, "HIDINGS", 4)


def blobs(
    sizes: list[int],
    n_known: int,
    share: float = 0.5,
    noise: float = 0.3,
    seed: int = 0,
    d: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Blobs far apart, of which the first are known; of these, a share is labelled.  (n, d), (n,)"""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    d = d or len(sizes)
    z = 5 * np.eye(d)[kinds] + noise * rng.standard_normal((len(kinds), d))
    first = np.concatenate([np.arange(size) < share * size for size in sizes])
    labels = np.where((kinds < n_known) & first, kinds, -1)
    order = rng.permutation(len(kinds))
    return torch.from_numpy(z[order]).float(), torch.from_numpy(labels[order])


def test_the_number_of_novel_blobs_is_found_with_its_interval_and_evidence() -> None:
    """Seven, of which four are known and half labelled."""
    z, labels = blobs([60] * 7, 4)
    found = count.estimate(z, labels, 4, seed=0)
    assert found.n_novel == 3
    assert found.low <= 3 <= found.high
    assert found.low < found.high < 6
    seen = found.evidence
    assert seen.images == 420
    assert seen.labelled_share == pytest.approx(0.5, rel=0.1)
    assert seen.novel_images == pytest.approx(180 / 300, rel=0.1)
    assert seen.by_size == pytest.approx(3, rel=0.25)
    assert seen.mixing < 0.05
    assert len(seen.groups) == len(seen.per_known) == len(seen.novel)
    assert seen.by_groups == pytest.approx(np.interp(1, seen.per_known, seen.novel), rel=0.2)
    np.testing.assert_allclose(seen.hidden, 3, atol=1)
    assert count.estimate(z, labels, 4, seed=0) == found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_blobs_are_counted_whatever_the_seed(seed: int) -> None:
    z, labels = blobs([60] * 7, 4, seed=seed)
    assert count.estimate(z, labels, 4, seed=seed).n_novel == 3


@pytest.mark.parametrize(("n_known", "n_novel"), [(3, 12), (12, 3), (2, 2)])
def test_more_or_fewer_novel_than_known_classes(n_known: int, n_novel: int) -> None:
    z, labels = blobs([40] * (n_known + n_novel), n_known)
    found = count.estimate(z, labels, n_known, seed=1)
    assert abs(found.n_novel - n_novel) <= 0.2 * n_novel
    assert found.low <= n_novel <= found.high


@pytest.mark.parametrize("factor", [3, 1 / 3])
def test_novel_classes_larger_or_smaller_than_known_ones_are_not_counted_by_size(factor: float) -> None:
    z, labels = blobs([60] * 5 + [round(60 * factor)] * 6, 5)
    found = count.estimate(z, labels, 5, seed=0)
    assert abs(found.evidence.by_size - 6 * factor) < 2  # the number of images misleads
    assert 5 <= found.n_novel <= 8


def test_known_classes_may_be_labelled_entirely() -> None:
    """Then no unlabelled image is known."""
    z, labels = blobs([50] * 8, 5, share=1)
    found = count.estimate(z, labels, 5, seed=0)
    assert found.evidence.labelled_share > 0.9
    assert found.n_novel == 3


def test_hiding_known_classes_adds_as_many_novel_ones() -> None:
    z, labels = blobs([50] * 9, 6)
    fewer = torch.where(labels >= 4, -1, labels)
    assert count.estimate(z, labels, 6, seed=0).n_novel == 3
    assert count.estimate(z, fewer, 4, seed=0).n_novel in (5, 6)  # it leans over
    # Known classes of which no image is labelled are not novel, whatever their ids.
    assert count.estimate(z, fewer, 6, seed=0).n_novel in (3, 4)
    assert count.estimate(z, torch.where(fewer >= 0, 5 - fewer, -1), 6, seed=0).n_novel in (3, 4)


def test_classes_that_mix_and_few_known_classes_widen_the_interval() -> None:
    def width(noise: float, n_known: int) -> float:
        z, labels = blobs([50] * (n_known + 6), n_known, noise=noise)
        found = count.estimate(z, labels, n_known, seed=0)
        return math.log((found.high + 1) / (found.low + 1))

    assert width(2.5, 6) > 1.3 * width(0.3, 6)
    assert width(0.3, 1) > 1.3 * width(0.3, 6)


def test_a_few_images_are_enough_for_an_estimate() -> None:
    """And images that are all alike do not stop it."""
    z, labels = torch.eye(3).repeat_interleave(2, dim=0), torch.tensor([0, 0, 1, 1, -1, -1])
    assert count.estimate(z, labels, 2, seed=0).n_novel == 1
    assert (
        count.estimate(z[[0, 2, 4]], labels[[0, 2, 4]], 2, seed=0).n_novel == 1
    )  # as many as there are images
    for estimator in (count.dtc, count.gcd, lambda *a, seed: count.estimate(*a, seed=seed).n_novel):
        assert 1 <= estimator(z, labels, 2, seed=0) <= 4
        assert estimator(z[[0, 2, 4]], labels[[0, 2, 4]], 2, seed=0) == 1
        assert 1 <= estimator(torch.ones(6, 3), labels, 2, seed=0) <= 4


def test_without_labels_there_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="without labels"):
        count.estimate(torch.eye(4), torch.full((4,), -1), 0, seed=0)


def test_a_sample_is_even_and_larger_where_labels_are_few() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(50_000) % 2 == 0, np.arange(50_000) % 10, -1)
    rows = count._sample(labels, 10, rng)
    assert len(rows) == len(set(rows.tolist())) == 3000
    assert np.mean(labels[rows] >= 0) == pytest.approx(0.5, abs=0.05)
    rare = np.where(np.arange(50_000) < 1000, 0, -1)
    assert len(count._sample(rare, 10, rng)) == 5000
    one = np.full(50_000, -1)
    one[7] = 0
    assert 7 in count._sample(one, 1, rng)


@pytest.mark.parametrize("n", [50, 150])
def test_reduction_keeps_the_largest_components(n: int) -> None:
    """Whether images or dimensions are more."""
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((n, 100)) * np.linspace(3, 0.1, 100))
    unit = (z / z.norm(dim=1, keepdim=True)).numpy()
    centred = unit - unit.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    expected = u[:, :20] * s[:20]
    found = count._reduced(z, 20)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-9)


def test_groups_have_unbiased_variances() -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)) + np.repeat([[0.0], [50.0]], 20, axis=0)
    found = count._clustering(x, 2, 0)
    for c in range(2):
        mine = x[found.group == c]
        assert found.size[c] == len(mine)
        assert found.spread[c] == pytest.approx(mine.var(axis=0, ddof=1).sum())


def groups_of(parts: list[tuple[float, int]], share: float, seed: int = 0) -> tuple[Clustering, np.ndarray]:
    """Groups of which a part is of one known class each, and labels."""
    rng = np.random.default_rng(seed)
    sizes = np.array([size for _, size in parts])
    group = np.repeat(np.arange(len(parts)), sizes)
    known = np.concatenate([rng.random(size) < part for part, size in parts])
    labels = np.where(known & (rng.random(len(group)) < share), group, -1)
    return Clustering(group, sizes, np.ones(len(parts))), labels


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_labelled_share_is_that_of_known_groups(share: float) -> None:
    """Some groups are half known: the share is not the mean over groups with labels."""
    clustering, labels = groups_of([(1, 100)] * 36 + [(0, 100)] * 24 + [(0.5, 100)] * 12, share)
    found = count._labelled_share([[clustering]], count._renumbered(labels))
    assert found == pytest.approx(share, rel=0.12)
    assert (labels >= 0).sum() / (48 * 100) < 0.9 * share
    known, novel, inside, outside = count._counts([clustering], labels, found)
    assert known == pytest.approx(42, rel=0.1)
    assert known + novel == pytest.approx(72)
    assert inside == outside == 1


def test_mixing_is_the_share_of_pairs_of_two_classes() -> None:
    group, labels = np.repeat([0, 1, 2], 10), np.array([0] * 6 + [1] * 4 + [1] * 10 + [-1] * 10)
    clustering = Clustering(group, np.array([10, 10, 10]), np.ones(3))
    # Pairs in the first group: 6 * 5 + 4 * 3 of 10 * 9 are of one class; in the second all are.
    assert count._mixing([clustering], labels, 1.0) == pytest.approx((1 - 42 / 90) / 2)
    assert count._mixing([clustering], np.where(labels == 0, 0, -1), 1.0) == 0


def test_crossings_lie_between_two_points() -> None:
    assert count._crossing(np.array([-1.0, -0.5, 1.5])) == pytest.approx(1.25)
    assert count._crossing(np.array([0.5, 1.0])) == 0
    assert count._crossing(np.array([-2.0, -1.0])) == 1
    assert count._between(np.array([3.0, 5.0, 9.0]), 1.25) == 6


def test_the_silhouette_is_scikit_learns() -> None:
    from sklearn.metrics import silhouette_samples

    rng = np.random.default_rng(0)
    x, group = rng.standard_normal((30, 3)), rng.permutation(np.arange(30) % 5)
    group[group == 3] = 2  # an empty group
    group[0] = 5  # an image alone
    t = torch.from_numpy(x)
    for m in (30, 12):
        found = count._silhouette(torch.cdist(t, t)[:m], torch.from_numpy(group))
        assert found == pytest.approx(silhouette_samples(x, group)[:m].mean())
    assert count._silhouette(torch.cdist(t, t), torch.zeros(30, dtype=torch.int64)) == 0


@pytest.mark.parametrize("estimator", [count.dtc, count.gcd])
def test_the_published_estimators_find_blobs(
    estimator: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "MOST_NOVEL", 15)
    z, labels = blobs([40] * 9, 5)
    found = estimator(z, labels, 5, seed=0)
    assert abs(found - 4) <= 2
    assert estimator(z, labels, 5, seed=0) == found


def test_dtc_drops_groups_below_a_hundredth_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images far from all others are a group, but no class."""
    monkeypatch.setattr(count, "MOST_NOVEL", 8)
    z, labels = blobs([300] * 5, 3, share=0.3)
    z = torch.cat([torch.nn.functional.pad(z, (0, 1)), torch.tensor([[0.0] * 5 + [50.0]] * 2)])
    labels = torch.cat([labels, torch.tensor([-1, -1])])
    assert count.dtc(z, labels, 3, seed=0) == 2


@pytest.mark.parametrize("n_novel", [4, 10])
def test_classes_that_were_trained_on_are_narrow(n_novel: int) -> None:
    """Spread would then call for many novel groups; sizes do not."""
    rng = np.random.default_rng(0)
    n_known, each = 6, 60
    y = np.repeat(np.arange(n_known + n_novel), each)
    centres = rng.normal(0, 3, (n_known + n_novel, 16))
    spread = np.where(y < n_known, 0.1, 1.0)[:, None]
    z = torch.from_numpy(centres[y] + spread * rng.normal(0, 1, (len(y), 16))).float()
    labels = torch.from_numpy(np.where((y < n_known) & (np.arange(len(y)) % 2 == 0), y, -1))
    made = [count.estimate(z, labels, n_known, seed=0, trained=trained) for trained in (False, True)]
    assert made[0].n_novel > 1.3 * n_novel
    assert abs(made[1].n_novel - n_novel) <= 0.2 * n_novel
    assert made[1].low <= n_novel <= made[1].high

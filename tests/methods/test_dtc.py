"""DTC: Student's t around centres from PCA and k-means, and sharper targets."""

import numpy as np
import pytest
import torch

import toy
from openldn.maths.k_means import k_means
from openldn.methods.dtc import DTC, StudentClusters, sharper, start
from openldn.nets.classifier import infer


def test_clusters_are_students_t() -> None:
    torch.manual_seed(0)
    head = StudentClusters(4, 3)
    z = torch.randn(5, 4)
    e = head.embed(z)
    q = torch.stack(
        [torch.stack([1 / (1 + (e[i] - mu).square().sum()) for mu in head.centres]) for i in range(5)]
    )
    torch.testing.assert_close(head(z).softmax(dim=1), q / q.sum(dim=1, keepdim=True))


def test_sharper_targets_are_more_confident_and_empty_clusters_do_no_harm() -> None:
    q = torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.3, 0.0], [0.4, 0.6, 0.0]])
    t = sharper(q)
    assert torch.isfinite(t).all()
    torch.testing.assert_close(t.sum(dim=1), torch.ones(3))
    assert t[1, 0] > q[1, 0]
    by_hand = [[0.36 / 1.7, 0.16 / 1.3], [0.49 / 1.7, 0.09 / 1.3]]
    for i, row in enumerate(by_hand):
        assert t[i, 0] == pytest.approx(row[0] / sum(row))


def test_dtc_starts_with_k_means_and_keeps_its_targets_in_the_warm_up() -> None:
    problem, _ = toy.split(noise=8.0)
    training = toy.training("dtc", problem=problem, batch=40)
    objective = training.objective
    assert isinstance(objective, DTC)
    training.begin(None)
    q = infer(training.network, problem.images[problem.unlabelled]).logits.softmax(dim=1)
    torch.testing.assert_close(objective.targets[problem.unlabelled], sharper(q))
    z = infer(training.network, problem.images[problem.unlabelled]).z
    _, clusters = k_means((z - z.mean(dim=0)), problem.n_classes, seed=0, starts=20)
    groups = {*zip(q.argmax(dim=1).tolist(), clusters.tolist(), strict=True)}
    assert len(groups) == problem.n_classes  # the same clusters under other numbers
    before = objective.targets.clone()
    with torch.no_grad():
        training.network.head.centres.add_(1.0)  # type: ignore[union-attr, operator]
    objective.refresh(training.network, 0.05)
    assert torch.equal(objective.targets, before)
    objective.refresh(training.network, 0.5)
    assert not torch.equal(objective.targets, before)
    assert torch.equal(objective.targets[problem.labelled], before[problem.labelled])


def test_dtc_head_is_pca_and_k_means() -> None:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(3), 30)
    z = (6 * np.eye(5)[kinds] + 0.3 * rng.standard_normal((90, 5))).astype(np.float32)
    head = StudentClusters(5, 3)
    torch.manual_seed(0)
    start(head, torch.from_numpy(z))
    predicted = head(torch.from_numpy(z)).argmax(dim=1).numpy()
    e = PCA(3).fit_transform(z)
    expected = KMeans(3, n_init=10, random_state=0).fit_predict(e)
    assert (
        len({*zip(predicted.tolist(), expected.tolist(), strict=True)}) == 3
    )  # the same clusters under other numbers


def test_consistency_starts_after_the_warm_up() -> None:
    training = toy.training("dtc", batch=40, warm_up=0.2, ramp_length=0.1)
    training.begin(None)
    seen = toy.batch(training)
    weights = [
        training.objective.losses(training.network, training.network, seen, t)["consistency"].item()
        for t in (0.0, 0.19, 0.21, 0.3, 1.0)
    ]
    assert weights[:2] == [0, 0]
    assert 0 < weights[2] < 0.1 * weights[3]
    assert weights[3] == pytest.approx(weights[4])

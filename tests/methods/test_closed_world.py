"""Closed-world training on pseudo-labels: which are chosen, and when they are renewed."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import toy
from openldn.data.pixels import Images
from openldn.errors import OpenLDNWarning
from openldn.methods import closed_world
from openldn.methods.closed_world import OnPseudoLabels, most_confident, warn_of_empty_classes
from openldn.nets.classifier import Outputs, Prediction, infer
from openldn.training.loop import Training


def second_stage(training: Training) -> OnPseudoLabels:
    assert isinstance(training.objective, OnPseudoLabels)
    return training.objective


@pytest.mark.parametrize("k", [1, 3, 100])
def test_the_most_confident_images_of_each_novel_class_against_a_loop(k: int) -> None:
    torch.manual_seed(0)
    p = (2 * torch.randn(40, 5)).softmax(dim=1)
    rows, labels = most_confident(p, n_known=2, k=k)
    expected = []
    for c in (2, 3, 4):
        own = [(-max(row), i) for i, row in enumerate(p.tolist()) if row.index(max(row)) == c]
        expected += [(i, c) for _, i in sorted(own)[:k]]
    assert [*zip(rows.tolist(), labels.tolist(), strict=True)] == expected


def test_empty_novel_classes_are_named() -> None:
    with pytest.warns(OpenLDNWarning, match=r"in 2 of 3 novel classes \(b, d\)"):
        warn_of_empty_classes(torch.tensor([2, 2]), 1, ["a", "b", "c", "d"])
    warn_of_empty_classes(torch.tensor([1, 2, 3]), 1, ["a", "b", "c", "d"])  # none is empty


def test_pseudo_labels_are_balanced_and_given_labels_stay() -> None:
    training = toy.training("openldn-uda")
    problem, objective = training.problem, second_stage(training)
    c, n = problem.n_classes, len(problem.images)

    def predict(images: Images) -> Prediction:
        """Image i is of class i mod C."""
        p = F.one_hot(torch.arange(len(images)) % c, c).float()
        return Prediction(p, p)

    objective.begin(training.network, predict)
    labels = training.problem.labels
    assert torch.equal(labels[problem.labelled], problem.labels[problem.labelled])
    per_class = len(problem.labelled) // problem.n_known
    new = labels[problem.unlabelled]
    counts = [int((new == k).sum()) for k in range(c)]
    assert counts[: problem.n_known] == [0] * problem.n_known
    assert counts[problem.n_known :] == [min(per_class, len(problem.unlabelled) // c)] * problem.n_novel
    assert len(labels) == n
    assert objective.diagnostics() == {"pseudo_labels": sum(counts), "refreshed": 0, "skipped": 0}


def test_pseudo_labels_come_back_with_the_state() -> None:
    one, other = toy.training("openldn-uda"), toy.training("openldn-uda")
    c = one.problem.n_classes
    second_stage(one).choose(F.one_hot(torch.arange(len(one.problem.unlabelled)) % c, c).float())
    second_stage(one).n_refreshed = 3
    assert not torch.equal(one.problem.labels, other.problem.labels)
    other.objective.load_state_dict(one.objective.state_dict())
    assert torch.equal(one.problem.labels, other.problem.labels)
    assert other.objective.diagnostics() == one.objective.diagnostics()


def test_nothing_novel_predicted_is_a_warning_not_a_crash() -> None:
    training = toy.training("openldn-uda")
    network, problem = training.network, training.problem
    with torch.no_grad():
        network.head.weight.zero_()  # type: ignore[operator, union-attr]
        network.head.bias.copy_(torch.tensor([9.0] + [0.0] * (problem.n_classes - 1)))  # type: ignore[union-attr, operator]
    with pytest.warns(OpenLDNWarning, match="no image was predicted to be novel"):
        training.begin(
            lambda images: Prediction(infer(network, images).logits.softmax(dim=1), torch.empty(0))
        )
    losses = training.objective.losses(network, network, toy.batch(training), 0.0)
    assert all(torch.isfinite(loss) for loss in losses.values())


@pytest.mark.parametrize(("right", "ready"), [((10, 5, 6), True), ((10, 4, 10), False), ((0, 10, 10), False)])
def test_a_refresh_waits_until_half_of_each_class_is_learned(
    right: tuple[int, ...], ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten labels in each of three classes, so many are predicted right."""
    training = toy.training("openldn-uda")
    problem, objective = training.problem, second_stage(training)
    y = torch.arange(30) // 10
    predicted = torch.where(torch.arange(30) % 10 < torch.tensor(right)[y], y, (y + 1) % 3)
    objective.problem = replace(problem, images=problem.images[:30], labels=y, names=problem.names[:30])
    outputs = Outputs(torch.zeros(30, 1), F.one_hot(predicted, problem.n_classes).float())
    monkeypatch.setattr(closed_world, "infer", lambda network, images: outputs)
    assert objective.ready(training.network) is ready


@pytest.mark.parametrize(
    ("size", "ready", "gate", "renewed"),
    [
        (None, True, True, 1),
        (8, True, True, 1),
        (6, True, True, 0),
        (8, False, True, 0),
        (8, False, False, 1),
        (6, True, False, 0),
    ],
)
def test_pseudo_labels_are_renewed_once_images_have_their_full_size(
    size: int | None, ready: bool, gate: bool, renewed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = toy.training("openldn-uda", gate=gate)
    objective, calls = second_stage(training), list[int]()
    monkeypatch.setattr(OnPseudoLabels, "ready", lambda self, average: ready)
    monkeypatch.setattr(OnPseudoLabels, "choose", lambda self, predict: calls.append(1))
    training.network.training_size = size
    objective.refresh(training.network, 0.5)
    assert len(calls) == objective.diagnostics()["refreshed"] == renewed
    assert objective.diagnostics()["skipped"] == 1 - renewed


@pytest.mark.parametrize("method", ["uda", "mixmatch", "fixmatch", "mean-teacher"])
def test_a_second_stage_has_the_views_and_batches_of_its_method(method: str) -> None:
    alone, then = toy.training(method), toy.training(f"openldn-{method}")
    for name in ("labelled_views", "unlabelled_views", "averaged"):
        assert getattr(alone.objective, name) == getattr(then.objective, name)
    assert alone.composition == then.composition
    assert (alone.refreshes, then.refreshes) == (0, 10)

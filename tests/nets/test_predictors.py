"""Predictors: from outputs to probabilities of known and novel classes."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import toy
from openldn.data.pixels import Images
from openldn.maths.k_means import semi_supervised
from openldn.nets.classifier import Outputs
from openldn.nets.predictors import Aligned, Argmax, KMeans, RejectAndCluster, confidence
from openldn.systems import CLOSED_WORLD, SYSTEMS
from openldn.training.settings import RejectingSettings
from openldn.training.stage import Stage

STAGES: dict[str, Stage] = {
    f"{system.name}/{stage.name}": stage
    for system in SYSTEMS.values()
    for stage in system.stages
    if not stage.pretraining and stage.name not in CLOSED_WORLD
}


def features(kinds: np.ndarray, seed: int = 0) -> Tensor:
    """A blob for each kind.  (n, 6)"""
    noise = np.random.default_rng(seed).standard_normal((len(kinds), 6))
    return torch.from_numpy(5 * np.eye(6)[kinds] + 0.5 * noise).float()


def test_argmax_takes_the_network_at_its_word() -> None:
    logits = torch.randn(5, 4)
    torch.testing.assert_close(Argmax().probabilities(Outputs(logits, logits)), logits.softmax(dim=1))
    assert Argmax().fits({}, n_outputs=4, n_known=2, n_novel=2)
    assert not Argmax().fits({}, n_outputs=3, n_known=2, n_novel=2)


def test_clusters_are_named_by_labelled_images() -> None:
    problem, _ = toy.split()
    order = [4, 2, 0, 1, 3, 5]  # the network's number of class 0 is 4, ...
    truth = torch.where(problem.labels >= 0, problem.labels, 5)

    def infer(images: Images) -> Outputs:
        rows = problem.labelled
        return Outputs(torch.zeros(len(rows), 1), 5 * F.one_hot(torch.tensor(order)[truth[rows]], 6).float())

    predictor = Aligned()
    predictor.fit(infer, problem, seed=0)
    p = predictor.probabilities(Outputs(torch.zeros(6, 1), 5 * torch.eye(6)))
    assert [int(p[order[k]].argmax()) for k in range(3)] == [0, 1, 2]
    assert predictor.fits(predictor.state, 6, 3, 3)
    assert not predictor.fits({"order": torch.tensor([0, 0, 1, 2, 3, 4])}, 6, 3, 3)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("centres", [None, semi_supervised])
def test_k_means_clusters_are_named_by_labelled_images(centres, unit: bool) -> None:
    """Known blobs get their classes' ids, novel ones an id each; lengths do not matter to `unit`."""
    problem, _ = toy.split()
    kinds = np.where(problem.labels.numpy() >= 0, problem.labels.numpy(), np.arange(len(problem.labels)) % 6)
    z = features(kinds) * (torch.linspace(1, 30, len(kinds))[:, None] if unit else 1)
    predictor = KMeans(unit=unit, centres=centres)
    predictor.fit(lambda images: Outputs(z, z), problem, seed=0)
    p = predictor.probabilities(Outputs(z, z))
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(z)))
    pairs = {*zip(kinds.tolist(), p.argmax(dim=1).tolist(), strict=True)}
    assert {(k, k) for k in range(3)} <= pairs
    assert len(pairs) == 6
    assert predictor.ordered == (centres is not None)
    assert predictor.fits(predictor.state, 17, 3, 3)
    assert not predictor.fits(predictor.state, 17, 3, 4)


def test_confidence_is_the_log_odds_of_the_most_likely_class() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4).double()
    found = confidence(Outputs(logits, logits), {}).tolist()
    expected = [math.log(max(p) / (1 - max(p))) for p in logits.softmax(dim=1).tolist()]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("share", [None, 0.25])
def test_the_share_to_reject_is_expected_or_given(share: float | None) -> None:
    """Probabilities may round to one for many images: log-odds still say which is less certain."""
    problem, _ = toy.split()
    n = len(problem.unlabelled)
    torch.manual_seed(0)
    logits = torch.stack([40 + torch.rand(n), torch.zeros(n), torch.zeros(n)], dim=1)
    assert bool((logits.softmax(dim=1)[:, 0] == 1).all())
    outputs = Outputs(torch.randn(n, 4), logits)
    predictor = RejectAndCluster(RejectingSettings(novel_share=share))
    predictor.fit(lambda images: outputs, problem, seed=0)
    rejected = predictor.probabilities(outputs).argmax(dim=1) >= 3
    assert float(rejected.float().mean()) == pytest.approx(2 / 3 if share is None else share, abs=0.02)
    assert float(logits[rejected, 0].max()) < float(logits[~rejected, 0].min())


def test_a_system_may_score_images_its_own_way_and_have_outputs_of_its_own() -> None:
    """The last output is the score; what `fit_score` makes of labelled images is kept, and it is used."""
    problem, _ = toy.split()
    torch.manual_seed(0)
    n, l = len(problem.unlabelled), len(problem.labelled)  # noqa: E741
    logits, given = torch.randn(n, 4), torch.randn(l, 4)

    def infer(images: Images) -> Outputs:
        chosen = given if len(images) == l else logits
        return Outputs(torch.randn(len(chosen), 5), chosen)

    predictor = RejectAndCluster(
        RejectingSettings(novel_share=0.5),
        score=lambda outputs, state: state["sign"] * outputs.logits[:, -1],
        fit_score=lambda outputs, y, n_known: {
            "sign": torch.tensor(-1.0 if outputs.logits is given else 1.0)
        },
        score_state=("sign",),
        extra_outputs=1,
    )
    predictor.fit(infer, problem, seed=0)
    outputs = infer(problem.images[problem.unlabelled])
    p = predictor.probabilities(outputs)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(n))
    known = p[:, :3].sum(dim=1) > 0.5
    assert int(known.sum()) == n - round(n / 2)
    assert float(logits[known, -1].max()) <= float(logits[~known, -1].min())
    torch.testing.assert_close(p[known][:, :3], logits[known, :3].softmax(dim=1))
    assert torch.equal(predictor.known_logits(outputs), logits[:, :3])
    assert predictor.fits(predictor.state, 4, 3, 3)
    assert not predictor.fits(predictor.state, 3, 3, 3)
    assert not predictor.fits({k: v for k, v in predictor.state.items() if k != "sign"}, 4, 3, 3)


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_predictors_state_from_a_file_is_checked(stage: Stage) -> None:
    predictor = stage.predictor(stage.settings())

    def fits(state: dict[str, Tensor], n_outputs: int) -> bool:
        try:
            return predictor.fits(state, n_outputs, 3, 3)
        except (KeyError, ValueError):  # whoever loads a model takes these as a no
            return False

    names = (
        "correction",
        "order",
        "centres",
        "threshold",
        "whitening",
        "mean",
        "share",
        "means",
        "precision",
        *("root", "map", "centre", "bias", "sharpness", "axes", "weight"),
    )
    wrong = {name: torch.zeros(1) for name in names}
    if isinstance(predictor, Argmax):
        assert [n for n in range(10) if fits({}, n)] == [6]
    else:
        assert not any(fits({}, n) for n in (3, 4, 6))
        assert not any(fits(wrong, n) for n in (3, 4, 6, 50))


def test_every_kind_of_predictor_is_checked() -> None:
    kinds = {type(stage.predictor(stage.settings())).__name__ for stage in STAGES.values()}
    ours = {"Argmax", "Aligned", "KMeans", "RejectAndCluster", "ClusterTheRest", "UniformPrior"}
    assert kinds == ours | {"WhitenedClustering", "PIM", "Turtle"}

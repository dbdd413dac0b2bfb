"""Self-training after positive-unlabelled learning: where it starts, what it learns, what it predicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from openldn import job
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.data.reading import Given
from openldn.methods.self_training import SelfTraining, UniformPrior, fit_head
from openldn.model import Model
from openldn.nets.classifier import Classifier, Outputs, Predict
from openldn.nets.heads import Linear
from openldn.options import Options
from openldn.training.loop import Training


def test_a_fitted_head_predicts_the_mean_target_of_each_kind_of_image() -> None:
    """Images of three kinds, each with several targets; features of very different sizes."""
    torch.manual_seed(0)
    kind = torch.arange(3).repeat_interleave(40)
    q = (torch.randn(120, 4) + 2 * torch.eye(3, 4)[kind]).softmax(dim=1)
    z = torch.eye(3)[kind] * torch.tensor([1.0, 50.0, 0.02]) + torch.tensor([5.0, 0.0, -3.0])
    head = Linear(3, 4)
    fit_head(head, z, q)
    found = head(z).softmax(dim=1).detach()
    for k in range(3):
        assert torch.allclose(found[kind == k], q[kind == k].mean(dim=0).expand(40, 4), atol=0.01)


def test_the_loss_against_loops() -> None:
    """All images weigh the same; targets are sharpened after distribution alignment."""
    training = toy.training("pu-self-training", temperature=0.5, mixup=0.3)
    network, objective = training.network, training.objective
    assert isinstance(objective, SelfTraining)
    assert training.average is not None
    average = training.average.network
    torch.manual_seed(0)
    weak, other, x = (torch.rand(n, 1, 8, 8) for n in (9, 9, 4))
    y = torch.tensor([0, 2, 1, 0])
    with torch.no_grad():  # so that the average differs from the network
        average.head.weight.mul_(3)  # type: ignore[union-attr, operator]
    torch.manual_seed(1)
    batch = Batch((x,), y, (weak, other), torch.arange(9))
    losses = {name: loss.item() for name, loss in objective.losses(network, average, batch, 0.0).items()}
    torch.manual_seed(1)  # drawn again: the share that each row keeps, and the row that it is mixed with
    own = float(torch.distributions.Beta(torch.tensor(0.3), torch.tensor(0.3)).sample())
    own, partner = max(own, 1 - own), torch.randperm(13).tolist()
    rows = torch.cat([x, other])
    with torch.no_grad():
        mixed = torch.stack([own * rows[i] + (1 - own) * rows[j] for i, j in enumerate(partner)])
        logits = network(mixed).logits  # one batch, one set of statistics
        log_p = average(weak).logits.log_softmax(dim=1)
    added = torch.zeros(6)
    for _ in range(5):
        mean = sum((row + added).softmax(dim=0) for row in log_p) / 9
        added = added + torch.log(training.problem.class_prior() / mean)
    targets = [torch.eye(6)[label] for label in y]
    for row in log_p:
        p = (row + added).exp() ** 2
        targets.append(p / p.sum())
    terms = [
        -float(((own * targets[i] + (1 - own) * targets[j]) * logits[i].log_softmax(dim=0)).sum()) / 13
        for i, j in enumerate(partner)
    ]
    assert 0.5 < own < 0.99  # or nothing is tested
    assert losses["labelled"] == pytest.approx(sum(terms[:4]), rel=1e-4)
    assert losses["unlabelled"] == pytest.approx(sum(terms[4:]), rel=1e-4)


def test_recent_predictions_come_back_with_the_state() -> None:
    one, other = (toy.training("pu-self-training") for _ in range(2))
    one.objective.losses(one.network, one.model, toy.batch(one), 0.0)
    other.objective.load_state_dict(one.objective.state_dict())
    assert isinstance(one.objective, SelfTraining)
    assert isinstance(other.objective, SelfTraining)
    assert len(one.objective.align.recent) == one.composition.unlabelled
    assert torch.equal(one.objective.align.recent, other.objective.align.recent)


def test_predictions_hold_under_a_uniform_prior() -> None:
    """Weighed by the prior again, each class has that share of the unlabelled images; by loops.

    And a bias of the network does not matter.
    """
    torch.manual_seed(0)
    labels = torch.tensor([0] * 40 + [1] * 20 + [-1] * 140)  # 50 each: 10, 30, 50 and 50 are left
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    problem = Problem(images, labels, tuple(map(str, range(200))), (0, 1), n_novel=2)
    logits = 2 * torch.randn(140, 4)
    biased = logits + torch.tensor([3.0, 0.0, -2.0, 1.0])
    predictor, other = UniformPrior(), UniformPrior()
    predictor.fit(lambda images: Outputs(logits, logits), problem, seed=0)
    other.fit(lambda images: Outputs(biased, biased), problem, seed=0)
    p = predictor.probabilities(Outputs(logits, logits))
    wanted, found = [10 / 140, 30 / 140, 50 / 140, 50 / 140], [0.0] * 4
    for row in p.tolist():
        weighed = [value * share for value, share in zip(row, wanted, strict=True)]
        found = [total + value / sum(weighed) / 140 for total, value in zip(found, weighed, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-4)
    assert torch.allclose(p, other.probabilities(Outputs(biased, biased)), atol=1e-4)
    assert predictor.fits(predictor.state, n_outputs=4, n_known=2, n_novel=2)
    assert not predictor.fits({"correction": torch.zeros(5)}, n_outputs=4, n_known=2, n_novel=2)


@pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
def test_it_continues_from_the_features_and_predictions_of_the_stage_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict[str, Any]()
    begin, model, begin_stage = SelfTraining.begin, job.Job.model, Training.begin

    def noted(objective: SelfTraining, network: Classifier, previous: Predict | None) -> None:
        begin(objective, network, previous)
        assert previous is not None
        images = objective.problem.images[objective.problem.unlabelled]
        assert torch.equal(previous(images).p, seen["first"].predict(images).p)

    def started(training: Training, previous: Predict | None) -> None:
        """After it, the network and its average have these backbones, and the same head."""
        begin_stage(training, previous)
        if isinstance(training.objective, SelfTraining):
            for name, network in (("network", training.network), ("average", training.model)):
                seen[name] = {k: v.clone() for k, v in network.backbone.state_dict().items()}
            heads = (network.head.state_dict() for network in (training.network, training.model))
            assert all(torch.equal(a, b) for a, b in zip(*(head.values() for head in heads), strict=True))

    def kept(*given: Any) -> Model:
        made = model(*given)
        seen.setdefault("first", made)
        return made

    monkeypatch.setattr(SelfTraining, "begin", noted)
    monkeypatch.setattr(Training, "begin", started)
    monkeypatch.setattr(job.Job, "model", kept)
    problem, truth = toy.labelled_set(flip=True).split(known=0.5, labelled=0.5, seed=0)
    options = Options(epochs=1, novel=problem.n_novel, device="cpu", method="pu-self-training")
    given = Given(problem, truth, (), np.arange(len(problem.images)))
    run = job.start(given, options, {"kind": "arrays"}, tmp_path / "run", backbone=toy.backbone(), quiet=True)
    first = seen["first"].network.backbone.state_dict()
    for which in ("network", "average"):
        assert seen[which].keys() == first.keys()
        assert all(torch.equal(first[name], value) for name, value in seen[which].items())
    # Muon is for networks with a normalisation after each convolution, which a user's may not have.
    assert {own["optimiser"] for own in run.config["settings"].values()} == {"adam"}
    # A flipped image shows the same thing here, so a loaded model uses flip test-time augmentation.
    assert Model.load(run.path, toy.backbone()).network.flip_tta

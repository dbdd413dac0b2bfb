"""Refining what a first stage says: where it begins, and what it learns from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import toy
from openldn import pipeline
from openldn.config import Options, decide
from openldn.data.batches import Batch
from openldn.model import Model, new_network
from openldn.nets.classifier import Says
from openldn.phases.refine import Refine, learn_head

CPU = torch.device("cpu")


def test_a_head_learns_what_is_said_of_each_kind_of_image() -> None:
    """Images of three kinds, said to be several things: what the head says of a kind is their mean."""
    torch.manual_seed(0)
    kind = torch.arange(3).repeat_interleave(40)
    q = (torch.randn(120, 4) + 2 * torch.eye(3, 4)[kind]).softmax(dim=1)
    z = torch.eye(3)[kind] * torch.tensor([1.0, 50.0, 0.02]) + torch.tensor([5.0, 0.0, -3.0])
    head = nn.Linear(3, 4)
    learn_head(head, z, q)
    found = head(z).softmax(dim=1).detach()
    for k in range(3):
        assert torch.allclose(found[kind == k], q[kind == k].mean(dim=0).expand(40, 4), atol=0.01)


def refine(**changes: Any) -> Refine:
    problem, _ = toy.labelled_set().split(known=0.5, labelled=0.5, seed=0)
    settings = decide(Options(method="rest-refine"), parts=["rest", "refine"]).refine
    network = new_network(problem, toy.backbone(), problem.n_classes, CPU)
    return Refine(problem, network, replace(settings, **changes))


def test_the_loss_is_what_its_page_says() -> None:
    """Against loops: all images weigh the same; targets are sharpened after classes got their share."""
    phase = refine(temperature=0.5, mix=0.3)
    torch.manual_seed(0)
    weak, other, x = (torch.rand(n, 1, 8, 8) for n in (9, 9, 4))
    y = torch.tensor([0, 2, 1, 0])
    with torch.no_grad():  # so that what is averaged differs from what learns
        phase.average.network.head.weight.mul_(3)
    torch.manual_seed(1)
    losses = {
        k: v.detach() for k, v in phase.step(Batch((x,), y, (weak, other), torch.arange(9)), 0.0).items()
    }
    torch.manual_seed(1)  # drawn again: how much of each row is its own, and whose the other part is
    own = float(torch.distributions.Beta(torch.tensor(0.3), torch.tensor(0.3)).sample())
    own, whose = max(own, 1 - own), torch.randperm(13).tolist()
    rows = torch.cat([x, other])
    with torch.no_grad():
        mixed = torch.stack([own * rows[i] + (1 - own) * rows[j] for i, j in enumerate(whose)])
        logits = phase.network(mixed).logits  # one batch, one set of statistics
        said = phase.average.network(weak).logits.log_softmax(dim=1)
    added = torch.zeros(6)
    for _ in range(5):
        mean = sum((row + added).softmax(dim=0) for row in said) / 9
        added = added + torch.log(phase.balance.shares / mean)
    targets = [torch.eye(6)[label] for label in y]
    for told in said:
        p = (told + added).exp() ** 2
        targets.append(p / p.sum())
    terms = [
        -float(((own * targets[i] + (1 - own) * targets[j]) * logits[i].log_softmax(dim=0)).sum()) / 13
        for i, j in enumerate(whose)
    ]
    assert 0.5 < own < 0.99  # or nothing is tested
    assert float(losses["labelled"]) == pytest.approx(sum(terms[:4]), rel=1e-4)
    assert float(losses["unlabelled"]) == pytest.approx(sum(terms[4:]), rel=1e-4)


@pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
def test_it_goes_on_from_the_features_of_the_stage_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict[str, Any]()
    begin, model = Refine.begin, pipeline._model

    def noted(phase: Refine, previous: Says | None) -> None:
        begin(phase, previous)
        seen["begun"] = {k: v.clone() for k, v in phase.average.network.backbone.state_dict().items()}
        assert previous is not None
        images = phase.problem.images[phase.problem.unlabelled]
        said = Model.predict(seen["first"], images).p
        assert torch.equal(previous(images), said)

    def kept(network: Any, *rest: Any) -> Model:
        made = model(network, *rest)
        if "begun" not in seen:
            seen["first"] = made
        return made

    monkeypatch.setattr(Refine, "begin", noted)
    monkeypatch.setattr(pipeline, "_model", kept)
    problem, truth = replace(toy.labelled_set(), flip=True).split(known=0.5, labelled=0.5, seed=0)
    options = Options(epochs=1, novel=problem.n_novel, device="cpu", method="rest-refine")
    run = pipeline.start(
        problem, truth, options, {"kind": "arrays"}, tmp_path / "run", backbone=toy.backbone(), quiet=True
    )
    first = seen["first"].network.backbone.state_dict()
    assert all(torch.equal(first[name], value) for name, value in seen["begun"].items())
    # Muon is for networks with a normalisation after each convolution, which a user's may not have.
    assert all(
        stage["optimiser"] == "adam" for stage in run.settings.to_json().values() if isinstance(stage, dict)
    )
    # A mirrored image shows the same thing here: whoever loads the model asks about it, too.
    assert Model.load(run.path, toy.backbone()).network.mirrored

"""Fine-tuning: metric learning from labels, then from clusters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import openldn
import toy
from openldn.data.pixels import Part
from openldn.maths import count
from openldn.methods.fine_tuning import SelfLabelling
from openldn.nets import classifier
from openldn.nets.classifier import Classifier, Outputs, Prediction, Remembered, infer
from openldn.nets.efficientnet import EfficientNetLite0
from openldn.nets.heads import Linear
from openldn.options import Options


def lite0() -> Classifier:
    torch.manual_seed(0)
    body = EfficientNetLite0()
    return Classifier(body, Linear(1280, 3), torch.zeros(3, 1, 1), torch.ones(3, 1, 1)).train()


# ------------------------------------------------------------------------------------------- freezing


def test_early_layers_and_depthwise_filters_are_frozen() -> None:
    network = lite0()
    before = network.backward_cost
    network.freeze_first(0.3, 32)
    params = [*network.backbone.named_parameters()]
    frozen = {name for name, p in params if not p.requires_grad}
    depthwise = {
        f"{name}.weight"
        for name, m in network.backbone.named_modules()
        if isinstance(m, nn.Conv2d) and m.weight.shape[1] == 1
    }
    assert len(depthwise) == 16  # one per block
    assert frozen == {name for name, _ in params[: round(0.3 * len(params))]} | depthwise
    assert 0 < network.backward_cost < before
    assert all(p.requires_grad for p in network.head.parameters())


def test_a_network_that_is_frozen_throughout_is_left_alone() -> None:
    network = lite0()
    network.freeze_first(1.0, 32)
    assert all(p.requires_grad for p in network.parameters())


def test_counting_the_cost_leaves_frozen_batch_norm_frozen() -> None:
    network = lite0()
    network.norm_frozen = True
    network.train()
    modes = [m.training for m in network.modules()]
    network.freeze_first(0.3, 32)
    assert [m.training for m in network.modules()] == modes


# ------------------------------------------------------------------------------------- metric learning


def test_prototypes_start_as_mean_features_of_their_classes() -> None:
    training = toy.training("fine-tuned", 0)
    training.begin(None)
    problem, network = training.problem, training.network
    for k in range(problem.n_known):
        rows = [i for i, label in enumerate(problem.labels.tolist()) if label == k]
        z = infer(network, problem.images[torch.tensor(rows)]).z
        mean = sum(row / row.norm() for row in z)
        torch.testing.assert_close(network.head.weight[k].detach(), mean / mean.norm())
    assert network.head.weight.shape[0] == problem.n_known


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_by_hand(smoothing: float) -> None:
    training = toy.training("fine-tuned", 0, temperature=0.5, smoothing=smoothing, batch=8)
    training.begin(None)
    batch = toy.batch(training)
    losses = training.objective.losses(training.network, training.network, batch, 0.0)
    z, c = training.network(batch.x[0]).z.detach(), training.network.head.weight.detach()
    expected = 0.0
    for i, y in enumerate(batch.y.tolist()):
        s = [float(z[i] @ w / z[i].norm() / w.norm()) / 0.5 for w in c]
        log_p = [v - np.log(np.sum(np.exp(s))) for v in s]
        target = [smoothing / len(s) + (1 - smoothing) * (k == y) for k in range(len(s))]
        expected -= sum(t * lp for t, lp in zip(target, log_p, strict=True)) / len(batch.y)
    assert float(losses["labelled"].detach()) == pytest.approx(expected, rel=1e-5)
    assert batch.u == ()  # unlabelled images are not asked for


def test_labelled_images_are_seen_so_often_at_most() -> None:
    training = toy.training("fine-tuned", 0, batch=8, max_epochs=2.0, epochs=1000.0)
    n = len(training.problem.labelled)
    assert training.clock(None).max_steps == -(-2 * n // 8)
    assert toy.training("fine-tuned", 1, batch=8, epochs=10.0).clock(None).max_steps > 2 * n / 8


# -------------------------------------------------------------------------------------- self-labelling


def test_sure_images_join_the_labelled_ones() -> None:
    training = toy.training("fine-tuned", 1, sure=0.6)
    problem = training.problem
    unlabelled, n = problem.unlabelled, problem.n_classes
    generator = torch.Generator().manual_seed(0)
    p = (4 * torch.randn(len(unlabelled), n, generator=generator)).softmax(dim=1)

    z = torch.randn(len(problem.images), training.network.head.weight.shape[1], generator=generator)

    def previous(images: Part) -> Prediction:
        """Of the unlabelled images, then of all that have labels now."""
        return Prediction(p if torch.equal(images.rows, unlabelled) else p[:0], z[images.rows])

    training.begin(previous)  # type: ignore[arg-type]
    made = training.problem.labels
    assert torch.equal(made[problem.labelled], problem.labels[problem.labelled])
    for row, own in zip(unlabelled.tolist(), p.tolist(), strict=True):
        assert made[row] == (own.index(max(own)) if max(own) >= 0.6 else -1)
    assert {-1, n - 1} < {*made.tolist()}
    for k, prototype in enumerate(F.normalize(training.network.head.weight.detach(), dim=1)):
        mean = sum(F.normalize(z[i], dim=0) for i in range(len(z)) if made[i] == k)
        torch.testing.assert_close(prototype, F.normalize(mean, dim=0))

    again = toy.training("fine-tuned", 1, sure=0.6)
    again.load_state_dict(training.state_dict())
    assert torch.equal(again.problem.labels, made)


def test_a_class_without_images_keeps_a_prototype() -> None:
    training = toy.training("fine-tuned", 1)
    d = training.network.head.weight.shape[1]
    first = F.one_hot(torch.zeros(len(training.problem.images), dtype=torch.int64), 6).float()
    training.begin(lambda images: Prediction(first[: len(images)], torch.ones(len(images), d)))
    norms = training.network.head.weight.norm(dim=1)
    torch.testing.assert_close(norms.detach(), torch.ones(6))


# ---------------------------------------------------------------------------------- inference, counting


def test_batch_norm_is_folded_for_inference_alone() -> None:
    network = lite0()
    for m in network.modules():
        if isinstance(m, nn.BatchNorm2d):  # as after training: none of these is trivial
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias, std=0.1)
            nn.init.normal_(m.running_mean, std=0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
    body, images = network.backbone, torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    found = infer(network, images)
    assert network.backbone is body
    assert network.training
    network.eval()
    with torch.no_grad():
        z, logits = network(images.float() / 255)
    torch.testing.assert_close(found.z, z, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.logits, logits, rtol=1e-4, atol=1e-4)


def test_outputs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def counted(network: nn.Module, images: Tensor) -> Outputs:
        asked.append(len(images))
        return infer(network, images)

    monkeypatch.setattr(classifier, "infer", counted)
    network = toy.classifier(toy.backbone(), 3, channels=1)
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    rows = torch.tensor([3, 1, 7])
    outputs = Remembered(network, images)
    for _ in range(2):
        for given, expected in ((images, infer(network, images)), (Part(images, rows), None)):
            found, expected = outputs(given), expected or infer(network, images[rows])
            for one, two in zip(found, expected, strict=True):
                assert (one is None) == (two is None)
                if one is not None:
                    torch.testing.assert_close(one, two)
    assert asked == [20]
    outputs(images.clone())
    assert asked == [20, 20]
    few = Remembered(network, images)
    few.most = 10
    few(images), few(images)
    assert asked == [20] * 4  # too many to remember


@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
def test_classes_are_counted_by_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number comes from features of the first stage, is kept in the run, and sizes the second one."""
    toy.write_folder(tmp_path / "photos", n_classes=6, n_known=3)
    seen = list[Tensor]()
    true = count.estimate

    def estimate(z: Tensor, *args: object, **options: object) -> count.Estimate:
        seen.append(z)
        return true(z, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(count, "estimate", estimate)
    options = Options(method="fine-tuned", epochs=0.5, device="cpu", settings={"batch": 8})
    run = openldn.train(tmp_path / "photos", options, out=tmp_path / "run", quiet=True)
    [z] = seen
    n_novel = len(openldn.load(run.path).model_.classes) - 3
    assert (run.path / "count.json").exists()
    assert openldn.load(run.path).model_.network.head.out_features == 3 + n_novel
    assert z[torch.arange(72)].shape == (72, 1280)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
def test_resumed_with_an_estimated_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second stage, it neither counts again nor ends otherwise."""
    toy.write_folder(tmp_path / "photos", n_classes=6, n_known=3)
    options = Options(
        method="fine-tuned", epochs=1.0, device="cpu", settings={"batch": 8, "least_images": 32}, save_every=0
    )
    whole = openldn.train(tmp_path / "photos", options, out=tmp_path / "whole", quiet=True)
    steps, losses = list[float](), SelfLabelling.losses

    def stopped(self: SelfLabelling, *args: Any) -> Any:
        steps.append(args[-1])
        if len(steps) == 3:
            raise KeyboardInterrupt
        return losses(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(SelfLabelling, "losses", stopped)
        with pytest.raises(KeyboardInterrupt):
            openldn.train(tmp_path / "photos", options, out=tmp_path / "stopped", quiet=True)
    counted = (tmp_path / "stopped" / "count.json").read_text()
    monkeypatch.setattr(count, "estimate", None)
    resumed = openldn.resume(tmp_path / "stopped", quiet=True)
    assert (resumed.path / "count.json").read_text() == counted
    one, two = (load_file(run.path / "model.safetensors") for run in (whole, resumed))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)

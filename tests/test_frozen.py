"""Frozen features from end to end: images on disk, a run, new images, and the same again."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import openldn
from openldn import cli, pipeline, systems
from openldn.errors import UserError
from openldn.files import read_tensors, write_tensors
from openldn.nets import encoder, pretrained
from openldn.options import Options
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
CPU: dict[str, Any] = {"device": "cpu", "precision": "float32", "quiet": True}
COLOURS = np.array([[230, 60, 40], [40, 160, 60], [60, 90, 220], [220, 200, 50]])
PER_CLASS, SIZE = 12, 16


def texture(k: int, rng: np.random.Generator) -> np.ndarray:
    """Stripes in the colour, the direction and the width of a class, anywhere.  (16, 16, 3) uint8"""
    across, along = np.mgrid[:SIZE, :SIZE]
    angle = k * np.pi / 4 + rng.normal(0, 0.1)
    wave = np.sin((across * np.cos(angle) + along * np.sin(angle)) * (0.6 + 0.3 * k) + rng.uniform(0, 6))
    pixels = COLOURS[k] * (0.6 + 0.4 * wave[..., None]) + rng.normal(0, 12, (SIZE, SIZE, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def textures(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Of four classes.  (n, 16, 16, 3), (n,)"""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(4), PER_CLASS))
    return np.stack([texture(k, rng) for k in y]), y


def write(folder: Path) -> dict[str, str]:
    """Half of the images of two classes in their folders, all others in `unlabelled`; gives their classes."""
    truth = {}
    for i, (image, k) in enumerate(zip(*textures(), strict=True)):
        labelled = k < 2 and i % 2 == 0
        name = f"kind-{k}/{i}.png" if labelled else f"unlabelled/{i}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
        if not labelled:
            truth[name] = f"kind-{k}"
    return truth


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return [*csv.DictReader(f)]


class Done:
    """A folder, a finished run on it, and the truth of its unlabelled images."""

    def __init__(self, base: Path):
        self.folder, self.truth_file = base / "photos", base / "truth.csv"
        self.truth = write(self.folder)
        lines = [f"{name},{label}" for name, label in self.truth.items()]
        self.truth_file.write_text("\n".join(["image,label", *lines]))
        self.run: Run = openldn.train(
            self.folder, method="whitened-clustering", novel=2, out=base / "run", **CPU
        )

    @property
    def predictions(self) -> list[dict[str, str]]:
        return rows(self.run.path / "predictions.csv")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("frozen"))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that a frozen network sees from now on, by their sizes."""
    seen, usual = list[int](), encoder._Frozen.__call__

    def counting(self: encoder._Frozen, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return usual(self, images)

    monkeypatch.setattr(encoder._Frozen, "__call__", counting)
    return seen


def test_the_classes_of_textures_are_found(done: Done) -> None:
    config = done.run.config
    assert (config["weights"], config["system"]) == ("frozen", "whitened-clustering")
    assert [one["name"] for one in config["encoder"]] == [pretrained.LITE0]
    assert config["encoder"][0]["size"] == 80
    result = openldn.evaluate(done.run, truth=done.truth_file)
    assert result["images"] == len(done.truth) == len(done.predictions)
    scores = result["protocols"]["anchored"]
    assert scores["known"] > 95
    assert scores["novel"] > 90


def test_an_image_has_one_answer_whether_it_was_there_in_training_or_comes_later(
    done: Done, tmp_path: Path
) -> None:
    openldn.predict(done.run, done.folder, tmp_path / "again.csv")
    again = {row["image"]: row for row in rows(tmp_path / "again.csv")}
    for row in done.predictions:
        other = again[row["image"]]
        assert (other["label"], other["kind"]) == (row["label"], row["kind"])
        assert float(other["confidence"]) == pytest.approx(float(row["confidence"]), abs=2e-3)
    for name, row in again.items():
        assert name.startswith("unlabelled/") or row["label"] == name.partition("/")[0]


def test_a_run_that_was_stopped_ends_the_same(done: Done, tmp_path: Path, passes: list[int]) -> None:
    """Its features are still there: no image goes through the network again."""
    path = tmp_path / "stopped"
    done.run.copy_to(path)
    model, predictions = path / "model.safetensors", path / "predictions.csv"
    for file in (model, predictions):
        file.unlink()
    openldn.resume(path, quiet=True)
    (before, about), (after, same) = (read_tensors(run / model.name) for run in (done.run.path, path))
    assert about == same
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert rows(predictions) == done.predictions
    assert passes == []


def test_other_labels_need_no_new_features(done: Done, tmp_path: Path, passes: list[int]) -> None:
    labels = tmp_path / "labels.csv"
    some = [f"{name},{label}" for name, label in done.truth.items() if label == "kind-2"][:3]
    old = [f"{file.relative_to(done.folder)},{file.parent.name}" for file in done.folder.glob("kind-*/*")]
    labels.write_text("\n".join(["image,label", *old, *some]))
    run = openldn.train(done.folder, labels=labels, method="ss-k-means", novel=1, out=tmp_path / "run", **CPU)
    assert run.config["classes"] == ["kind-0", "kind-1", "kind-2"]
    assert passes == []


def test_the_model_as_an_estimator(done: Done) -> None:
    model = openldn.load(done.run.path)
    x, y = textures(seed=1)
    assert model.score(x, np.array([f"kind-{k}" for k in y])) > 0.9
    p = model.predict_proba(x)
    assert p.shape == (len(x), 4)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert model.transform(x).shape == (len(x), 1280)
    np.testing.assert_allclose(model.predict_proba(x[3:5]), p[3:5], atol=1e-3)


def train(folder: Path, out: Path, *more: str) -> None:
    """On the command line."""
    given = {"method": "whitened-clustering", "novel": "2", "device": "cpu", "precision": "float32"}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    cli.main(["train", str(folder), "--out", str(out), *words, *more])


def test_the_command_line(done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, new = tmp_path / "run", tmp_path / "new.csv"
    train(done.folder, out)
    assert rows(out / "predictions.csv") == done.predictions
    cli.main(["resume", str(out)])  # finished: nothing happens
    cli.main(["predict", str(out), str(done.folder / "kind-0"), "--out", str(new)])
    assert {row["label"] for row in rows(new)} == {"kind-0"}
    capsys.readouterr()
    cli.main(["evaluate", str(out), "--truth", str(done.truth_file), "--json"])
    assert json.loads(capsys.readouterr().out)["images"] == len(done.truth)


def test_changed_weights_are_noticed(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = pretrained._lite0()
    changed = type(usual)(usual.name, usual.size, usual.mean, usual.std, "0" * 64)
    monkeypatch.setattr(pretrained, "_lite0", lambda: changed)
    with pytest.raises(UserError, match="the weights of efficientnet-lite0 are not those"):
        openldn.load(done.run.path)


def test_a_changed_image_alone_is_computed_again(done: Done, tmp_path: Path, passes: list[int]) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(done.folder, folder)
    file = folder / "unlabelled" / Path(next(iter(done.truth))).name
    Image.fromarray(255 - np.asarray(Image.open(file))).save(file)
    openldn.train(folder, method="whitened-clustering", novel=2, out=tmp_path / "run", **CPU)
    assert passes == [1]


# ---------------------------------------------------------------------------------- arrays and modules


def labels(y: np.ndarray, each: int | None = None) -> np.ndarray:
    """Every other image of the first two classes, or the first so many of each."""
    given = np.full(len(y), -1)
    for k in (0, 1):
        of_class = np.flatnonzero(y == k)
        given[of_class[::2] if each is None else of_class[:each]] = k
    return given


def estimator(**choices: Any) -> openldn.OpenLDN:
    return openldn.OpenLDN(2, method="whitened-clustering", device="cpu", precision="float32", **choices)


@pytest.mark.parametrize("each", [None, 1])
def test_labels_never_change(each: int | None) -> None:
    """A wrong one neither; and one labelled image of each class is enough."""
    x, y = textures()
    given = labels(y, each)
    if each is None:
        given[np.flatnonzero(given == 0)[0]] = 1
    fitted = estimator().fit(x, given)
    assert (fitted.transduction_[given >= 0] == given[given >= 0]).all()
    assert fitted.score(*textures(seed=1)) > 0.9


def network() -> nn.Module:
    """A user's own, untrained: colours and edges."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )


def test_a_module_of_ones_own_is_frozen(tmp_path: Path) -> None:
    x, y = textures()
    own = network()
    before = {name: t.clone() for name, t in own.state_dict().items()}
    fitted = estimator(backbone=own, out=tmp_path / "run").fit(x, labels(y))
    new, classes = textures(seed=1)
    assert fitted.score(new, classes) > 0.9
    assert fitted.transform(new).shape == (len(new), 64)
    assert fitted.run_.config["encoder"][0]["name"] == "custom"
    assert all(torch.equal(t, before[name]) for name, t in own.state_dict().items())
    loaded = openldn.load(tmp_path / "run", backbone=network())
    np.testing.assert_array_equal(loaded.predict_proba(new), fitted.predict_proba(new))
    with pytest.raises(UserError, match="backbone of its owner's own; give it"):
        openldn.load(tmp_path / "run")
    with torch.no_grad():
        own[0].weight[0] += 0.1
    with pytest.raises(UserError, match="the backbone is not the one that this run was trained with; give"):
        openldn.load(tmp_path / "run", backbone=own)


def test_two_networks_side_by_side(done: Done, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    patches: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    models = {
        "first": transformers.ResNetModel(transformers.ResNetConfig(**small)),
        "second": transformers.ViTModel(transformers.ViTConfig(**patches, image_size=32, patch_size=8)),
    }
    for name, model in models.items():
        with pretrained._quiet():
            model.save_pretrained(tmp_path / name)
    both, out = f"{tmp_path / 'first'},{tmp_path / 'second'}", tmp_path / "run"
    train(done.folder, out, "--backbone", both)
    assert [Path(one["name"]).name for one in Run.open(out).config["encoder"]] == ["first", "second"]
    assert openldn.load(out).transform(textures()[0]).shape == (4 * PER_CLASS, 16 + 16)
    openldn.predict(out, done.folder / "unlabelled", tmp_path / "again.csv")
    again = [row["label"] for row in rows(tmp_path / "again.csv")]
    assert again == [row["label"] for row in rows(out / "predictions.csv")]


# ------------------------------------------------------------------------------ systems that train


REFUSED = ("cgdl", "fine-tuned")  # one reconstructs pixels, the other goes on learning
QUICK = "openldn"


@pytest.mark.parametrize(
    "method",
    [
        name if name == QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name, system in systems.SYSTEMS.items()
        if system.trained and name not in REFUSED
    ],
)
def test_a_head_is_trained_on_frozen_features(done: Done, tmp_path: Path, method: str) -> None:
    """Of every system; one of them is trained for long enough to be right."""
    epochs, out = 40 if method == QUICK else 4, tmp_path / "run"
    run = openldn.train(done.folder, method=method, weights="frozen", novel=2, epochs=epochs, out=out, **CPU)
    assert run.config["encoder"][0]["name"] == pretrained.LITE0
    scores = openldn.evaluate(run, truth=done.truth_file)["protocols"]["anchored"]
    assert scores["known"] > 90 or method != QUICK
    openldn.predict(run, done.folder / "unlabelled", tmp_path / "again.csv")
    again = [row["label"] for row in rows(tmp_path / "again.csv")]
    assert again == [row["label"] for row in rows(run.path / "predictions.csv")]


@pytest.mark.parametrize("method", REFUSED)
def test_what_cannot_be_trained_on_frozen_features_says_so(method: str) -> None:
    with pytest.raises(UserError, match=f"{method} .*; leave out --weights frozen"):
        pipeline.check(Options(method=method, weights="frozen"))


def test_a_pretrained_network_goes_on_learning(done: Done, tmp_path: Path) -> None:
    run = openldn.train(
        done.folder,
        method="fine-tuned",
        novel=2,
        epochs=1,
        batch=12,
        resolution=0.5,
        out=tmp_path / "run",
        **CPU,
    )
    config = run.config
    assert (config["weights"], config["backbone"]) == ("fine-tuned", pretrained.LITE0)
    assert {stage: own["resolution"] for stage, own in config["settings"].items()} == {
        "metric-learning": 0.5,
        "self-labelling": 0.5,
    }
    before, after = pretrained.find(pretrained.LITE0).module(), openldn.load(run.path).model_.network.backbone
    assert before.state_dict().keys() == after.state_dict().keys()
    moved = {name for name, t in before.state_dict().items() if not torch.equal(t, after.state_dict()[name])}
    assert {name for name, _ in before.named_parameters()} >= moved > set()  # running statistics stay
    openldn.predict(run, done.folder / "unlabelled", tmp_path / "again.csv")
    again = [row["label"] for row in rows(tmp_path / "again.csv")]
    assert again == [row["label"] for row in rows(run.path / "predictions.csv")]


@pytest.mark.parametrize("method", ["openldn-uda", "pu-self-training", "simgcd"])
def test_any_system_can_start_from_pretrained_weights(done: Done, tmp_path: Path, method: str) -> None:
    run = openldn.train(
        done.folder,
        method=method,
        weights="fine-tuned",
        novel=2,
        epochs=0.2,
        batch=8,
        frozen_share=0.8,
        resolution=0.3,
        out=tmp_path / "run",
        **CPU,
    )
    assert all(own["frozen_share"] == 0.8 for own in run.config["settings"].values())
    before = dict(pretrained.find(pretrained.LITE0).module().named_parameters())
    after = dict(openldn.load(run.path).model_.network.backbone.named_parameters())
    same = [torch.equal(t, after[name]) for name, t in before.items()]
    frozen = round(0.8 * len(same))
    assert all(same[:frozen])
    assert not all(same[frozen:])
    openldn.predict(run, done.folder / "unlabelled", tmp_path / "again.csv")
    again = [row["label"] for row in rows(tmp_path / "again.csv")]
    assert again == [row["label"] for row in rows(run.path / "predictions.csv")]


def test_only_a_pretrained_start_has_its_settings() -> None:
    with pytest.raises(UserError, match="orca has no setting 'frozen_share'"):
        pipeline.check(Options(method="orca", settings={"frozen_share": 0.5}))
    system = pipeline.check(
        Options(method="orca", weights="fine-tuned", settings={"orca.frozen_share": 0.5, "margin": 0.7})
    )
    own = system.settings(Options(method="orca", settings={"orca.frozen_share": 0.5, "margin": 0.7}))["orca"]
    assert (own.frozen_share, own.margin, own.backbone_lr) == (0.5, 0.7, 0.1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [{"optimiser": "muon"}, {"uda.progressive_resizing": "true"}])
def test_settings_that_are_not_for_pretrained_networks(given: dict[str, str]) -> None:
    pipeline.check(Options(method="openldn-uda", settings=given))
    with pytest.raises(UserError, match="is not for pretrained networks; leave it out"):
        pipeline.check(Options(method="openldn-uda", weights="fine-tuned", settings=given))


def test_a_fine_tuned_model_needs_no_original_weights(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what its network is, and a stranger's cannot make us download one, or build a huge one."""
    run = openldn.train(
        done.folder, method="fine-tuned", novel=2, epochs=0.2, batch=8, out=tmp_path / "run", **CPU
    )

    def gone(*_: object) -> None:
        raise AssertionError("the original weights were asked for")

    monkeypatch.setattr(pretrained, "find", gone)
    openldn.predict(run, done.folder / "unlabelled", tmp_path / "again.csv")
    again = [row["label"] for row in rows(tmp_path / "again.csv")]
    assert again == [row["label"] for row in rows(run.path / "predictions.csv")]

    file = run.path / "model.safetensors"
    tensors, about = read_tensors(file)
    for architecture, said in (
        ({"config": {"model_type": "vit", "num_hidden_layers": 10**9}}, "train again"),
        ({"config": {"model_type": "vit", "hidden_size": 12_000}}, "more weights than are in its file"),
        ({"config": 3}, "train again"),
        ([], "train again"),
    ):
        write_tensors(file, tensors, {**about, "architecture": json.dumps(architecture)})
        with pytest.raises(UserError, match=said):
            openldn.load(run.path)

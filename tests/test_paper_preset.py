"""The preset `paper`, number by number, on each of the paper's data sets; and other systems' own recipes."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import toy
from openldn import cli, inference, job, pipeline, systems
from openldn.data import reading, sources
from openldn.data.batches import Batches
from openldn.errors import UserError
from openldn.model import Model, new_network
from openldn.nets.backbones import Pooled, build
from openldn.nets.classifier import infer
from openldn.options import Options
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")

SMALL = ("cifar10", "cifar100", "svhn")
PHOTOGRAPHS = ("imagenet-100", "oxford-pets", "fgvc-aircraft", "stanford-cars", "herbarium19")


class Paper(NamedTuple):
    """What the paper and, where it is silent, its authors' code say of a data set."""

    backbone: str
    stored: int  # pixels
    crop: int | None
    batch: int  # of stage 1
    lr: float
    second_batch: int
    steps: int  # of stage 2
    refreshes: int
    bias: bool  # of stage 2's head


OF_SMALL = Paper("resnet18", 32, None, 200, 5e-4, 64, 1024 * 1024, 102, True)
OF_PHOTOGRAPHS = Paper("resnet18", 256, 224, 200, 5e-4, 512, 200 * 1024, 19, False)
TABLE = {
    **dict.fromkeys(SMALL, OF_SMALL),
    "tiny-imagenet": OF_SMALL._replace(stored=64, bias=False),
    **dict.fromkeys(PHOTOGRAPHS, OF_PHOTOGRAPHS),
    "imagenet-100": OF_PHOTOGRAPHS._replace(backbone="resnet50", batch=480, lr=1e-2),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("method", ["openldn-mixmatch", "openldn-uda"])
def test_every_number(name: str, method: str) -> None:
    expected = TABLE[name]
    options = pipeline.decided(Options(preset="paper", method=method), {"kind": "named", "name": name})
    decided = job.decide(options, systems.chosen(options), data=name)
    first, second = decided["settings"].values()
    assert decided["backbone"] == expected.backbone
    assert not decided["flip_tta"]
    assert job.precision(options, toy.CPU) == "float32"
    size = min(sources.NAMED[name].size, options.largest)
    assert reading.geometry(size, options) == (expected.stored, expected.crop)
    assert {key: first[key] for key in FIRST} == {**FIRST, "batch": expected.batch, "lr": expected.lr}
    own = MIXMATCH if method == "openldn-mixmatch" else UDA
    numbers = {
        **SECOND,
        **own,
        "batch": expected.second_batch,
        "least_images": expected.second_batch * expected.steps,
        "refreshes": expected.refreshes,
        "head_bias": expected.bias,
    }
    assert {key: second[key] for key in numbers} == numbers


FIRST: dict[str, Any] = {
    "epochs": 50.0,
    "least_images": 0,
    "batch": 200,
    "composition": "equal",
    "lr": 5e-4,
    "optimiser": "adam",
    "schedule": "constant",
    "l2": 0.0,
    "similarity_lr": 1e-4,
    "alpha": 1e-3,
    "tau": 0.5,
    "order": "omega-first",
    "attach": "lookahead",
    "omega_rows": "all",
    "omega_every": 1,
    "target": "learned",
    "shortcuts": "pooled",
}
SECOND: dict[str, Any] = {
    "epochs": 0.0,
    "lr": 2e-3,
    "ratio": 1,
    "optimiser": "adam",
    "schedule": "constant",
    "weight_decay": 0.02,
    "ema_steps": 1000,
    "progressive_resizing": False,
    "gate": False,
    "period": None,
}
MIXMATCH: dict[str, Any] = {"unlabelled_weight": 75.0, "temperature": 0.5, "mixup": 0.75}
UDA: dict[str, Any] = {"threshold": 0.8, "temperature": 0.4, "threshold_on": "sharpened", "mixup": 0.75}


RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("fixmatch", "fixmatch"): {"lr": 0.03, "ratio": 7, "schedule": "cosine-7-16", "optimiser": "nesterov"},
    ("mixmatch", "mixmatch"): {"lr": 2e-3, "unlabelled_weight": 75.0, "batch": 64, "optimiser": "adam"},
    ("uda", "uda"): {"lr": 0.03, "ratio": 10, "batch": 32, "least_images": 128_000_000},
    ("ds3l", "ds3l"): {"lr": 3e-4, "omega_lr": 6e-5, "omega_every": 1, "least_images": 10_000_000},
    ("dtc", "dtc"): {"lr": 0.05, "epochs": 110.0, "refreshes": 22, "batch": 128},
    ("rankstats", "simclr"): {"lr": 0.4, "epochs": 500.0, "batch": 512, "schedule": "cosine"},
    ("rankstats", "rankstats"): {"lr": 0.1, "epochs": 200.0, "batch": 128, "consistency": 5.0},
    ("uno", "supervised"): {"lr": 0.1, "epochs": 50.0, "optimiser": "sgd", "l2": 1e-4},
    ("uno", "uno"): {"lr": 0.4, "epochs": 500.0, "batch": 512, "l2": 1.5e-4},
    ("orca", "orca"): {"lr": 0.1, "epochs": 200.0, "batch": 512, "schedule": "steps", "l2": 5e-4},
    ("trssl", "trssl"): {"lr": 0.1, "batch": 256, "uncertainty_views": 10},
}
ON_CIFAR100: dict[tuple[str, str], dict[str, Any]] = {
    ("fixmatch", "fixmatch"): {"l2": 1e-3, "ratio": 7},
    ("mixmatch", "mixmatch"): {"unlabelled_weight": 150.0},
    ("rankstats", "rankstats"): {"consistency": 50.0, "ramp_until": 0.75},
    ("dtc", "dtc"): {"l2": 1e-5, "epochs": 130.0},
}
REFUSED = ("mean-teacher", "cgdl", "gcd", "simgcd", "supervised", "pu-self-training", "pu-clustering")
REFUSED += ("whitened-clustering", "fine-tuned", "pim", "turtle")


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_other_systems_have_their_own_papers_recipes(data: str) -> None:
    for (method, stage), expected in (RECIPES if data == "cifar10" else ON_CIFAR100).items():
        made = systems.find(method).settings(Options(preset="paper", method=method), data)[stage]
        assert {key: getattr(made, key) for key in expected} == expected, method


def test_a_system_has_a_recipe_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    for name, system in systems.SYSTEMS.items():
        if system.no_recipe:
            with pytest.raises(UserError, match=f"{name} has no preset paper"):
                pipeline.check(Options(method=name, preset="paper"))
        else:
            pipeline.check(Options(method=name, preset="paper"))
    assert {name for name, system in systems.SYSTEMS.items() if system.no_recipe} == {*REFUSED}
    with pytest.raises(UserError, match=r"gcd\+uda has no preset paper .*DINO"):
        pipeline.check(Options(method="gcd+uda", preset="paper"))
    cli.main(["systems", "gcd"])
    assert "no preset paper" in capsys.readouterr().out


# ------------------------------------------------------------------------------ photographs of 224 pixels


def write_pets(folder: Path) -> None:
    """A few wide photographs in the publisher's layout: red left borders, blue right ones, grey between."""
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    for k in range(37):
        for part, n in (("trainval", 2), ("test", 1)):
            for i in range(n):
                pixels = np.full((200, 400, 3), 6 * k + 2 * (i if part == "trainval" else 2), np.uint8)
                pixels[:, :40], pixels[:, -40:] = (255, 0, 0), (0, 0, 255)
                name = f"Breed{k:02}_{part}{i}"
                (folder / "images").mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / "images" / f"{name}.jpg", quality=95)
                lists[part].append(f"{name} {k + 1} 1 1")
    (folder / "annotations").mkdir()
    for part, lines in lists.items():
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("own_cache")
def test_crops_are_cut_from_whole_photographs(tmp_path: Path) -> None:
    """Views reach the borders of a wide photograph; test images are the centre of it."""
    write_pets(tmp_path / "oxford-pets")
    options = Options(preset="paper", size=112, data_dir=str(tmp_path), weights="scratch")
    source = reading.describe("oxford-pets", None, options)
    problem = reading.read(source, options).problem
    assert problem.images.shape[1:] == (3, 128, 128)
    assert (problem.crop, problem.size) == (112, 112)
    batches = Batches(
        problem,
        n_labelled=8,
        n_unlabelled=16,
        labelled_views=("weak",),
        unlabelled_views=("weak", "strong", "crop_jitter"),
        seed=(0,),
        device=toy.CPU,
    )
    drawn = [batches[i] for i in range(8)]
    assert {view.shape[1:] for batch in drawn for view in (*batch.x, *batch.u)} == {(3, 112, 112)}
    weak = torch.cat([batch.u[0] for batch in drawn])
    red, blue = (((weak[:, a] > 0.8) & (weak[:, b] < 0.2)).any(dim=2).any(dim=1) for a, b in ((0, 2), (2, 0)))
    assert red.float().mean() > 0.3  # borders are seen
    assert blue.float().mean() > 0.3
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    network = new_network(problem, systems.find("openldn").stages[0], body, toy.CPU)
    seen = list[torch.Tensor]()
    network.backbone.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    network.flip_tta = False
    infer(network, problem.images[torch.arange(3)])
    pixels = problem.images[torch.arange(3)][..., 8:120, 8:120].float() / 255
    assert torch.allclose(seen[-1] * network.std + network.mean, pixels, atol=1e-5)


@pytest.mark.usefixtures("own_cache")
def test_a_run_of_crops_is_saved_and_predicts(tmp_path: Path) -> None:
    write_pets(tmp_path / "oxford-pets")
    choices: dict[str, Any] = {"preset": "paper", "size": 112, "data_dir": str(tmp_path), "epochs": 0.01}
    settings = {"discover.batch": 4, "mixmatch.batch": 2, "refreshes": 0}
    run = pipeline.train(
        "oxford-pets",
        Options(method="openldn-mixmatch", settings=settings, **choices),
        out=tmp_path / "run",
        quiet=True,
    )
    model = Model.load(run.path)
    assert (model.size, model.network.crop, model.squash) == (128, 112, True)
    assert model.network.head.bias is None
    assert run.config["image"]["fit"] == "both sides resized; crops of 112 pixels"
    first = Run.open(run.path).load_state("1-discover")
    assert first is not None
    names = [*first["training"]["network"]]
    assert not [name for name in names if "shortcut" in name]  # without parameters
    assert inference.evaluate(run)["protocols"]["openldn"]
    n = inference.predict(run, tmp_path / "oxford-pets" / "images", tmp_path / "new.csv")
    assert n == 37 * 3
    again = {line.split(",")[0]: line for line in (run.path / "predictions.csv").read_text().splitlines()}
    new = {f"images/{line.split(',')[0]}": line for line in (tmp_path / "new.csv").read_text().splitlines()}
    for name, line in again.items():  # the same images in the same way
        if name in new:
            assert new[name].split(",")[1:] == line.split(",")[1:]
    assert len({*again} & {*new}) > 30


def test_shortcuts_without_parameters_by_hand() -> None:
    shortcut, x = Pooled(2, 5, 2), torch.randn(3, 2, 4, 6)
    made = shortcut(x)
    assert made.shape == (3, 5, 2, 3)
    for i in range(2):
        for j in range(3):
            block = x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean(dim=(2, 3))
            assert torch.allclose(made[:, :2, i, j], block, atol=1e-6)
    assert not made[:, 2:].any()
    assert torch.equal(Pooled(2, 2, 1)(x), x)
    plain, pooled = build("resnet18", 3, 32), build("resnet18-pooled", 3, 32)
    fewer = sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in pooled.parameters())
    assert fewer == sum(a * b + 2 * b for a, b in ((64, 128), (128, 256), (256, 512)))

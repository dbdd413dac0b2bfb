"""Small open-world problems that are made on the spot, and stages that are about to be trained on them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from openldn import systems
from openldn.data.batches import Batch, Batches
from openldn.data.benchmark import Benchmark
from openldn.data.problem import Problem, Truth
from openldn.model import new_network
from openldn.nets.classifier import Classifier, FeaturesAndLogits, Outputs, n_features
from openldn.nets.heads import HeadBuilder, Linear
from openldn.options import Options
from openldn.training.loop import Training

CPU = torch.device("cpu")


def backbone() -> nn.Module:
    """A network so small that a step costs little beside the rest."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def pictures(
    n_classes: int, per_class: int, seed: int = 0, noise: float = 25.0
) -> tuple[np.ndarray, np.ndarray]:
    """Grey 8 x 8 images: a blocky pattern of each class, with noise.  (n, 8, 8) uint8, (n,)"""
    rng = np.random.default_rng([seed, 7])
    coarse = np.random.default_rng(123).permuted(np.tile([0.0, 255.0], (n_classes, 8)), axis=1)
    pattern = coarse.reshape(n_classes, 4, 4).repeat(2, axis=1).repeat(2, axis=2)
    labels = np.repeat(np.arange(n_classes), per_class)
    images = pattern[labels] * 0.7 + 40 + rng.normal(0, noise, (len(labels), 8, 8))
    order = rng.permutation(len(labels))
    return images.clip(0, 255).astype(np.uint8)[order], labels[order]


def labelled_set(
    n_classes: int = 6, per_class: int = 40, noise: float = 25.0, *, flip: bool = False, enlarged: int = 1
) -> Benchmark:
    """Six classes with a test part, to be split. `enlarged` repeats pixels so often in both directions."""

    def part(n: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
        images, labels = pictures(n_classes, n, seed, noise)
        pixels = images.repeat(enlarged, axis=1).repeat(enlarged, axis=2)
        return torch.from_numpy(pixels)[:, None], labels.astype(np.int64)

    classes = tuple(f"c{k}" for k in range(n_classes))
    return Benchmark.in_memory("toy", part(per_class, 0), part(15, 1), classes, flip)


def classifier(
    body: nn.Module, n_outputs: int, channels: int = 3, size: int = 8, head: HeadBuilder = Linear
) -> Classifier:
    """A classifier on a backbone, for images that are not normalised."""
    made = head(n_features(body, channels, size), n_outputs, n_outputs)
    return Classifier(body, made, torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1))


class Echo:
    """A network whose features and logits are the pixels."""

    def __init__(self, n_outputs: int = 3):
        self.head = SimpleNamespace(out_features=n_outputs)  # no random numbers are drawn

    def __call__(self, x: torch.Tensor) -> FeaturesAndLogits:
        return FeaturesAndLogits(x.flatten(1), x.flatten(1))


def as_images(logits: torch.Tensor) -> torch.Tensor:
    """What `Echo` has these logits for.  (n, C) -> (n, C, 1, 1)"""
    return logits[..., None, None]


def split(seed: int = 0, noise: float = 25.0) -> tuple[Problem, Truth]:
    """Three known and three novel classes, half of the known ones' images labelled."""
    return labelled_set(noise=noise).split(known=0.5, labelled=0.5, seed=seed)


def gaussians(
    sizes: list[int], d: int = 20, apart: float = 6.0, seed: int = 0
) -> tuple[torch.Tensor, np.ndarray]:
    """Features of classes of these sizes, with one direction of strong noise.  (n, d), (n,)"""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = apart * rng.standard_normal((len(sizes), d))[y] + rng.standard_normal((len(y), d))
    z[:, 0] += 10 * rng.standard_normal(len(y))
    return torch.from_numpy(z).float(), y


def on_features(z: torch.Tensor, y: np.ndarray, labelled: list[int], n_novel: int) -> Problem:
    """A problem of features z (n, d): of each known class, so many images have labels."""
    labels = torch.full((len(y),), -1)
    for k, n in enumerate(labelled):
        labels[torch.from_numpy(np.flatnonzero(y == k)[:n])] = k
    names, known = tuple(map(str, range(len(y)))), tuple(range(len(labelled)))
    return Problem(z[:, None], labels, names, known, n_novel)


def as_outputs(features: torch.Tensor) -> Outputs:
    """What the first view of features (n, v, d) gives without a network."""
    return Outputs(features[:, 0], features[:, 0])


def training(
    method: str,
    stage: int = -1,
    *,
    problem: Problem | None = None,
    body: str | nn.Module | None = None,
    **settings: Any,
) -> Training:
    """A stage of a system, by default its last, at its start: with new weights and settings of its own."""
    system = systems.find(method)
    chosen = system.stages[stage]
    problem = problem or split()[0]
    options = Options(
        method=method,
        epochs=4 / chosen.share,
        settings={f"{chosen.name}.{name}": value for name, value in settings.items()},
    )
    own = system.settings(options)[chosen.name]
    body = chosen.backbone or body or backbone()
    torch.manual_seed(0)
    return Training(chosen, problem, new_network(problem, chosen, body, CPU), own)


def batch(training: Training) -> Batch:
    """The first batch that a stage would see."""
    torch.manual_seed(1)
    return Batches(
        training.problem,
        n_labelled=training.composition.labelled,
        n_unlabelled=training.composition.unlabelled,
        labelled_views=training.objective.labelled_views,
        unlabelled_views=training.objective.unlabelled_views,
        seed=(0,),
        device=CPU,
    )[0]


def write_folder(folder: Path, n_classes: int = 4, n_known: int = 2, per_class: int = 12) -> dict[str, str]:
    """Class folders and `unlabelled`, as PNG files; gives the true class of each unlabelled image."""
    images, labels = pictures(n_classes, per_class)
    truth = {}
    for i, (image, k) in enumerate(zip(images, labels, strict=True)):
        labelled = k < n_known and i % 2 == 0
        name = f"class-{k}/{i}.png" if labelled else f"unlabelled/{i}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
        if not labelled:
            truth[name] = f"class-{k}"
    return truth

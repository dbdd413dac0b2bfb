"""Small open-world problems that are made on the spot."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from openldn.data.batches import Batch, Batches
from openldn.data.problem import LabelledSet
from openldn.loop import Phase


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


def labelled_set(n_classes: int = 6, per_class: int = 40, noise: float = 25.0) -> LabelledSet:
    """Six classes with a test part, to be split."""
    images, labels = pictures(n_classes, per_class, noise=noise)
    test_images, test_labels = pictures(n_classes, 15, seed=1, noise=noise)
    return LabelledSet(
        name="toy",
        images=torch.from_numpy(images)[:, None],
        labels=labels.astype(np.int64),
        test_images=torch.from_numpy(test_images)[:, None],
        test_labels=test_labels.astype(np.int64),
        classes=tuple(f"c{k}" for k in range(n_classes)),
        flip=False,
    )


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


def batch(phase: Phase) -> Batch:
    """The first batch that a phase would see."""
    torch.manual_seed(1)
    return Batches(
        phase.problem,
        n_labelled=phase.n_labelled,
        n_unlabelled=phase.n_unlabelled,
        labelled_views=phase.labelled_views,
        unlabelled_views=phase.unlabelled_views,
        seed=(0,),
        device=torch.device("cpu"),
    )[0]

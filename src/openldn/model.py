"""A trained model: a network, a predictor, and the names of the classes."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from openldn import systems
from openldn.data.image_files import LARGEST, SMALLEST
from openldn.data.pixels import Images
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.files import read_json, read_tensors, write_json, write_tensors
from openldn.nets import backbones
from openldn.nets.classifier import Classifier, infer, n_features, pixel_statistics
from openldn.nets.predictors import Predictor
from openldn.training.stage import Stage

SURE = 0.5  # below this confidence a prediction is called unsure


class Prediction(NamedTuple):
    """Of n images."""

    p: Tensor  # (n, C) probabilities
    z: Tensor  # (n, d) features

    @property
    def ids(self) -> Tensor:
        return self.p.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        return self.p.amax(dim=1)


@dataclass(repr=False)
class Model:
    """All that is needed to classify an image."""

    network: Classifier
    predictor: Predictor
    system: str
    stage: int  # which of the system's stages, from 0
    classes: list[str | int]  # known ones first
    n_known: int
    backbone: str  # a name, or "custom"
    size: int
    channels: int

    def __repr__(self) -> str:
        return f"Model({self.system}, {self.backbone}, {len(self.classes)} classes, {self.size} pixels)"

    def predict(self, images: Images) -> Prediction:
        """uint8 (n, c, h, w) -> probabilities and features."""
        outputs = infer(self.network, images)
        return Prediction(self.predictor.probabilities(outputs), outputs.z)

    def probabilities(self, images: Images) -> Tensor:
        """uint8 (n, c, h, w) -> (n, C)."""
        return self.predict(images).p

    def kind(self, prediction: Prediction) -> list[str]:
        """Known, novel or unsure, for each image."""
        pairs = zip(prediction.ids.tolist(), prediction.confidence.tolist(), strict=True)
        return ["unsure" if c < SURE else "known" if i < self.n_known else "novel" for i, c in pairs]

    def save(self, folder: Path) -> None:
        """`classes.json`, then `model.safetensors`."""
        write_json(
            folder / "classes.json",
            {"known": self.classes[: self.n_known], "novel": self.classes[self.n_known :]},
        )
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"predictor.{k}": v for k, v in self.predictor.state.items()}
        write_tensors(
            folder / "model.safetensors",
            tensors,
            {
                "system": self.system,
                "stage": str(self.stage),
                "backbone": self.backbone,
                "size": str(self.size),
                "channels": str(self.channels),
                "n_outputs": str(self.network.head.out_features),
                "precision": "bfloat16" if self.network.mixed_precision else "float32",
                "flip_tta": str(self.network.flip_tta),
            },
        )

    @staticmethod
    def load(folder: Path, backbone: nn.Module | None = None, device: torch.device | None = None) -> "Model":
        """The inverse of `save`; a backbone that was given as a module has to be given again."""
        incomplete = f"the run is incomplete; go on with it: openldn resume {folder}"
        file = folder / "model.safetensors"
        tensors, about = read_tensors(file)
        classes = read_json(folder / "classes.json", incomplete)
        if "system" in about:
            systems.find(about["system"])  # says so if there is none of that name
        try:
            size, channels, n_outputs, number = (
                int(about[k]) for k in ("size", "channels", "n_outputs", "stage")
            )
            name, stage = about["backbone"], systems.find(about["system"]).stages[number]
            predictor = stage.predictor(stage.settings())
            known, novel = list(classes["known"]), list(classes["novel"])
            # What a file says of itself is checked before anything is built by it.
            if not SMALLEST <= size <= LARGEST or channels not in (1, 3) or number < 0:
                raise ValueError
            rows = sum(len(t) for name, t in tensors.items() if name.startswith("network.head.") and t.ndim)
            if not len(known) <= n_outputs <= rows:
                raise ValueError
            if not predictor.fits(_under("predictor.", tensors), n_outputs, len(known), len(novel)):
                raise ValueError
        except (KeyError, TypeError, ValueError, IndexError):
            raise UserError(f"{file} is not a model of this version; train again") from None
        if name == "custom" and backbone is None:
            raise UserError(
                "this model has a backbone of its owner's own; give it: openldn.load(path, backbone=module)"
            )
        # On `meta` no random numbers are drawn: a training in another thread may be drawing its own.
        meta = torch.device("meta")
        if name == "custom" and backbone is not None:
            body = _copied(backbone)
        else:
            with meta:
                body = backbones.build(name, channels, size)
        d = n_features(body, channels, size)
        with meta:
            head, blank = stage.head(d, n_outputs, len(known)), torch.zeros(channels)
        network = Classifier(body, head, blank, blank)
        try:
            network.load_state_dict(_under("network.", tensors), assign=True)
        except RuntimeError:
            raise UserError(f"{file} does not fit its backbone ({name}); train again") from None
        network.mixed_precision = about.get("precision") == "bfloat16"
        network.flip_tta = about.get("flip_tta") == "True"
        predictor.state = _under("predictor.", tensors)
        network = _laid_out(network, device or torch.device("cpu")).eval()
        return Model(
            network, predictor, about["system"], number, known + novel, len(known), name, size, channels
        )


def new_network(
    problem: Problem, stage: Stage, backbone: str | nn.Module, device: torch.device
) -> Classifier:
    """A new classifier for a stage; images are normalised by their own mean and standard deviation."""
    size, channels = problem.images.shape[3], problem.images.shape[1]
    mean, std = pixel_statistics(problem.images)
    body = backbones.build(backbone, channels, size) if isinstance(backbone, str) else _copied(backbone)
    if isinstance(body, backbones.SmallNet):
        some = problem.images[torch.arange(0, len(problem.images), -(-len(problem.images) // 1000))]
        body.fit_whitening((some.float() / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1))
    head = stage.head(n_features(body, channels, size), stage.n_outputs(problem), problem.n_known)
    network = Classifier(body, head, mean, std)
    return _laid_out(network, device).train()


def _laid_out(network: Classifier, device: torch.device) -> Classifier:
    """On the device, channels last, in which convolutions are about 1.2 times as fast."""
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _copied(module: nn.Module) -> nn.Module:
    """A copy of the user's module: theirs stays as it is, and every stage starts from what was given."""
    return copy.deepcopy(module).cpu()


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

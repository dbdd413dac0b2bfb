"""A trained model: a network, a predictor, and the names of the classes."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from openldn.data.images import LARGEST, SMALLEST
from openldn.data.pixels import Images
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.nets import backbones
from openldn.nets.classifier import Classifier, infer, pixel_statistics
from openldn.nets.heads import HEADS
from openldn.predictors import PREDICTORS, Predictor
from openldn.run import read_json, read_tensors, write_json, write_tensors

SURE = 0.5  # below this confidence, a prediction is called unsure


class Prediction(NamedTuple):
    """What a model says of n images."""

    p: Tensor  # (n, C) probabilities
    z: Tensor  # (n, d) features

    @property
    def ids(self) -> Tensor:
        return self.p.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        return self.p.amax(dim=1)


@dataclass
class Model:
    """What is needed to say what an image shows."""

    network: Classifier
    predictor: Predictor
    predictor_name: str
    classes: list[str | int]  # known ones first
    n_known: int
    backbone: str  # a name, or "custom"
    size: int
    channels: int

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
                "backbone": self.backbone,
                "predictor": self.predictor_name,
                "size": str(self.size),
                "channels": str(self.channels),
                "n_outputs": str(self.network.head.out_features),
                "head": self.network.head_name,
                "precision": "bfloat16" if self.network.halved else "float32",
                "mirrored": str(self.network.mirrored),
            },
        )

    @staticmethod
    def load(folder: Path, backbone: nn.Module | None = None, device: torch.device | None = None) -> "Model":
        """The inverse of `save`; a backbone that was given as a module has to be given again."""
        incomplete = "the run is incomplete; go on with it: openldn resume RUN"
        tensors, about = read_tensors(folder / "model.safetensors")
        classes = read_json(folder / "classes.json", incomplete)
        try:
            size, channels, n_outputs = (int(about[k]) for k in ("size", "channels", "n_outputs"))
            name, predictor_name = about["backbone"], about["predictor"]
            predictor, head = PREDICTORS[predictor_name](), about.get("head", "linear")
            known, novel = list(classes["known"]), list(classes["novel"])
            # What a file says of itself is checked before anything is built by it.
            if not SMALLEST <= size <= LARGEST or channels not in (1, 3):
                raise ValueError
            rows = sum(len(t) for name, t in tensors.items() if name.startswith("network.head.") and t.ndim)
            if head not in HEADS or not len(known) <= n_outputs <= rows:
                raise ValueError
            if not predictor.fits(_under("predictor.", tensors), n_outputs, len(known), len(novel)):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{folder / 'model.safetensors'} is not a model of this version; train again"
            ) from None
        if name == "custom" and backbone is None:
            raise UserError(
                "this model has a backbone of its owner's own; give it: openldn.load(path, backbone=module)"
            )
        blank = torch.zeros(channels)
        with torch.random.fork_rng(
            devices=[]
        ):  # weights drawn here are overwritten; nobody's random numbers move
            body = _anew(backbone) if backbone else backbones.build(name, channels, size)
            network = Classifier(body, n_outputs, blank, blank + 1, size, head, len(known))
        try:
            network.load_state_dict(_under("network.", tensors))
        except RuntimeError:
            raise UserError(
                f"{folder / 'model.safetensors'} does not fit its backbone ({name}); train again"
            ) from None
        network.halved = about.get("precision") == "bfloat16"
        network.mirrored = about.get("mirrored") == "True"
        predictor.state = _under("predictor.", tensors)
        network = _laid_out(network, device or torch.device("cpu"))
        return Model(
            network.eval(),
            predictor,
            predictor_name,
            known + novel,
            len(known),
            name,
            size,
            channels,
        )


def new_network(
    problem: Problem, backbone: str | nn.Module, n_outputs: int, device: torch.device, head: str = "linear"
) -> Classifier:
    """A fresh classifier for the problem's images, which are normalised by their own mean and spread."""
    size, channels = problem.images.shape[3], problem.images.shape[1]
    mean, std = pixel_statistics(problem.images)
    body = backbones.build(backbone, channels, size) if isinstance(backbone, str) else _anew(backbone)
    if isinstance(body, backbones.SmallNet):
        some = problem.images[torch.arange(0, len(problem.images), -(-len(problem.images) // 1000))]
        body.look_at((some.float() / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1))
    made = Classifier(body, n_outputs, mean, std, size, head, problem.n_known)
    return _laid_out(made, device).train()


def _laid_out(network: Classifier, device: torch.device) -> Classifier:
    """On the device, in the layout in which convolutions are faster: about 1.2 times, a step measured."""
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _anew(module: nn.Module) -> nn.Module:
    """A copy of the user's module: theirs stays as it is, and every phase starts from what was given."""
    return copy.deepcopy(module).cpu()


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

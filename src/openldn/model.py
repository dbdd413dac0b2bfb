"""A trained model: a network, a predictor, and the names of the classes."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from openldn import systems
from openldn.data.image_files import LARGEST, SMALLEST
from openldn.data.pixels import Images, pieces
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.files import read_json, read_tensors, write_json, write_tensors
from openldn.nets import backbones, pretrained
from openldn.nets.classifier import (
    Classifier,
    Outputs,
    Prediction,
    Remembered,
    infer,
    n_features,
    statistics,
)
from openldn.nets.encoder import NEEDS_ITS_BACKBONE, Encoder, encoder
from openldn.nets.heads import Linear
from openldn.nets.predictors import Predictor
from openldn.options import Precision
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage

SURE = 0.5  # below this confidence a prediction is called unsure


@dataclass(repr=False)
class Model:
    """All that is needed to classify an image."""

    network: Classifier
    predictor: Predictor
    system: str
    stage: int  # which of the system's stages, from 0
    classes: list[str | int]  # known ones first
    n_known: int
    backbone: str  # a name, or "custom"; of a network on features "adapter" or "none"
    size: int  # of images
    channels: int
    encoder: Encoder | None = None  # of a network on features
    remembered: Remembered | None = None  # outputs on the images that it was trained on

    def __repr__(self) -> str:
        frozen = self.encoder and "+".join(source.name for source in self.encoder.sources)
        network = f"{frozen} (frozen)" if frozen else self.backbone
        return f"Model({self.system}, {network}, {len(self.classes)} classes, {self.size} pixels)"

    @property
    def squash(self) -> bool:
        """Whether new images are resized to the size without cutting off their borders."""
        return self.network.crop is not None

    def predict(self, images: Images) -> Prediction:
        """uint8 (n, c, h, w), or features that the encoder made, -> probabilities and features."""
        outputs = self.outputs(images)
        return Prediction(self.predictor.probabilities(outputs), outputs.z)

    def outputs(self, images: Images) -> Outputs:
        """Of the network."""
        if self.encoder is None or len(images.shape) == 3:
            return (self.remembered or partial(infer, self.network))(images)
        parts = [infer(self.network, self.encoder(piece)) for piece in pieces(images)]
        return Outputs(*(torch.cat(same) for same in zip(*(part[:2] for part in parts), strict=True)))

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
        encoder = self.encoder
        frozen = (
            {}
            if encoder is None
            else {
                "encoder": json.dumps(encoder.record),
                "flipped": str(encoder.flip),
                "encoder_precision": encoder.precision,
            }
        )
        write_tensors(
            folder / "model.safetensors",
            tensors,
            {
                **frozen,
                "system": self.system,
                "stage": str(self.stage),
                "backbone": self.backbone,
                "size": str(self.size),
                "channels": str(self.channels),
                "n_outputs": str(self.network.head.out_features),
                "precision": "bfloat16" if self.network.mixed_precision else "float32",
                "flip_tta": str(self.network.flip_tta),
                "input_size": str(self.network.input_size or 0),
                "crop": str(self.network.crop or 0),
                "architecture": json.dumps(dict(self.network.architecture)),
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
            mean, input_size = tensors["network.mean"], int(about.get("input_size", "0"))
            crop = int(about.get("crop", "0"))
            architecture = json.loads(about.get("architecture", "{}"))
            if not isinstance(architecture, dict):
                raise TypeError
            # What a file says of itself is checked before anything is built by it.
            if not SMALLEST <= size <= LARGEST or not 0 <= input_size <= LARGEST or not 0 <= crop <= size:
                raise ValueError
            if channels not in (1, 3) or number < 0:
                raise ValueError
            rows = sum(len(t) for name, t in tensors.items() if name.startswith("network.head.") and t.ndim)
            if (
                not len(known) <= n_outputs <= rows
                or len(mean) != 1
                or mean.ndim != (2 if "encoder" in about else 4)
            ):
                raise ValueError
            if not predictor.fits(_under("predictor.", tensors), n_outputs, len(known), len(novel)):
                raise ValueError
        except (KeyError, TypeError, ValueError, IndexError):
            raise UserError(f"{file} is not a model of this version; train again") from None
        if name == "custom" and backbone is None:
            raise UserError(NEEDS_ITS_BACKBONE)
        on, frozen = device or torch.device("cpu"), None
        # On `meta` no random numbers are drawn: a training in another thread may be drawing its own.
        meta = torch.device("meta")
        if "encoder" in about:
            frozen = _recorded_encoder(file, about, on, backbone)
            d = mean.shape[1]
            with meta:
                body = backbones.on_features(name, d)
        elif name == "custom" and backbone is not None:
            body = _copied(backbone)
            d = n_features(body, channels, crop or size)
        else:
            with meta:
                body = (
                    pretrained.blank(architecture, most=sum(t.numel() for t in tensors.values()))
                    if architecture
                    else backbones.build(name, channels, crop or size)
                )
            d = n_features(body, mean.shape[1], input_size or crop or size)
        with meta:
            head, blank = stage.head(d, n_outputs, len(known)), torch.zeros_like(mean[0])
            if isinstance(head, Linear) and "network.head.bias" not in tensors:
                head.register_parameter("bias", None)
        network = Classifier(body, head, blank, blank)
        try:
            network.load_state_dict(_under("network.", tensors), assign=True)
        except RuntimeError:
            raise UserError(f"{file} does not fit its backbone ({name}); train again") from None
        network.mixed_precision = about.get("precision") == "bfloat16"
        network.flip_tta = about.get("flip_tta") == "True"
        network.input_size, network.crop, network.architecture = (
            input_size or None,
            crop or None,
            architecture,
        )
        predictor.state = _under("predictor.", tensors)
        network = _laid_out(network, on).eval()
        return Model(
            network,
            predictor,
            about["system"],
            number,
            known + novel,
            len(known),
            name,
            size,
            channels,
            frozen,
        )


def _recorded_encoder(
    file: Path, about: Mapping[str, str], on: torch.device, backbone: nn.Module | None
) -> Encoder:
    try:
        record = json.loads(about["encoder"])
        flip, precision = about["flipped"] == "True", about["encoder_precision"]
        if not isinstance(record, list) or precision not in get_args(Precision):
            raise TypeError
        return encoder(record, flip=flip, on=on, precision=precision, own=backbone)  # type: ignore[arg-type]
    except UserError:
        raise
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} is not a model of this version; train again") from None


def new_network(
    problem: Problem,
    stage: Stage,
    backbone: str | nn.Module,
    device: torch.device,
    settings: Hyperparameters | None = None,
) -> Classifier:
    """A new classifier for a stage, whose settings may ask for a head without a bias.

    Images are normalised by their own mean and standard deviation, or as a pretrained backbone expects. On
    features of a frozen network (n, v, d) it is a small network, whatever the backbone.
    """
    (mean, std), input_size = statistics(problem.images), None
    architecture: Mapping[str, Any] = {}
    if len(problem.images.shape) == 3:
        d = problem.images.shape[2]
        body = backbones.on_features(stage.backbone or "adapter", d)
        if stage.backbone == "none":  # the input itself
            mean, std = torch.zeros(d), torch.ones(d)
    else:
        size, channels = problem.size, problem.images.shape[1]
        if isinstance(backbone, nn.Module):
            body = _copied(backbone)
        elif pretrained.is_pretrained(backbone):
            found = pretrained.find(backbone).for_images_of(size)
            body, input_size, architecture = found.module(), found.size, found.architecture
            mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (found.mean, found.std))
        else:
            body = backbones.build(backbone, channels, size)
        if isinstance(body, backbones.SmallNet):
            some = problem.images[torch.arange(0, len(problem.images), -(-len(problem.images) // 1000))]
            body.fit_whitening((some.float() / 255 - mean) / std)
        d = n_features(body, len(mean), input_size or size)
    head = stage.head(d, stage.n_outputs(problem), problem.n_known)
    if isinstance(head, Linear) and not getattr(settings, "head_bias", True):
        head.register_parameter("bias", None)
    network = Classifier(body, head, mean, std)
    network.input_size, network.architecture, network.crop = input_size, architecture, problem.crop
    # Few images of one's own say less of the statistics than the many that a backbone was trained on.
    network.norm_frozen = isinstance(backbone, str) and pretrained.is_pretrained(backbone)
    return _laid_out(network, device).train()


def _laid_out(network: Classifier, device: torch.device) -> Classifier:
    """On the device, channels last, in which convolutions are about 1.2 times as fast."""
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _copied(module: nn.Module) -> nn.Module:
    """A copy of the user's module: theirs stays as it is, and every stage starts from what was given."""
    return copy.deepcopy(module).cpu()


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

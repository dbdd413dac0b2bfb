"""Frozen networks that turn images into features, computed once and kept: see `data/features.py`."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from os.path import isdir  # unlike that of Path, it never raises
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn import device
from openldn.data.features import Features, Recipe, SideBySide, features
from openldn.data.image_files import LARGEST, SMALLEST
from openldn.data.pixels import Images
from openldn.data.store import Watch
from openldn.errors import UserError
from openldn.nets.classifier import statistics
from openldn.nets.pretrained import Pretrained, fast_inference, find, present
from openldn.options import Precision

NEEDS_ITS_BACKBONE = (
    "this model has a backbone of its owner's own; give it: openldn.load(path, backbone=module)"
)


class Source(Protocol):
    """A network with weights, and the input that it expects: `Pretrained`, or a user's own."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def digest(self) -> str: ...
    def module(self) -> nn.Module: ...


class Custom(NamedTuple):
    """A user's own module; images are normalised by their own mean and standard deviation."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    given: nn.Module
    name: str = "custom"

    @staticmethod
    def of(module: nn.Module, images: Images) -> "Custom":
        """With the statistics of the images that it is used on."""
        mean, std = (tuple(t.flatten().tolist()) for t in statistics(images))
        return Custom.normalised(module, images.shape[3], mean, std)

    @staticmethod
    def normalised(module: nn.Module, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> "Custom":
        """For images of this size, with these statistics."""
        # Modules of equal weights may differ in layers that have none, such as pooling.
        digest = hashlib.sha256(f"{module!r} {mean} {std}".encode())
        for name, t in module.state_dict().items():
            if isinstance(t, Tensor):  # or extra state of any type
                flat = t.detach().cpu().contiguous().flatten()
                digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
        return Custom(size, mean, std, digest.hexdigest(), module)

    def module(self) -> nn.Module:
        return self.given


class Encoder:
    """One or several frozen networks; several stand side by side."""

    def __init__(self, sources: Sequence[Source], *, flip: bool, on: torch.device, precision: Precision):
        self.sources, self.flip, self.device, self.precision = tuple(sources), flip, on, precision
        self._parts: list[_Frozen] | None = None

    @property
    def record(self) -> list[dict[str, Any]]:
        """What a run records of it."""
        keys = ("name", "digest", "size", "mean", "std")
        return [{key: getattr(source, key) for key in keys} for source in self.sources]

    @property
    def parts(self) -> "list[_Frozen]":
        """The networks, built when they are first needed."""
        if self._parts is None:
            self._parts = [_Frozen(source, self.flip, self.device, self.precision) for source in self.sources]
        return self._parts

    def features(self, images: Images, watch: Watch | None = None) -> Features | SideBySide:
        """Features (n, views, d) of images, from the store as far as they are there."""
        found = [features(images, part.recipe, watch) for part in self.parts]
        return found[0] if len(found) == 1 else SideBySide(found)

    def __call__(self, images: Tensor) -> Tensor:
        """The same, computed and not stored.  uint8 (n, c, h, w) -> (n, views, d)"""
        made = []
        for part in self.parts:
            pieces = images.split(part.batch)
            # Rounded as those in the store are.
            made.append(torch.cat([part(piece) for piece in pieces]).half().float())
        return made[0] if len(made) == 1 else torch.cat([F.normalize(z, dim=2) for z in made], dim=2)


class _Frozen:
    """One network, ready for inference."""

    def __init__(self, source: Source, flip: bool, on: torch.device, precision: Precision):
        self.source, self.flip, self.device = source, flip, on
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.network = fast_inference(source.module()).to(on, self.dtype).eval()
        mean, std = (
            torch.tensor(values, device=on).view(1, -1, 1, 1) for values in (source.mean, source.std)
        )
        self.scale, self.shift = 1 / (255 * std), -mean / std  # of bytes
        self.batch = device.inference_batch(on)
        channels = len(source.mean)
        try:
            z = self._features(torch.zeros(2, channels, source.size, source.size, device=on))
        except Exception as e:  # someone else's code
            raise UserError(
                f"the backbone {source.name} cannot take images of {source.size} x {source.size} pixels "
                f"({type(e).__name__}: {e}); give one that can"
            ) from e
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != 2:
            raise UserError(
                f"the backbone {source.name} must map images (n, c, h, w) to features (n, d); "
                f"this one gives {tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__}"
            )
        self.recipe = Recipe(
            key=f"{source.digest} {source.size} {precision}",
            views=1 + flip,
            d=z.shape[1],
            compute=self,
            batch=self.batch,
        )

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """uint8 (n, c, h, w) -> (n, views, d) on the CPU."""
        x = images.to(self.device).float()
        size = self.source.size
        if x.shape[2:] != (size, size):
            x = F.interpolate(x, (size, size), mode="bilinear", antialias=True)
        if x.shape[1] == 1:
            x = x.expand(-1, len(self.source.mean), -1, -1)
        x = (x * self.scale).add_(self.shift)
        views = (x, x.flip(3)) if self.flip else (x,)
        z = torch.stack([self._features(view) for view in views], dim=1).float().cpu()
        if not z.half().isfinite().all():  # as they are stored
            raise UserError(
                f"the backbone {self.source.name} gives features that are not finite, or above 65,504; check "
                "its weights, or use another one"
            )
        return z

    def _features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(x.to(self.dtype, memory_format=torch.channels_last))  # type: ignore[no-any-return]


def encoder(
    record: Sequence[dict[str, Any]],
    *,
    flip: bool,
    on: torch.device,
    precision: Precision,
    own: nn.Module | None,
) -> Encoder:
    """The encoder that a run recorded; an error if a network is not the one it was."""
    sources = list[Source]()
    for one in record:
        if one["name"] == "custom":
            if own is None:
                raise UserError(NEEDS_ITS_BACKBONE)
            given = Custom.normalised(own, one["size"], tuple(one["mean"]), tuple(one["std"]))
            if given.digest != one["digest"]:
                raise UserError(
                    "the backbone is not the one that this run was trained with; give that one, with the "
                    "weights that it had"
                )
            sources.append(given)
            continue
        # A run may be a stranger's: nothing is downloaded for it, and sizes are sane.
        if not isinstance(one["size"], int) or not SMALLEST <= one["size"] <= LARGEST:
            raise UserError(f"the run's backbone cannot have images of {one['size']} pixels; train again")
        if not isdir(one["name"]) and not present(one["name"]):
            raise UserError(f"the run needs the backbone {one['name']}, which is not here; bring it first")
        found: Pretrained = replace(find(one["name"]), size=one["size"])
        if found.digest != one["digest"]:
            raise UserError(
                f"the weights of {one['name']} are not those that this run was trained with; "
                "bring them back, or train again"
            )
        sources.append(found)
    return Encoder(sources, flip=flip, on=on, precision=precision)

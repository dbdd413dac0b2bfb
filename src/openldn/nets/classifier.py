"""A backbone with a head, and what it says about many images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.pixels import Images, Part, pieces
from openldn.errors import UserError
from openldn.nets.heads import HEADS, Head, Ladder


class Made(NamedTuple):
    """What a pass of n images makes: features z (n, d) and logits (n, C)."""

    z: Tensor
    logits: Tensor


class Outputs(NamedTuple):
    """The same of many images, and features of the stage before the last, if the backbone is one of ours.

    These know less of the known classes, and so more of others.
    """

    z: Tensor
    logits: Tensor
    early: Tensor | None = None


Says = Callable[[Images], Tensor]  # class probabilities (n, C) of images


class Passes:
    """Within, how many images pass through classifiers: 1 forward, 2 backward, 2 along a direction.

    An image that is made smaller first counts by its area. What passes within another one that is opened
    inside is counted there alone.
    """

    _open: ContextVar["Passes | None"] = ContextVar("passes", default=None)

    def __init__(self, total: float = 0.0):
        self.total = total

    def __enter__(self) -> "Passes":
        self._before = self._open.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.reset(self._before)

    @classmethod
    def count(cls, n: float) -> None:
        """So many more; nothing if nobody counts."""
        if (counter := cls._open.get()) is not None:
            counter.total += n


class Classifier(nn.Module):
    """f_Φ ∘ f_Θ: images in [0, 1] -> normalised pixels -> features z -> logits."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        n_outputs: int,
        mean: Tensor,
        std: Tensor,
        size: int,
        head: str = "linear",
        n_known: int = 0,
    ):
        super().__init__()
        self.pixels: int | None = None  # the side that images are brought to first, if any
        self.mirrored = False  # whether `infer` asks about mirror images too
        self.back = 2.0  # what the way back costs, in units of the way forward
        self.halved = False  # whether the backbone works in bfloat16; its weights stay as they are
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", std.view(1, -1, 1, 1))
        self.backbone = backbone
        self.head_name = head
        self.head: Head | nn.Linear = HEADS[head](width(backbone, len(mean), size), n_outputs, n_known)

    def forward(self, x: Tensor) -> Made:
        z = self.trunk(x)
        if isinstance(self.head, Ladder):
            z = self.head.latent(z)
        return Made(z, self.head(z))

    @property
    def passes_each(self) -> float:
        """Image passes of an image forward and back."""
        return 1 + self.back

    def trunk(self, x: Tensor) -> Tensor:
        """Features as the backbone gives them.  (n, c, h, w) -> (n, d)"""
        more = torch.is_grad_enabled() or fwd._current_level >= 0  # whoever wants a derivative will get it
        share = 1 if self.pixels is None else (self.pixels / x.shape[-1]) ** 2  # of the arithmetic
        Passes.count((self.passes_each if more else 1) * share * len(x))
        if self.pixels is not None and self.pixels != x.shape[-1]:
            x = F.interpolate(x, (self.pixels, self.pixels), mode="bilinear", antialias=True)
        x = (x - self.mean) / self.std
        if self.halved:
            with torch.autocast(x.device.type, torch.bfloat16):
                return self.backbone(x).to(x.dtype)  # type: ignore[no-any-return]
        return self.backbone(x)  # type: ignore[no-any-return]


def pixel_statistics(images: Images, most: int = 10_000) -> tuple[Tensor, Tensor]:
    """Mean and spread of each channel, in [0, 1], over all images, or `most` of them evenly from all.

    (n, c, h, w) uint8 -> (c,), (c,)
    """
    images = Part(images, torch.arange(0, len(images), -(-len(images) // most)))
    n, channels, h, w = images.shape
    n_values = n * h * w
    # Sums of bytes and of their squares, a piece at a time, so that no float copy of everything is made.
    total = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros_like(total)
    for piece in pieces(images):
        values = piece.float()
        total += values.sum((2, 3)).double().sum(0)
        squares += values.square_().sum((2, 3)).double().sum(0)
    mean = total / n_values
    std = (squares / n_values - mean**2).clamp_min(1.0).sqrt()
    return (mean / 255).float(), (std / 255).float()


@torch.no_grad()
def infer(network: nn.Module, images: Images) -> Outputs:
    """What the network says of clean images, uint8 (n, c, h, w), in evaluation mode; on the CPU.

    A network that is `mirrored` says what it says of an image and of its mirror image, on average.
    """
    device = next(network.parameters()).device
    twice = getattr(network, "mirrored", False)
    parts = list[tuple[Tensor, ...]]()
    with evaluating(network), _early(network) as early:
        for piece in pieces(images, 2**21):
            x = piece.to(device).float().div_(255)
            asked = (x, x.flip(3)) if twice else (x,)
            said = [(*network(view), *early[-1:]) for view in asked]
            parts.append(tuple(sum(same) / len(same) for same in zip(*said, strict=True)))
            early.clear()
    return Outputs(*(torch.cat(same).cpu() for same in zip(*parts, strict=True)))


@contextmanager
def _early(network: nn.Module) -> Iterator[list[Tensor]]:
    """Within, what comes out of the stage before the last of a backbone of ours, pass by pass, pooled."""
    seen = list[Tensor]()
    backbone = getattr(network, "backbone", None)
    layers, last = getattr(backbone, "layers", None), getattr(backbone, "last", None)
    if not isinstance(layers, nn.Sequential) or not isinstance(last, int):
        yield seen
        return

    def pooled(_: nn.Module, __: object, made: Tensor) -> None:
        seen.append(made.float().mean(dim=(2, 3)))

    hook = layers[-last - 1].register_forward_hook(pooled)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within, the network is in evaluation mode; afterwards each part of it is in the mode it was in."""
    training = {m for m in network.modules() if m.training}
    network.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def statistics_frozen(network: nn.Module) -> Iterator[None]:
    """Within, BatchNorm in training mode uses batch statistics but leaves its running ones alone."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    tracking = [m.track_running_stats for m in norms]
    for m in norms:
        m.track_running_stats = False
    try:
        yield
    finally:
        for m, was in zip(norms, tracking, strict=True):
            m.track_running_stats = was


@contextmanager
def in_full(network: Classifier) -> Iterator[None]:
    """Within, the network works in the precision of its weights."""
    was, network.halved = network.halved, False
    try:
        yield
    finally:
        network.halved = was


def width(backbone: nn.Module, channels: int, size: int) -> int:
    """How many features a backbone gives, found by asking it."""
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), evaluating(backbone):
            z = backbone(torch.zeros(2, channels, size, size, device=device))
    except Exception as e:  # someone else's code
        raise UserError(
            f"the backbone cannot take images of {channels} channels and {size} x {size} pixels "
            f"({type(e).__name__}: {e}); give one that can"
        ) from e
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != 2:
        raise UserError(
            "the backbone must map images (n, c, h, w) to features (n, d); "
            f"this one gives {tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__}"
        )
    return z.shape[1]

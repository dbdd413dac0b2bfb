"""A backbone with a head, and its outputs on many images."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.pixels import Images, Part, pieces
from openldn.errors import UserError
from openldn.maths.torch_private import BatchNorm, in_forward_mode
from openldn.nets.cost import Passes, backward_cost
from openldn.nets.efficientnet import EfficientNetLite0, folded
from openldn.nets.heads import Head, Linear


class FeaturesAndLogits(NamedTuple):
    """Of a batch of n images: features z (n, d) and logits (n, C)."""

    z: Tensor
    logits: Tensor


class Outputs(NamedTuple):
    """Of many images: features, logits, and features of the second-to-last stage of a backbone of ours.

    Early features are less specific to the known classes, and so tell more about others.
    """

    z: Tensor
    logits: Tensor
    early: Tensor | None = None


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


Predict = Callable[[Images], Prediction]


class Classifier(nn.Module):
    """f_Φ ∘ f_Θ: images in [0, 1] -> normalised pixels -> features z -> logits.

    Instead of images it may be given features of a frozen network (n, d), which are normalised too.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, head: Head | Linear, mean: Tensor, std: Tensor):
        """`mean` and `std` are (c, 1, 1) for images and (d,) for features."""
        super().__init__()
        self.input_size: int | None = None  # images are resized to this first, if it is not their own size
        self.crop: int | None = None  # in evaluation, the centre of so many pixels is seen
        self.training_size: int | None = None  # the same, instead, for a while (progressive resizing)
        self.flip_tta = False  # whether `infer` averages over the flipped image (test-time augmentation)
        self.mixed_precision = False  # whether the backbone computes in bfloat16; weights stay float32
        self.backward_cost = 2.0  # in units of the forward pass
        self.architecture: Mapping[str, Any] = {}  # of a pretrained backbone, for `pretrained.blank`
        self.norm_frozen = False  # whether BatchNorm uses its running statistics, which stay, in training too
        self.register_buffer("mean", mean[None])
        self.register_buffer("std", std[None])
        self.backbone = backbone
        self.head = head

    def forward(self, x: Tensor) -> FeaturesAndLogits:
        z = self.head.features(self.trunk(x))
        return FeaturesAndLogits(z, self.head(z))

    def train(self, mode: bool = True) -> "Classifier":
        """Training mode; with `norm_frozen`, BatchNorm in the backbone stays in evaluation mode."""
        super().train(mode)
        if self.norm_frozen:
            for m in self.backbone.modules():
                if isinstance(m, BatchNorm):
                    m.eval()
        return self

    def trunk(self, x: Tensor) -> Tensor:
        """Features of the backbone.  (n, c, h, w) -> (n, d)"""
        differentiated = torch.is_grad_enabled() or in_forward_mode()
        size = self.training_size or self.input_size
        share = 1 if size is None else (size / x.shape[-1]) ** 2  # of the area
        Passes.count((1 + self.backward_cost if differentiated else 1) * share * len(x))
        if size is not None and size != x.shape[-1]:
            x = F.interpolate(x, (size, size), mode="bilinear", antialias=True)
        x = (x - self.mean) / self.std
        if self.mixed_precision:
            with torch.autocast(x.device.type, torch.bfloat16):
                return self.backbone(x).to(x.dtype)  # type: ignore[no-any-return]
        return self.backbone(x)  # type: ignore[no-any-return]

    def freeze_early(self, channels: int, size: int) -> None:
        """Freezes all but the last stage of a backbone of ours; others are left alone."""
        if (stages := last_stage(self.backbone)) is not None:
            trained = {*stages[1].parameters()}
            for p in self.backbone.parameters():
                p.requires_grad_(p.requires_grad and p in trained)
            self.backward_cost = backward_cost(self.backbone, channels, size)

    def freeze_first(self, share: float, size: int) -> None:
        """Freezes the first `share` of the backbone's parameters, and all depthwise filters.

        A depthwise filter has few weights, and on a CPU their gradient takes longer than all other gradients.
        """
        params = [*self.backbone.parameters()]
        frozen: set[Tensor] = {*params[: round(share * len(params))]}
        for m in self.backbone.modules():
            if isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1:
                frozen.add(m.weight)
        if len(frozen) < len(params):
            for p in frozen:
                p.requires_grad_(False)
            size = self.input_size or size
            self.backward_cost = backward_cost(self.backbone, self.mean.shape[1], size)


def last_stage(backbone: nn.Module) -> tuple[nn.Sequential, nn.Sequential] | None:
    """The layers before the last stage of a backbone of ours, and those of the last stage."""
    layers, last = getattr(backbone, "layers", None), getattr(backbone, "last", None)
    if not isinstance(layers, nn.Sequential) or not isinstance(last, int):
        return None
    return nn.Sequential(*[*layers][:-last]), nn.Sequential(*[*layers][-last:])


def statistics(images: Images, max_images: int = 10_000) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, over at most `max_images` spread evenly, to normalise by.

    Images: of each channel, in [0, 1].  (n, c, h, w) uint8 -> (c, 1, 1), (c, 1, 1)
    Features: the mean of each, and one standard deviation for all, so that distances keep their proportions.
    (n, v, d) -> (d,), (d,)
    """
    images = Part(images, torch.arange(0, len(images), -(-len(images) // max_images)))
    if len(images.shape) == 3:
        z = torch.cat([piece[:, 0] for piece in pieces(images)])
        mean = z.mean(dim=0)
        return mean, (z - mean).square().mean().sqrt().clamp_min(1e-6).expand_as(mean).clone()
    n, channels, h, w = images.shape
    n_values = n * h * w
    # Sums of bytes and of their squares, piece by piece: no float copy of all images is made.
    total = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros_like(total)
    for piece in pieces(images):
        values = piece.float()
        total += values.sum((2, 3)).double().sum(0)
        squares += values.square_().sum((2, 3)).double().sum(0)
    mean = total / n_values
    std = (squares / n_values - mean**2).clamp_min(1.0).sqrt()
    return (mean / 255).float().view(-1, 1, 1), (std / 255).float().view(-1, 1, 1)


@torch.no_grad()
def infer(network: nn.Module, images: Images) -> Outputs:
    """Outputs on unaugmented images, uint8 (n, c, h, w), in evaluation mode; on the CPU.

    With `flip_tta`, the mean over an image and its horizontal flip (test-time augmentation). Of features
    (n, v, d), the mean over the stored views.
    """
    device = next(network.parameters()).device
    flip_tta = getattr(network, "flip_tta", False)
    parts = list[tuple[Tensor, ...]]()
    with evaluating(network), _batch_norm_folded(network), _early_features(network) as early:
        for piece in pieces(images, 2**21 // _enlargement(network, images)):
            x = piece.to(device)
            if x.ndim == 3:
                views = x.unbind(1)
            else:
                x = centre(x, getattr(network, "crop", None)).float().div_(255)
                views = (x, x.flip(3)) if flip_tta else (x,)
            outputs = [(*network(view), *early[-1:]) for view in views]
            parts.append(tuple(sum(same) / len(same) for same in zip(*outputs, strict=True)))
            early.clear()
    return Outputs(*(torch.cat(same).cpu() for same in zip(*parts, strict=True)))


def centre(images: Tensor, crop: int | None) -> Tensor:
    """The centre of images, so many pixels wide; all of them without `crop`.  (n, c, h, w)"""
    if crop is None or images.shape[3] == crop:
        return images
    first = (images.shape[3] - crop) // 2
    return images[..., first : first + crop, first : first + crop]


def _enlargement(network: nn.Module, images: Images) -> int:
    """How many times as many pixels images have after the network has enlarged them; at least once."""
    size = getattr(network, "input_size", None) if len(images.shape) == 4 else None
    return 1 if size is None else max(1, round((size / images.shape[3]) ** 2))


class Remembered:
    """`infer` of one network, which keeps its outputs on one set of images, unless they are too many."""

    most = 100_000

    def __init__(self, network: nn.Module, images: Images):
        self.network, self.images = network, images
        self._outputs: Outputs | None = None

    def __call__(self, images: Images) -> Outputs:
        """Outputs on any images; those on a part of the one set are looked up."""
        whole, rows = images, None
        if isinstance(images, Part) and images is not self.images:
            whole, rows = images.images, images.rows
        if whole is not self.images or len(whole) > self.most:
            return infer(self.network, images)
        if self._outputs is None:
            self._outputs = infer(self.network, whole)
        if rows is None:
            return self._outputs
        z, logits, early = self._outputs
        return Outputs(z[rows], logits[rows], None if early is None else early[rows])


@contextmanager
def _batch_norm_folded(network: nn.Module) -> Iterator[None]:
    """EfficientNet-Lite0 with BatchNorm folded into its convolutions, which is about 1.2 times as fast."""
    backbone = getattr(network, "backbone", None)
    if not isinstance(backbone, EfficientNetLite0):
        yield
        return
    network.backbone = folded(backbone)
    try:
        yield
    finally:
        network.backbone = backbone


@contextmanager
def _early_features(network: nn.Module) -> Iterator[list[Tensor]]:
    """Records the pooled output of the second-to-last stage of a backbone of ours, pass by pass."""
    seen = list[Tensor]()
    stages = last_stage(getattr(network, "backbone", network))
    if stages is None:
        yield seen
        return

    def pool(_: nn.Module, __: object, output: Tensor) -> None:
        seen.append(output.float().mean(dim=(2, 3)))

    hook = stages[0][-1].register_forward_hook(pool)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each submodule is back in the mode it was in."""
    training = {m for m in network.modules() if m.training}
    network.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def running_statistics_frozen(network: nn.Module) -> Iterator[None]:
    """BatchNorm in training mode uses batch statistics but does not update its running ones."""
    norms = [m for m in network.modules() if isinstance(m, BatchNorm)]
    tracking = [m.track_running_stats for m in norms]
    for m in norms:
        m.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for m, was in zip(norms, tracking, strict=True):
            m.track_running_stats = was


@contextmanager
def full_precision(network: Classifier) -> Iterator[None]:
    """Mixed precision switched off."""
    was, network.mixed_precision = network.mixed_precision, False
    try:
        yield
    finally:
        network.mixed_precision = was


def n_features(backbone: nn.Module, channels: int, size: int) -> int:
    """The number of features of a backbone, found by running it."""
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

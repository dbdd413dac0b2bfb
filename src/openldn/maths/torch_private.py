"""Every name of torch that is not public. Each is used here alone and has a test of its own.

`torch._foreach_*` apply one operation to a list of tensors in one call; torch's own optimisers are built on
them. The forward-mode level and the common base of batch-normalisation layers have no public name.
"""

from collections.abc import Sequence

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor, nn

BatchNorm: type[nn.Module] = nn.modules.batchnorm._NormBase


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is under way in this process."""
    return fwd._current_level >= 0


def add_(xs: Sequence[Tensor], scalar: float) -> None:
    """X += scalar."""
    torch._foreach_add_(list(xs), scalar)


def mul_(xs: Sequence[Tensor], scalar: float) -> None:
    """X *= scalar."""
    torch._foreach_mul_(list(xs), scalar)


def div_(xs: Sequence[Tensor], scalar: float) -> None:
    """X /= scalar."""
    torch._foreach_div_(list(xs), scalar)


def sqrt(xs: Sequence[Tensor]) -> list[Tensor]:
    """√x."""
    return list(torch._foreach_sqrt(list(xs)))


def lerp_(xs: Sequence[Tensor], ys: Sequence[Tensor], weight: float) -> None:
    """X += weight (y - x)."""
    torch._foreach_lerp_(list(xs), list(ys), weight)


def addcmul_(xs: Sequence[Tensor], ys: Sequence[Tensor], zs: Sequence[Tensor], scale: float) -> None:
    """X += scale y z."""
    torch._foreach_addcmul_(list(xs), list(ys), list(zs), scale)


def addcdiv_(xs: Sequence[Tensor], ys: Sequence[Tensor], zs: Sequence[Tensor], scale: float) -> None:
    """X += scale y / z."""
    torch._foreach_addcdiv_(list(xs), list(ys), list(zs), scale)

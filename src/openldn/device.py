"""Where the arithmetic happens: the one place that knows which devices there are."""

from typing import Literal

import torch

from openldn.errors import UserError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
FASTEST_FIRST = ("cuda", "mps", "cpu")


def pick(name: DeviceName = "auto") -> torch.device:
    """The device of that name; `auto` takes the fastest one that is there."""
    if name == "auto":
        return torch.device(next(device for device in FASTEST_FIRST if there(device)))
    if name not in FASTEST_FIRST:
        raise UserError(
            f"device {name!r} is not one of auto, {', '.join(FASTEST_FIRST)}; choose one of these"
        )
    if not there(name):
        raise UserError(f"device {name!r} is not available on this machine; use --device auto")
    return torch.device(name)


def there(name: str) -> bool:
    """Whether the machine has it."""
    match name:
        case "cuda":
            return torch.cuda.is_available()
        case "mps":
            return torch.backends.mps.is_available()
    return name in ("auto", "cpu")


def views_on(device: torch.device) -> torch.device:
    """Where views of images are made for it: they need double precision, which MPS has not."""
    return torch.device("cpu") if device.type == "mps" else device

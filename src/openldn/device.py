"""Where the arithmetic happens: the one place that knows which devices there are."""

from typing import Literal

import torch

from openldn.errors import UserError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def pick(name: DeviceName = "auto") -> torch.device:
    """The device of that name; `auto` takes the fastest one that is there."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, present in there.items() if present))
    if name not in there:
        raise UserError(f"device {name!r} is not one of auto, {', '.join(there)}; choose one of these")
    if not there[name]:
        raise UserError(f"device {name!r} is not available on this machine; use --device auto")
    return torch.device(name)

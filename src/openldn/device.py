"""Where the arithmetic happens: the one place that knows which devices there are."""

import ctypes
import math
import sys
import time
from functools import cache
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


def keep_freed_memory() -> None:
    """Has the C library keep what is freed, for the whole process: for those whose process it is.

    Each step frees and takes hundreds of megabytes. By default the larger blocks go back to the system and
    come again as pages to be cleared: a quarter of a forward pass of ResNet-18 (docs/results.md).
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_max = -1, -4  # glibc's numbers for mallopt; other C libraries ignore it or lack it
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def matmul_peak(size: int = 1024, seconds: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of square matrix products on the CPU, the best of many: what training can at most hope for."""
    a = torch.randn(size, size, generator=torch.Generator()).to(dtype)  # nobody's random numbers move
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def precision(device: torch.device) -> Literal["float32", "bfloat16"]:
    """In which the device is faster: bfloat16 where its matrix products are, by a wide margin."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type == "mps":
        return "float32"
    return "bfloat16" if bfloat16_gain() > 1.3 else "float32"


@cache
def bfloat16_gain(size: int = 256, seconds: float = 0.2) -> float:
    """How many times as fast as in float32 the CPU multiplies matrices in bfloat16.

    Some have it in hardware, others take a hundred times as long. The best of many turns by processor time,
    so that it does not hang on what else the machine does; and once, so that all runs of a process are alike.
    """
    a = torch.randn(size, size, generator=torch.Generator())  # nobody's random numbers move
    best = {torch.float32: math.inf, torch.bfloat16: math.inf}
    end = time.monotonic() + seconds
    while math.inf in best.values() or time.monotonic() < end:
        for dtype in best:
            b = a.to(dtype)
            started = time.process_time()
            b @ b
            best[dtype] = min(best[dtype], time.process_time() - started)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)


def views_on(device: torch.device) -> torch.device:
    """Where views of images are made for it: for MPS on the CPU, as they have never been tried there."""
    return torch.device("cpu") if device.type == "mps" else device

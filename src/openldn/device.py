"""Devices and floating-point precision: the one place that knows what the machine has."""

import ctypes
import math
import sys
import time
from functools import cache

import torch

from openldn.errors import UserError
from openldn.options import DeviceName, Precision

FASTEST_FIRST = ("cuda", "mps", "cpu")


def pick(name: DeviceName = "auto") -> torch.device:
    """The device of that name; `auto` takes the fastest one available."""
    if name == "auto":
        return torch.device(next(device for device in FASTEST_FIRST if available(device)))
    if name not in FASTEST_FIRST:
        raise UserError(
            f"device {name!r} is not one of auto, {', '.join(FASTEST_FIRST)}; choose one of these"
        )
    if not available(name):
        raise UserError(f"device {name!r} is not available on this machine; use --device auto")
    return torch.device(name)


def available(name: str) -> bool:
    """Whether the machine has it."""
    match name:
        case "cuda":
            return torch.cuda.is_available()
        case "mps":
            return torch.backends.mps.is_available()
    return name in ("auto", "cpu")


def keep_freed_memory() -> None:
    """Has the C library keep freed memory, for the whole process: for programs, not for libraries.

    Each step allocates and frees hundreds of megabytes. By default large blocks go back to the system and
    come again as pages to be zeroed, which takes a quarter of a forward pass of ResNet-18.
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_max = -1, -4  # glibc's numbers for mallopt; other C libraries ignore it or lack it
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def precision(device: torch.device) -> Precision:
    """The faster precision on a device: bfloat16 where its matrix products are much faster."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type == "mps":
        return "float32"
    return "bfloat16" if bfloat16_gain() > 1.3 else "float32"


@cache
def bfloat16_gain(size: int = 256, seconds: float = 0.2) -> float:
    """Speed of matrix products in bfloat16 on the CPU, in units of float32.

    Some CPUs have instructions for it, others take a hundred times as long. The best of many turns, by
    the time of this thread, so that other load does not matter; and once, so that all runs of a process are
    alike.
    """
    a = torch.randn(size, size, generator=torch.Generator())  # does not move the global generator
    best = {torch.float32: math.inf, torch.bfloat16: math.inf}
    end = time.monotonic() + seconds
    while math.inf in best.values() or time.monotonic() < end:
        for dtype in best:
            b = a.to(dtype)
            started = time.thread_time()
            b @ b
            best[dtype] = min(best[dtype], time.thread_time() - started)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)


def inference_batch(device: torch.device) -> int:
    """Images per forward pass where nothing is trained: few on a CPU, whose caches are small."""
    return 16 if device.type == "cpu" else 128


def views_on(device: torch.device) -> torch.device:
    """Where views are made for a device: on the CPU for MPS, on which they were never tried."""
    return torch.device("cpu") if device.type == "mps" else device

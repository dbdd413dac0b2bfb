"""The speed of decoding files into the store, against a plain Pillow loop; and the memory it takes.

Both read the same files, crops of scikit-learn's photographs. Part of data.py.
"""

import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from openldn.data import store


def write(folder: Path, n: int, size: int, suffix: str, crops: int = 200) -> list[Path]:
    """Files of random crops of two photographs: `crops` different ones, over and over."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    photographs = [Image.fromarray(p) for p in load_sample_images().images]
    data = []
    for i in range(min(n, crops)):
        side = int(rng.integers(size // 2, 400)) if size < 400 else 400
        left, top = int(rng.integers(0, 640 - side)), int(rng.integers(0, 427 - side))
        crop = photographs[i % 2].crop((left, top, left + side, top + side)).resize((size, size))
        path = folder / f"template.{suffix}"
        crop.save(path)
        data.append(path.read_bytes())
        path.unlink()
    paths = [folder / f"{i:06}.{suffix}" for i in range(n)]
    for i, path in enumerate(paths):
        path.write_bytes(data[i % len(data)])
    return paths


def plain(paths: list[Path], size: int) -> np.ndarray:
    """The obvious loop."""
    made = np.empty((len(paths), 3, size, size), np.uint8)
    for i, path in enumerate(paths):
        with Image.open(path) as image:
            fitted = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (size, size), Image.BICUBIC)
        made[i] = np.asarray(fitted).transpose(2, 0, 1)
    return made


def building(work: Path) -> None:
    print(f"{'files':<34}{'plain loop':>14}{'store':>14}{'ratio':>8}{'second start':>14}   (images/s; s)")
    cases = [(3000, 32, "png", 32), (3000, 64, "jpg", 64), (600, 500, "jpg", 224), (600, 500, "jpg", 64)]
    store.decode(write(work / "warm", 300, 32, "png"), root="warm", size=32)  # starts the worker processes
    for n, size, suffix, to in cases:
        paths = write(work / f"{size}-{to}-{suffix}", n, size, suffix)
        t = time.perf_counter()
        plain(paths, to)
        in_loop = n / (time.perf_counter() - t)
        t = time.perf_counter()
        store.decode(paths, root=str(paths[0].parent), size=to)
        ours = n / (time.perf_counter() - t)
        t = time.perf_counter()
        store.decode(paths, root=str(paths[0].parent), size=to)
        again = time.perf_counter() - t
        what = f"{n} {suffix} of {size} px to {to} px"
        print(f"{what:<34}{in_loop:>14.0f}{ours:>14.0f}{ours / in_loop:>8.2f}{again:>14.2f}", flush=True)


def memory(work: Path) -> None:
    """Memory while the store is built, and after all images have been read from it."""
    paths = write(work / "memory", 100_000, 64, "jpg")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    images, _ = store.decode(paths, root="memory", size=64)
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    order = torch.randperm(len(paths))
    for rows in order.split(200):
        images[rows]
    status = Path("/proc/self/status").read_text()
    own, mapped = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("RssAnon", "RssFile"))
    size = np.prod(images.shape) / 2**20
    print(
        f"100,000 images of 64 px ({size:.0f} MiB of pixels): {before:.0f} MiB before, peak {built:.0f} MiB "
        f"while the store was built; after all rows were read in random order {own:.0f} MiB private memory, "
        f"and {mapped:.0f} MiB of mapped files, which the system may drop at any time"
    )


def first_step(work: Path) -> None:
    """Time from `openldn train` to the first step, for 50,000 small files."""
    data = work / "photos"
    paths = write(data / "unlabelled", 50_000, 32, "png", crops=5000)
    for k in range(2):
        (data / f"class {k}").mkdir()
        for path in paths[k * 500 : (k + 1) * 500]:
            path.rename(data / f"class {k}" / path.name)
    command = [sys.executable, "-m", "openldn", "train", str(data), "--novel", "2", "--epochs", "0.002"]
    for start in ("first", "second", "third"):
        t = time.perf_counter()
        shutil.rmtree(work / "run", ignore_errors=True)
        process = subprocess.Popen(
            [*command, "--method", "openldn", "--out", str(work / "run")],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "discover: starts" in line:
                print(
                    f"50,000 files, {start} start: first step after {time.perf_counter() - t:.1f} s",
                    flush=True,
                )
        process.wait()

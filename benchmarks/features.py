"""Frozen features: how fast they are made, and what training on them takes in time and memory.

    python benchmarks/features.py [--images 1024] [--rounds 3] [--million]

1. Throughput: features of photographs of 224 pixels through the store, beside a bare forward loop of the same
   network on the same images in memory, in turns.
2. Training with default settings on 10,000 images whose features (1,280 each) are in the store.
3. `--million`: whitened clustering of a million images with features on disk, without a run around it, and
   the most memory that it takes beside the mapped file (Linux; needs 3 GB of disk space).
"""

import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import harness
import numpy as np
import torch

import openldn
from openldn.data.features import Features
from openldn.data.pixels import PRINT, Part
from openldn.data.problem import Problem
from openldn.device import pick, precision
from openldn.inference import prediction_rows
from openldn.methods.whitened_clustering import CLUSTERING, WhitenedClustering
from openldn.model import Model, new_network
from openldn.nets import pretrained
from openldn.nets.classifier import infer
from openldn.nets.encoder import Encoder

D = 1280


def main() -> None:
    parser = harness.parser(__doc__, jobs=1)
    parser.add_argument("--images", type=int, default=1024, help="photographs (default: 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--million", action="store_true", help="also a million images")
    args = parser.parse_args()
    harness.prepare(harness.threads(1))
    with tempfile.TemporaryDirectory(prefix="openldn-benchmark-") as folder:
        os.environ["OPENLDN_CACHE"] = folder
        throughput(args.images, args.rounds)
        ten_thousand()
        if args.million:
            million(Path(folder) / "features")


def throughput(n: int, rounds: int) -> None:
    for k in range(rounds):
        images = torch.randint(0, 256, (n, 224, 224, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        source, on = pretrained.find(pretrained.LITE0), pick()
        encoder = Encoder([source], flip=True, on=on, precision=precision(on))
        [part] = encoder.parts
        dtype, batch = part.dtype, part.batch
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (source.mean, source.std))
        ready = ((images.float() / 255 - mean) / std).to(dtype, memory_format=torch.channels_last)
        started = time.monotonic()
        with torch.inference_mode():
            for x in ready.split(batch):
                for view in (x, x.flip(3)):
                    part.network(view)
        bare = n / (time.monotonic() - started)
        started = time.monotonic()
        encoder.features(images)
        stored = n / (time.monotonic() - started)
        print(
            f"turn {k + 1}: store {stored:.0f}, bare loop {bare:.0f} images/s (2 views each), "
            f"ratio {stored / bare:.2f}",
            flush=True,
        )


def ten_thousand(n: int = 10_000, n_classes: int = 100) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    X = rng.integers(0, 256, (n_classes, 8, 8, 3))[y] + rng.normal(0, 40, (n, 8, 8, 3))
    X = X.clip(0, 255).astype(np.uint8)
    given = np.where((y < n_classes // 2) & (rng.random(n) < 0.5), y, -1)
    for what in ("with features to be made", "features in the store"):
        started = time.monotonic()
        openldn.OpenLDN(weights="frozen", verbose=False).fit(X, given)
        print(f"{n:,} images, number estimated, {what}: {time.monotonic() - started:.1f} s", flush=True)


def million(file: Path, n: int = 1_000_000, n_classes: int = 100) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, (n_classes, D)).astype(np.float32)
    y = rng.integers(0, n_classes, n)
    with file.open("wb") as f:
        for rows in np.array_split(np.arange(n), 200):
            noise = rng.standard_normal((len(rows), D), dtype=np.float32)
            f.write(np.maximum(centres[y[rows]] + noise, 0).astype(np.float16).tobytes())
    features = Features(file, np.arange(n), np.zeros(n, PRINT), views=1, d=D)
    labels = torch.from_numpy(np.where((y < n_classes // 2) & (rng.random(n) < 0.1), y, -1))
    names, known = tuple(map(str, range(n))), tuple(range(n_classes // 2))
    problem = Problem(features, labels, names, known, n_classes - len(known))
    before, stop, most = anonymous_memory(), threading.Event(), [0.0]

    def watch() -> None:
        while not stop.wait(0.05):
            most[0] = max(most[0], anonymous_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.monotonic()
    network = new_network(problem, CLUSTERING, "none", pick("cpu"))
    predictor = WhitenedClustering()
    predictor.fit(lambda images: infer(network, images), problem, seed=0)
    fitted = time.monotonic() - started
    model = Model(
        network, predictor, "whitened-clustering", 0, problem.class_names(), len(known), "none", 224, 3
    )
    rows = problem.unlabelled.tolist()
    found = prediction_rows(model, [names[i] for i in rows], Part(features, problem.unlabelled))
    table = Counter((int(y[i]), label) for i, (_, label, *_) in zip(rows, found, strict=True))
    right = sum(max(n for (k, _), n in table.items() if k == own) for own in range(n_classes))
    stop.set()
    watching.join()
    print(
        f"{n:,} images of {D} features ({file.stat().st_size / 1e9:.1f} GB): fitted in {fitted:.0f} s, all "
        f"classified after {time.monotonic() - started:.0f} s, purity {100 * right / len(rows):.1f} %; "
        f"{most[0] - before:.0f} MB of memory beside the mapped file",
        flush=True,
    )


def anonymous_memory() -> float:
    """Memory of this process that is not a mapped file, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()

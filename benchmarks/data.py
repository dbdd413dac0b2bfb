"""From files to the network: decoding, views and feeding, each beside what one would do by hand.

    python benchmarks/data.py [--many]

Three tables in one run: the store against a plain Pillow loop, views on whole batches against Pillow image by
image, and what feeding costs of a training step. --many adds 100,000 images and 50,000 files (store.py).
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import store
import torch
import views

from openldn.config import PRESETS
from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, pick
from openldn.model import new_network
from openldn.phases.discover import Discover


def feeding(n_steps: int = 32) -> None:
    """A batch of the fast preset at 32 pixels, against the step that learns from it."""
    images = views.photographs(32, 400)
    labels = torch.arange(400) % 10
    labels = torch.where((labels < 5) & (torch.arange(400) % 20 < 10), labels, -1)
    problem = Problem(images, labels, tuple(map(str, range(400))), tuple("abcde"), n_novel=5)
    device = pick("cpu")
    phase = Discover(problem, new_network(problem, "small", 10, device), PRESETS["fast"].discover)
    batches = Batches(
        problem,
        n_labelled=phase.n_labelled,
        n_unlabelled=phase.n_unlabelled,
        labelled_views=phase.labelled_views,
        unlabelled_views=phase.unlabelled_views,
        seed=(0, 1, 0),
        device=device,
    )
    feed, learn = [], []
    for i in range(n_steps):
        started = time.perf_counter()
        batch = batches[i]
        fed = time.perf_counter()
        losses = phase.step(batch, (4 * i + 1) / phase.steps)  # a plain step: the similarity net has no turn
        phase.optimiser.zero_grad()
        torch.stack([*losses.values()]).sum().backward()
        phase.optimiser.step(1e-3)
        feed.append(fed - started)
        learn.append(time.perf_counter() - fed)
    fed, learned = statistics.mean(feed), statistics.mean(learn)  # batches come in groups of 16
    print(
        f"feeding {phase.n_labelled} labelled and {phase.n_unlabelled} unlabelled images of 32 px, one and "
        f"two views: {1000 * fed:.1f} ms; a plain step of the fast network on them: {1000 * learned:.0f} ms; "
        f"feeding is {100 * fed / (fed + learned):.1f} % of the whole"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--many", action="store_true", help="also 100,000 images, and 50,000 files")
    many = parser.parse_args().many
    keep_freed_memory()  # as the command line does
    with tempfile.TemporaryDirectory() as work:
        os.environ["OPENLDN_CACHE"] = f"{work}/cache"
        if many:
            store.memory(Path(work))
        store.building(Path(work))
        views.table()
        feeding()
        if many:
            store.first_step(Path(work))


if __name__ == "__main__":
    main()

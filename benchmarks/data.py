"""From files to the network: decoding, augmentation and feeding, compared with plain Pillow.

    python benchmarks/data.py [--many]

The store against a plain Pillow loop, augmentation of whole batches against Pillow image by image, and the
share of feeding in a training step. --many adds 100,000 images and 50,000 files (store.py).
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
from step import FAST, training_of

from openldn.data.batches import Batches
from openldn.data.problem import Problem
from openldn.device import keep_freed_memory, pick
from openldn.methods.openldn import DISCOVER
from openldn.model import new_network


def feeding(n_steps: int = 32) -> None:
    """A batch of the preset `fast` at 32 pixels, against a plain step of stage 1 on it."""
    images = views.photographs(32, 400)
    labels = torch.arange(400) % 10
    labels = torch.where((labels < 5) & (torch.arange(400) % 20 < 10), labels, -1)
    problem = Problem(images, labels, tuple(map(str, range(400))), tuple("abcde"), n_novel=5)
    device = pick("cpu")
    network = new_network(problem, DISCOVER, "small", device)
    training = training_of(problem, network, FAST, bilevel=False)
    (n_labelled, n_unlabelled, _), clock = training.composition, training.clock(None)
    batches = Batches(
        problem,
        n_labelled=n_labelled,
        n_unlabelled=n_unlabelled,
        labelled_views=training.objective.labelled_views,
        unlabelled_views=training.objective.unlabelled_views,
        seed=(0, 1, 0),
        device=device,
    )
    feed, learn = [], []
    for i in range(n_steps):
        started = time.perf_counter()
        batch = batches[i]
        fed = time.perf_counter()
        training.step([batch], clock)
        feed.append(fed - started)
        learn.append(time.perf_counter() - fed)
    fed, learned = statistics.mean(feed), statistics.mean(learn)  # batches are made 16 at a time
    print(
        f"feeding {n_labelled} labelled and {n_unlabelled} unlabelled images of 32 px, one and two views: "
        f"{1000 * fed:.1f} ms; a plain step of the fast network on them: {1000 * learned:.0f} ms; feeding is "
        f"{100 * fed / (fed + learned):.1f} % of both"
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

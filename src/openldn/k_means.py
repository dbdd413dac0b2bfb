"""k-means, and k-means in which labelled images stay in their class."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor


def k_means(z: Tensor, k: int, seed: int, starts: int = 10) -> tuple[Tensor, Tensor]:
    """Centres (k, d) of features z (n, d), and each image's cluster (n,); the best of several starts.

    Where there are fewer different images than clusters, some centres are alike.
    """
    from sklearn.cluster import KMeans  # when needed: it takes as long to load as torch
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, n_init=starts, random_state=seed).fit(z.numpy().astype(np.float64))
    return torch.from_numpy(found.cluster_centers_).float(), torch.from_numpy(found.labels_).long()


def semi_supervised(
    z: Tensor, labels: Tensor, n_known: int, n_classes: int, seed: int, starts: int = 10, rounds: int = 100
) -> Tensor:
    """k-means in which labelled images stay in their class; the best of several starts.  (n, d) -> (C, d)

    Known centres begin as the means of labelled images, the others far from all that are there (k-means++).
    """
    rng = np.random.default_rng([seed, 0x6CD])
    given = labels >= 0
    rows = torch.nonzero(~given).flatten()
    means = torch.stack([z[labels == k].mean(dim=0) for k in range(n_known)])
    best, least = means, math.inf
    for _ in range(starts):
        centres = means
        while len(centres) < n_classes:
            distance = torch.cdist(z[rows], centres).square().amin(dim=1).double().numpy()
            likely = distance / distance.sum() if distance.sum() > 0 else None
            centres = torch.cat([centres, z[rows[rng.choice(len(rows), p=likely)]][None]])
        for _ in range(rounds):
            squared = torch.cdist(z, centres).square()
            nearest = torch.where(given, labels, squared.argmin(dim=1))
            counts = torch.bincount(nearest, minlength=n_classes)
            sums = torch.zeros_like(centres).index_add_(0, nearest, z)
            # A cluster that nobody is in stays where it is.
            moved = torch.where((counts > 0)[:, None], sums / counts.clamp_min(1)[:, None], centres)
            if torch.equal(moved, centres):
                break
            centres = moved
        total = float(squared.gather(1, nearest[:, None]).sum())
        if total < least:
            best, least = centres, total
    return best

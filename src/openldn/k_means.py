"""k-means; with clusters of one size; and with labelled images that stay in their class."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from openldn.balance import shift


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


def even_k_means(
    z: Tensor,
    k: int,
    seed: int,
    temperature: float = 0.05,
    starts: int = 10,
    rounds: int = 100,
    most: int = 10_000,
) -> Tensor:
    """Centres (k, d) of clusters that are equally large, of features z (n, d); the best of several starts.

    An image belongs to clusters by e^(-d²/temperature) of its distance d, times what makes all clusters
    alike large. So a class that spreads widely is not cut in two to join two narrow ones, as is best for
    plain k-means. At a higher temperature clusters run together; 0.05 is for features of length one. Of
    more than `most` images, so many evenly from all are looked at.
    """
    rng = np.random.default_rng([seed, 0xE7E])
    z = z[:: -(-len(z) // most)]
    best, least = z[:0], math.inf
    for _ in range(starts):
        centres, even = far_apart(z, z[:0], k, rng), z.new_zeros(k)
        for _ in range(rounds):
            squared = torch.cdist(z, centres).square()
            even = even + shift(even - squared / temperature, z.new_full((k,), 1 / k), rounds=5)
            q = (even - squared / temperature).softmax(dim=1)
            moved = (q.T @ z) / q.sum(dim=0).clamp_min(1e-12)[:, None]
            still = float((moved - centres).norm()) < 1e-4
            centres = moved
            if still:
                break
        # What the two updates lower: distances, less what it is worth to leave open where an image belongs.
        total = float((q * (squared + temperature * q.clamp_min(1e-12).log())).sum())
        if total < least:
            best, least = centres, total
    return best


def far_apart(z: Tensor, centres: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """Centres (k, d): the given ones, then rows of z, likely ones far from all that are there (k-means++)."""
    while len(centres) < k:
        likely = None
        if len(centres):
            distance = torch.cdist(z, centres).square().amin(dim=1).double().numpy()
            likely = distance / distance.sum() if distance.sum() > 0 else None
        centres = torch.cat([centres, z[rng.choice(len(z), p=likely)][None]])
    return centres


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
        centres = far_apart(z[rows], means, n_classes, rng)
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

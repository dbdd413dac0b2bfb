"""k-means: plain, balanced (clusters of equal size) and semi-supervised (labels are kept)."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from openldn.maths.priors import prior_correction


def k_means(z: Tensor, k: int, seed: int, starts: int = 10) -> tuple[Tensor, Tensor]:
    """Centres (k, d) of features z (n, d) and each image's cluster (n,); the best of several starts.

    With fewer distinct images than clusters, some centres coincide.
    """
    from sklearn.cluster import KMeans  # imported late: it takes as long to load as torch
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, n_init=starts, random_state=seed).fit(z.numpy().astype(np.float64))
    return torch.from_numpy(found.cluster_centers_).float(), torch.from_numpy(found.labels_).long()


def balanced_k_means(
    z: Tensor,
    k: int,
    seed: int,
    temperature: float = 0.05,
    starts: int = 10,
    rounds: int = 100,
    max_images: int = 10_000,
) -> Tensor:
    """Centres (k, d) of equally large clusters of features z (n, d); the best of several starts.

    Soft k-means with a prior correction: image i belongs to cluster c in proportion to
    exp(b_c - d_ic² / temperature), with b such that all clusters have the same size (entropic optimal
    transport). So a wide class is not cut in two while two narrow ones are joined, as plain k-means prefers.
    At higher temperatures clusters merge; 0.05 suits features of unit length. Of more than `max_images`, an
    even sample is used.
    """
    rng = np.random.default_rng([seed, 0xE7E])
    z = z[:: -(-len(z) // max_images)]
    best, least = z[:0], math.inf
    for _ in range(starts):
        centres, b = k_means_plus_plus(z, z[:0], k, rng), z.new_zeros(k)
        for _ in range(rounds):
            squared = torch.cdist(z, centres).square()
            b = b + prior_correction(b - squared / temperature, z.new_full((k,), 1 / k), rounds=5)
            q = (b - squared / temperature).softmax(dim=1)
            moved = (q.T @ z) / q.sum(dim=0).clamp_min(1e-12)[:, None]
            converged = float((moved - centres).norm()) < 1e-4
            centres = moved
            if converged:
                break
        # The objective that both updates lower: transport cost minus entropy.
        total = float((q * (squared + temperature * q.clamp_min(1e-12).log())).sum())
        if total < least:
            best, least = centres, total
    return best


def k_means_plus_plus(z: Tensor, centres: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """Initial centres (k, d): the given ones, then rows of z drawn by squared distance (k-means++)."""
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
    """k-means in which labelled images keep their class; the best of several starts.  (n, d) -> (C, d)

    Known centres start as the means of labelled images, novel ones by k-means++.
    """
    rng = np.random.default_rng([seed, 0x6CD])
    given = labels >= 0
    rows = torch.nonzero(~given).flatten()
    means = torch.stack([z[labels == k].mean(dim=0) for k in range(n_known)])
    best, least = means, math.inf
    for _ in range(starts):
        centres = k_means_plus_plus(z[rows], means, n_classes, rng)
        for _ in range(rounds):
            squared = torch.cdist(z, centres).square()
            nearest = torch.where(given, labels, squared.argmin(dim=1))
            counts = torch.bincount(nearest, minlength=n_classes)
            sums = torch.zeros_like(centres).index_add_(0, nearest, z)
            # An empty cluster stays where it is.
            moved = torch.where((counts > 0)[:, None], sums / counts.clamp_min(1)[:, None], centres)
            if torch.equal(moved, centres):
                break
            centres = moved
        total = float(squared.gather(1, nearest[:, None]).sum())
        if total < least:
            best, least = centres, total
    return best

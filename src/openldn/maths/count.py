"""Estimate of the number of novel classes.

k-means with each number of clusters in turn. The estimate is the number at which clustering accuracy on the
*labelled* images is highest: too few clusters join known classes, too many split them.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from openldn.maths.k_means import k_means
from openldn.maths.metrics import confusion, matched


def estimate(z: Tensor, labels: Tensor, n_known: int, *, seed: int, sample: int = 5000) -> int:
    """The number of novel classes in features z (n, d), labels (n,) with -1 for unlabelled ones.

    Tries up to three times as many classes as are known, plus ten, on a sample of images, half of them
    labelled if there are enough.
    """
    rng, with_label = np.random.default_rng([seed, 0xC0]), labels.numpy() >= 0
    some = rng.permutation(np.flatnonzero(with_label))[: sample // 2]
    others = rng.permutation(np.flatnonzero(~with_label))[: sample - len(some)]
    rows = np.concatenate([some, others])
    features = F.normalize(z, dim=1)[rows]
    given = labels.numpy()[rows]
    labelled = given >= 0
    most = min(3 * n_known + 10, len(rows) - 1)

    def score(k: int) -> float:
        clusters = k_means(features, k, seed, starts=3)[1].numpy()
        counts = confusion(given[labelled], clusters[labelled], n_known, k)
        return matched(counts) / max(1, int(labelled.sum()))

    candidates = range(n_known + 1, max(most, n_known + 1) + 1)
    scores = [score(k) for k in candidates]
    # Neighbouring counts score nearly alike: a moving average over three smooths the choice.
    padded = np.pad(scores, 1, mode="edge")
    smoothed = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return candidates[int(np.argmax(smoothed))] - n_known

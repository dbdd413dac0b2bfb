"""Ward's agglomerative clustering in which labels are kept."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def ward(z: Tensor, labels: Tensor, n_known: int, n_classes: int) -> Tensor:
    """A class for each row of z (n, d); `labels` (n,) are kept, and -1 where there is none.  (n,)"""
    return Tree(z, labels, n_known).cut(n_classes)


class Tree:
    """The tree of clusters of rows z (n, d), of which some have labels (n,).

    Each known class starts as one cluster, and two of them never join: the cost of that is infinite, and
    stays so when they grow. Then the two clusters are joined whose union has the least additional variance,
    until one novel cluster is left at most. Memory is quadratic in the number of unlabelled rows.

    By hand, since scikit-learn's has no clusters to start from. Nearest-neighbour chains with the update of
    Lance and Williams: time is quadratic too.
    """

    def __init__(self, z: Tensor, labels: Tensor, n_known: int):
        self.labels, self.n_known = labels, n_known
        given, self.free = labels >= 0, torch.nonzero(labels < 0).flatten()
        counts = torch.bincount(labels[given], minlength=n_known).to(z.dtype)
        sums = z.new_zeros(n_known, z.shape[1]).index_add_(0, labels[given], z[given])
        points = torch.cat([sums / counts.clamp_min(1)[:, None], z[self.free]])
        size = torch.cat([counts, torch.ones(len(self.free))]).numpy()
        cost = torch.cdist(points, points).square().numpy()
        cost *= size[:, None] * size / np.maximum(size[:, None] + size, 1)
        # Rounded distances are not symmetric, and a chain of near-duplicates could go round for ever.
        cost = np.minimum(cost, cost.T)
        cost[:n_known, :n_known] = np.inf
        cost[size == 0], cost[:, size == 0] = np.inf, np.inf  # a known class without images stays alone
        np.fill_diagonal(cost, np.inf)
        self.merges = _merges(cost, size, n_known)

    def cut(self, n_classes: int) -> Tensor:
        """The class of each row if there are so many; known classes come first.  (n,)"""
        root = _cut(self.merges, self.n_known + len(self.free), n_classes)
        ids = {r: i for i, r in enumerate(dict.fromkeys([*range(self.n_known), *root]))}
        found = self.labels.clone()
        found[self.free] = torch.tensor([ids[r] for r in root[self.n_known :]], dtype=self.labels.dtype)
        return found


def _merges(
    cost: NDArray[np.float32], size: NDArray[np.float32], n_known: int
) -> list[tuple[float, int, int]]:
    """All merges with their costs; the first cluster of each remains. `cost` and `size` are used up.

    A chain goes from a cluster to its nearest neighbour, and on, until two are nearest to each other.
    """
    n = len(cost)
    known, gone = np.arange(n) < n_known, np.zeros(n, bool)
    merges, chain, at = list[tuple[float, int, int]](), list[int](), n_known
    while True:
        if not chain:
            while at < n and (gone[at] or known[at]):
                at += 1
            if at == n:
                return merges
            chain = [at]
        a = chain[-1]
        b = int(cost[a].argmin())
        if not np.isfinite(cost[a, b]):
            return merges
        if len(chain) < 2 or cost[a, chain[-2]] > cost[a, b]:
            chain.append(b)
            continue
        b = chain[-2]
        del chain[-2:]
        a, b = min(a, b), max(a, b)  # known clusters come first, so that the known one remains
        merges.append((float(cost[a, b]), a, b))
        row = (size[a] + size) * cost[a] + (size[b] + size) * cost[b] - size * cost[a, b]
        row /= np.maximum(size + size[a] + size[b], 1)
        row[gone] = row[[a, b]] = np.inf
        if known[a]:
            row[known] = np.inf
        cost[a], cost[:, a], cost[b], cost[:, b] = row, row, np.inf, np.inf
        size[a] += size[b]
        gone[b] = True


def _cut(merges: list[tuple[float, int, int]], n: int, n_clusters: int) -> list[int]:
    """The cluster of each point, named by one of its points, after the cheapest merges.

    Chains find merges out of order, but the tree is the same.
    """
    parent = [*range(n)]

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for _, a, b in sorted(merges)[: max(0, n - n_clusters)]:
        a, b = sorted((root(a), root(b)))
        parent[b] = a
    return [root(i) for i in range(n)]

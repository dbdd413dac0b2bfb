"""Predictions moved so that each class gets its share: what keeps self-made labels from flowing into a few.

Known classes learn faster than novel ones, and an image of a novel class is at first called by the known one
it looks like. How many images of each class there must be among the unlabelled ones is known, if classes are
about equally large, as the entropy term of OpenLDN has it; so each class gets a constant added to its
log-probability by which, over the last few thousand images, it has that many. This is Sinkhorn's algorithm
(Cuturi, 2013) with given column sums, as UNO, TRSSL and OwMatch use it to label images.
"""

import torch
from torch import Tensor, nn

from openldn.data.problem import Problem
from openldn.losses import sinkhorn


def shares(problem: Problem) -> Tensor:
    """How much of the unlabelled set each class should be, if all classes are equally large.  (C,)

    Labelled images are taken off; a class of which more is labelled than there should be keeps a tenth.
    """
    each = len(problem.images) / problem.n_classes
    labelled = torch.bincount(problem.labels[problem.labelled], minlength=problem.n_classes)
    left = (each - labelled).clamp_min(each / 10)
    return left / left.sum()


def shift(said: Tensor, shares: Tensor, rounds: int) -> Tensor:
    """What to add to log-probabilities (n, C) so that the classes have these shares, on average.  (C,)"""
    moved = torch.zeros_like(shares)
    for _ in range(rounds):
        moved = moved + (shares / (said + moved).softmax(dim=1).mean(dim=0).clamp_min(1e-8)).log()
    return moved


def even(said: Tensor, shares: Tensor) -> Tensor:
    """What to add to log-probabilities so that they hold where all classes are equally frequent.  (C,)

    `said` (n, C) is of images among which the classes have these shares.
    """
    return shift(said, shares, rounds=50) - shares.log()


class Balance:
    """Remembers what was said of the last few thousand images, and moves what is said next."""

    def __init__(self, shares: Tensor, length: int = 4096):
        self.shares, self.length = shares, length
        self.recent = shares.new_empty(0, len(shares))  # log-probabilities

    @torch.no_grad()
    def __call__(self, logits: Tensor, rounds: int = 5) -> Tensor:
        """Log-probabilities up to a constant a row; their softmax has the shares, on average.  (n, C)"""
        said = logits.log_softmax(dim=1)
        self.recent = torch.cat([said, self.recent])[: self.length]
        return said + shift(self.recent, self.shares, rounds)


class Sinkhorn(nn.Module):
    """`losses.sinkhorn` for a step's rows, among recent ones where these are few beside the classes.

    Of a few rows hardly any class has its share, and to give it to them would tear right labels apart.
    """

    few, enough = 3, 8  # rows for each class
    recent: Tensor
    filled: Tensor

    def __init__(self, n_classes: int):
        super().__init__()
        self.register_buffer("recent", torch.zeros(self.enough * n_classes, n_classes))  # scores
        self.register_buffer("filled", torch.tensor(0))

    @torch.no_grad()
    def forward(self, scores: Tensor, shares: Tensor | None = None) -> Tensor:
        """Soft labels of scores (n, C)."""
        n, n_classes = scores.shape
        if n >= self.few * n_classes:
            return sinkhorn(scores, shares=shares)
        known = self.recent[: min(int(self.filled), max(0, len(self.recent) - n))]
        made = sinkhorn(torch.cat([scores, known]), shares=shares)[:n]
        self.recent = torch.cat([scores, self.recent])[: len(self.recent)]
        self.filled = (self.filled + n).clamp_max(len(self.recent))
        return made

"""Class priors: predictions corrected so that each class gets its share.

Known classes learn faster than novel ones, and at first an image of a novel class is taken for the known
class it resembles. Self-made labels then collapse into a few classes. If classes are about equally frequent,
as the entropy term of OpenLDN assumes, each class's share of the unlabelled images is known. A constant added
to each class's log-probability gives it that share: prior correction (Saerens et al., 2002), and Sinkhorn's
algorithm (Cuturi, 2013) with given column sums, as UNO, TRSSL and OwMatch use it to label images.
"""

import torch
from torch import Tensor, nn

from openldn.maths.losses import sinkhorn


def expected_shares(labels: Tensor, n_classes: int) -> Tensor:
    """The share of each class in the unlabelled images, if all classes are equally large.

    Labels (n,), -1 for none -> (C,). Labelled images are subtracted; a class of which most images are
    labelled keeps a tenth of its size.
    """
    size = len(labels) / n_classes
    left = (size - torch.bincount(labels[labels >= 0], minlength=n_classes)).clamp_min(size / 10)
    return left / left.sum()


def prior_correction(log_p: Tensor, prior: Tensor, rounds: int) -> Tensor:
    """What to add to log-probabilities (n, C) so that their mean prediction is the prior (C,).  (C,)"""
    b = torch.zeros_like(prior)
    for _ in range(rounds):
        b = b + (prior / (log_p + b).softmax(dim=1).mean(dim=0).clamp_min(1e-8)).log()
    return b


def uniform_correction(log_p: Tensor, prior: Tensor) -> Tensor:
    """What to add to log-probabilities so that they hold under a uniform prior.  (C,)

    `log_p` (n, C) is of images among which classes follow `prior`.
    """
    return prior_correction(log_p, prior, rounds=50) - prior.log()


def leaning(log_p: Tensor, prior: Tensor, balance: float, start: Tensor, rounds: int = 10) -> Tensor:
    """What to add to log-probabilities (n, C) so that their mean prediction leans to the prior (C,).  (C,)

    The dual of optimal transport whose column sums are penalised instead of fixed (unbalanced transport): a
    `balance` of 1 meets the prior, 0 changes nothing. `start` is what was added before.
    """
    b = start
    for _ in range(rounds):
        share = (log_p + b).softmax(dim=1).mean(dim=0).clamp_min(1e-8)
        b = balance * (prior.log() - share.log() + b)
        b = b - b.mean()
    return b


class DistributionAlignment:
    """Aligns predictions with a prior over the last few thousand images (after ReMixMatch, 2020)."""

    def __init__(self, prior: Tensor, length: int = 4096):
        self.prior, self.length = prior, length
        self.recent = prior.new_empty(0, len(prior))  # log-probabilities

    @torch.no_grad()
    def __call__(self, logits: Tensor, rounds: int = 5) -> Tensor:
        """Log-probabilities up to a constant a row; their softmax follows the prior on average.  (n, C)"""
        log_p = logits.log_softmax(dim=1)
        self.recent = torch.cat([log_p, self.recent])[: self.length]
        return log_p + prior_correction(self.recent, self.prior, rounds)


class SinkhornQueue(nn.Module):
    """`losses.sinkhorn` for a batch, among recent rows where the batch is small beside the classes.

    In a few rows hardly any class has its share; forcing it on them would tear right labels apart.
    """

    few, enough = 3, 8  # rows per class
    recent: Tensor
    filled: Tensor

    def __init__(self, n_classes: int):
        super().__init__()
        self.register_buffer("recent", torch.zeros(self.enough * n_classes, n_classes))  # scores
        self.register_buffer("filled", torch.tensor(0))

    @torch.no_grad()
    def forward(self, scores: Tensor, prior: Tensor | None = None) -> Tensor:
        """Soft labels of scores (n, C)."""
        n, n_classes = scores.shape
        if n >= self.few * n_classes:
            return sinkhorn(scores, prior=prior)
        queue = self.recent[: min(int(self.filled), max(0, len(self.recent) - n))]
        labels = sinkhorn(torch.cat([scores, queue]), prior=prior)[:n]
        self.recent = torch.cat([scores, self.recent])[: len(self.recent)]
        self.filled = (self.filled + n).clamp_max(len(self.recent))
        return labels

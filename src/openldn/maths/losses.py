"""The papers' terms as pure functions of tensors.

Letters: n images, C classes, d features; p (n, C) class probabilities, z (n, d) features,
s (n, n) similarities in [0, 1].
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine(x: Tensor) -> Tensor:
    """Cosine similarity of every pair of rows.  (n, k) -> (n, n)"""
    x = F.normalize(x, dim=1)
    return x @ x.T


def pair_loss(p: Tensor, s: Tensor) -> Tensor:
    """L_pair, Eq. 2: the cosine of two predictions matches their similarity.  (n, C), (n, n) -> ()

    The mean over all n² pairs, not the paper's sum, so that its weight does not grow with the batch.
    """
    return (cosine(p) - s).square().mean()


def pair_bce(p: Tensor, s: Tensor) -> Tensor:
    """L_pair for targets that are 0 or 1: binary cross-entropy.  (n, C), (n, n) -> ()"""
    return F.binary_cross_entropy(cosine(p).clamp(1e-6, 1 - 1e-6), s)


def entropy_loss(p: Tensor) -> Tensor:
    """L_reg, Eq. 7: negative entropy of the mean prediction; low when all classes are in use."""
    p_mean = p.mean(dim=0).clamp_min(1e-8)
    return (p_mean * p_mean.log()).sum()


def pseudo_label_loss(weak: Tensor, strong: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Confident pseudo-labels of weak views are the targets of strong views; logits (u, C) both.

    Returns the loss, a mean over all u images (zero for those below the confidence `tau`), and the share
    above `tau`.
    """
    confidence, target = weak.detach().softmax(dim=1).max(dim=1)
    above = (confidence >= tau).to(strong.dtype)
    return (F.cross_entropy(strong, target, reduction="none") * above).mean(), above.mean()


def nearest_pairs(z: Tensor, y: Tensor) -> Tensor:
    """Each row's positive partner, as in ORCA; labelled rows (`y`) come first in z.  (n, d), (l,) -> (n,)

    Of a labelled row: the most similar other row of its class, or itself if there is none. Of an unlabelled
    row: its nearest neighbour.
    """
    similarity = cosine(z.detach()).fill_diagonal_(-2.0)  # itself: below any cosine, but allowed
    same = torch.ones_like(similarity, dtype=torch.bool)
    same[: len(y)] = False
    same[: len(y), : len(y)] = y[:, None] == y[None, :]
    return similarity.masked_fill(~same, -3.0).argmax(dim=1)


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Probabilities raised to 1/T and renormalised: closer to one-hot for T < 1."""
    powered = p ** (1 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)


def mixup(alpha: float, *things: Tensor, own: bool = True) -> tuple[Tensor, ...]:
    """Each row mixed with a random other one, in all tensors alike (mixup; Zhang et al., 2018).

    With `own`, a row keeps the larger share of itself, as in MixMatch. An `alpha` of 0 mixes nothing.
    """
    if not alpha:
        return things
    concentration = torch.full((), alpha)
    mix = float(torch.distributions.Beta(concentration, concentration).sample())
    if own:
        mix = max(mix, 1 - mix)
    other = torch.randperm(len(things[0]), device=things[0].device)
    return tuple(mix * thing + (1 - mix) * thing[other] for thing in things)


def contrast(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """NT-Xent (SimCLR): row i of a and row i of b are two views of one image.  (n, k), (n, k) -> ()

    Each picks the other out of all 2n - 1 rows by cosine similarity.
    """
    n = len(a)
    similarity = cosine(torch.cat([a, b])) / temperature
    similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=a.device), -torch.inf)
    partner = torch.arange(2 * n, device=a.device).roll(n)
    return F.cross_entropy(similarity, partner)


def supervised_contrast(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (SupCon): rows of one class are positives.  (n, k), (n,) -> ()

    The mean over rows that have a positive; zero if none has.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (cosine(z) / temperature).masked_fill(itself, -torch.inf)
    log_p = similarity.log_softmax(dim=1).masked_fill(itself, 0.0)
    same = ((y[:, None] == y[None, :]) & ~itself).to(z.dtype)
    partners = same.sum(dim=1)
    each = -(same * log_p).sum(dim=1) / partners.clamp_min(1)
    return (each * (partners > 0)).sum() / (partners > 0).sum().clamp_min(1)


@torch.no_grad()
def sinkhorn(scores: Tensor, eps: float = 0.05, rounds: int = 3, prior: Tensor | None = None) -> Tensor:
    """Soft labels (n, C) from scores (n, C): likely by the scores, each class with its share of the rows.

    Rows sum to one; columns to n times the prior (default: uniform), the closer the more rounds. Computed in
    log space, so that no score overflows.
    """
    n, n_classes = scores.shape
    log_q = scores.float() / eps
    wanted = scores.new_full((n_classes,), 1 / n_classes) if prior is None else prior
    for _ in range(rounds):
        log_q = log_q - log_q.logsumexp(dim=0) + (n * wanted).log()
        log_q = log_q.log_softmax(dim=1)
    return log_q.exp()

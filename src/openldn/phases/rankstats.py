"""RankStats, also AutoNovel (Han et al., ICLR 2020): images are alike whose strongest features are the same.

After SimCLR and supervised training. One head knows the known classes, the other (the network's own) all of
them, in no order: p1 and p2. Two weak views, x and x'.

    s_ij = 1 if the same 5 of the features of x_i and x_j are the largest
    L = CE(p1, labelled) + BCE(p2(x_i) · p2(x'_j), s_ij) + w(t) (‖p1 − p1'‖² + ‖p2 − p2'‖²)
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier
from openldn.phases.schedule import late
from openldn.phases.training import Method, freeze_early


class RankStats(Method):
    """All but the last stage of the backbone stays as SimCLR made it."""

    name = "rankstats"
    labelled_views = unlabelled_views = ("weak", "weak")
    weight = 5.0  # of consistency
    until = 0.25  # of the length, its ramp

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        freeze_early(network, problem)
        self.known = nn.Linear(network.head.in_features, problem.n_known)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        y, l = batch.y, len(batch.y)  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        known = self.known(z)
        p1, q1 = known.softmax(dim=1).chunk(2)
        p2, q2 = logits.softmax(dim=1).chunk(2)
        s = same_largest(z[l : len(one)])
        consistency = F.mse_loss(p1, q1) + F.mse_loss(p2, q2)
        return {
            "labelled": F.cross_entropy(known[:l], y),
            "unlabelled": pair_loss(p2[l:], q2[l:], s),
            "consistency": self.weight * late(progress, self.until) * consistency,
        }


def same_largest(z: Tensor, k: int = 5) -> Tensor:
    """Whether the sets of the k largest features of two rows are equal, whatever their order.

    (n, d) -> (n, n), 0 or 1
    """
    k = min(k, z.shape[1])
    among = torch.zeros_like(z, requires_grad=False).scatter(1, z.detach().topk(k, dim=1).indices, 1.0)
    return (among @ among.T > k - 0.5).to(z.dtype)


def pair_loss(p: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """Binary cross-entropy of "one class" over all pairs, across views.  (n, C), (n, C), (n, n) -> ()"""
    together = (p @ q.T).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(together, s)

"""ORCA (Cao, Brbić and Leskovec, ICLR 2022): known classes are held back until novel ones have caught up.

After SimCLR. Two weak views of every image; p and p' are what the network says of them.

    L_S = cross-entropy with the true logit raised by s ū       a negative margin: less is asked of known
    L_P = −mean log p_i · p'_m(i)                                classes while the network is unsure (ū)
    R   = −H(mean p)                                             of unlabelled images
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.losses import cosine, entropy_loss
from openldn.nets.classifier import Classifier, infer
from openldn.phases.training import Method, freeze_early

SCALE = 10.0  # of the cosine head's logits, and so of the margin


class ORCA(Method):
    """All but the last stage of the backbone stays as SimCLR made it."""

    name = "orca"
    labelled_views = unlabelled_views = ("weak", "weak")
    looks = 20
    uncertainty: Tensor

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        freeze_early(network, problem)
        self.register_buffer("uncertainty", torch.tensor(0.5))

    def look(self, network: Classifier, problem: Problem, progress: float) -> None:
        """ū: how unsure the network is of the unlabelled images."""
        p = infer(network, Part(problem.images, problem.unlabelled)).logits.softmax(dim=1)
        self.uncertainty.copy_((1 - p.amax(dim=1).mean()).clamp_max(0.5))

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        y, l = batch.y, len(batch.y)  # noqa: E741
        one, other = batch.views
        z, logits = network(torch.cat([one, other]))
        z, logits = z[: len(one)], logits.view(2, len(one), -1)
        p, q = logits.softmax(dim=2)
        agreement = (p * q[partners(z, y)]).sum(dim=1)
        return {
            "labelled": margin_loss(logits[0, :l], y, self.uncertainty),
            "unlabelled": -agreement.clamp_min(1e-8).log().mean(),
            "entropy": entropy_loss(p),
        }

    def figures(self) -> dict[str, float]:
        return {"uncertainty": float(self.uncertainty)}


def margin_loss(logits: Tensor, y: Tensor, uncertainty: Tensor) -> Tensor:
    """L_S: the less sure the network is, the less is asked of it."""
    raised = SCALE * uncertainty * F.one_hot(y, logits.shape[1])
    return F.cross_entropy(logits + raised, y)


def partners(z: Tensor, y: Tensor) -> Tensor:
    """m(i): of a labelled row (they stand first) any other of its class, of another its nearest neighbour.

    A row that is alone in its class is its own partner.  (n, d), (l,) -> (n,)
    """
    l = len(y)  # noqa: E741
    nearest = cosine(z.detach()).fill_diagonal_(-2.0).argmax(dim=1)
    same = (y[:, None] == y[None, :]).float().fill_diagonal_(1e-12)
    return torch.cat([same.multinomial(1).flatten(), nearest[l:]])

"""Known classes against the rest: how a known image is told from a novel one without a novel label.

A network learns to tell the known classes, by labelled images, from one more: whatever is unlabelled. To an
unlabelled image of a known class there are labelled ones just like it, so all the network can say is how
often either happens; an image that looks like no labelled one is of the rest for sure. Let labelled images
have the density p_l and unlabelled ones p_u = π p_l + (1 - π) p_n, where π is the share of known ones, and
let the two losses weigh 1 and w. Then the best the network can say is

    P(rest | x) = w p_u / (p_l + w p_u),

and so, as Elkan and Noto (2008) have it for positive and unlabelled examples,

    P(known | x, unlabelled) = π p_l / p_u = π w (1 - P(rest | x)) / P(rest | x).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

W = 0.5  # the weight w of the unlabelled images' loss


def rest_losses(labelled: Tensor, y: Tensor, unlabelled: Tensor) -> dict[str, Tensor]:
    """Cross-entropy of labelled logits (l, K + 1), and of unlabelled ones as the last class."""
    rest = torch.full((len(unlabelled),), unlabelled.shape[1] - 1, device=unlabelled.device)
    return {"ce": F.cross_entropy(labelled, y), "rest": W * F.cross_entropy(unlabelled, rest)}


def known(logits: Tensor, share: Tensor) -> Tensor:
    """P(known class k | x, unlabelled), where `share` of the unlabelled images is known.  (n, K)

    A finite network can overshoot what the densities allow; at most all of it is known.
    """
    p = logits.softmax(dim=1)
    among, rest = logits[:, :-1].softmax(dim=1), p[:, -1:]
    return among * (share * W * (1 - rest) / rest.clamp_min(1e-6)).clamp(max=1)

"""DTC (Han, Vedaldi and Zisserman, ICCV 2019): clusters that sharpen themselves.

After supervised training. Features of unlabelled images are brought down to as many dimensions as there are
classes by PCA and clustered by k-means; both become part of the network. From then on

    q_ik ∝ 1 / (1 + ‖e_i − μ_k‖²),   t_ik ∝ q_ik² / Σ_i q_ik,   L = KL(t ‖ q) + w(t) ‖q − q'‖²

where q and q' are of two weak views. At first targets t stay as k-means made them; then they are made anew.
Labels are not used any more, and clusters come in no order.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.k_means import k_means
from openldn.nets.classifier import Classifier, infer
from openldn.nets.heads import Clusters
from openldn.phases.schedule import late
from openldn.phases.training import Method


class DTC(Method):
    """With consistency of two views, the authors' choice for CIFAR-10."""

    name = "dtc"
    labelled_views = ()
    unlabelled_views = ("weak", "weak")
    looks = 20
    warm_up = 0.1  # of the length, during which targets stay
    weight = 10.0  # of consistency
    until = 0.05  # of the length, its ramp
    targets: Tensor

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        # t of every image; those of labelled ones are not used.
        self.register_buffer("targets", torch.zeros(len(problem.images), network.head.out_features))

    def look(self, network: Classifier, problem: Problem, progress: float) -> None:
        """Clusters at the start, new targets after the warm-up."""
        assert isinstance(network.head, Clusters)
        images = Part(problem.images, problem.unlabelled)
        if progress == 0:
            z = infer(network, images).z
            start(network.head, z)
            with torch.no_grad():
                said = network.head(z.to(self.targets))
        elif progress >= self.warm_up:
            said = infer(network, images).logits
        else:
            return
        self.targets[problem.unlabelled] = sharper(said.softmax(dim=1)).to(self.targets)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        log_q, log_other = network(torch.cat(batch.u)).logits.log_softmax(dim=1).chunk(2)
        t = self.targets[batch.rows.to(self.targets.device)]
        # Consistency counts from the end of the warm-up on.
        warm = progress >= self.warm_up
        weight = self.weight * late(progress - self.warm_up, self.until) if warm else 0.0
        return {
            # The mean runs over images and classes, as the authors' does.
            "unlabelled": F.kl_div(log_q, t, reduction="sum") / t.numel(),
            "consistency": weight * F.mse_loss(log_q.exp(), log_other.exp()),
        }


def start(head: Clusters, z: Tensor, starts: int = 20) -> None:
    """PCA and k-means of features z (n, d), as a head."""
    k = head.out_features
    mean = z.mean(dim=0)
    _, _, directions = torch.linalg.svd((z - mean).double(), full_matrices=False)
    directions = directions[:k].float()  # (up to k, d)
    e = (z - mean) @ directions.T
    # Where clusters are wide, Student's t is flat: in units of their own spread, it is not.
    seed = int(torch.randint(2**31, ()))
    centres, clusters = k_means(e, min(k, len(e)), seed, starts)
    scale = max(float((e - centres[clusters]).square().mean().sqrt()), 1e-6)
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
        head.embed.weight[: len(directions)] = directions / scale
        head.embed.bias.copy_(-head.embed.weight @ mean.to(head.embed.weight))
        head.centres[: len(centres), : len(directions)] = centres.to(head.centres) / scale


def sharper(q: Tensor) -> Tensor:
    """t: surer than q, and less of it for large clusters.  (n, K) -> (n, K)"""
    t = q.square() / q.sum(dim=0).clamp_min(1e-8)
    return t / t.sum(dim=1, keepdim=True)

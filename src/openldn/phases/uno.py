"""UNO (Fini et al., ICCV 2021): known and novel classes in one softmax, labels of novel ones by Sinkhorn.

After supervised training. Prototypes of known classes see the features, those of novel ones a projection of
them; there are several guesses at the novel classes, and as many at finer groups, which only help to learn.
Two views: what Sinkhorn makes of one is what the other learns. As OpenLDN's authors use it, it runs over
known and novel classes together, since unlabelled images may be of either.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.balance import Sinkhorn
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier
from openldn.nets.heads import Concatenated, Projected
from openldn.phases.training import Method


class UNO(Method):
    """Two large views; the paper's second version adds small ones."""

    name = "uno"
    labelled_views = unlabelled_views = ("crop", "crop")
    finer = 3  # times as many groups
    running: Tensor

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        assert isinstance(network.head, Concatenated)
        d, n_heads = network.head.in_features, len(network.head.novel)
        self.over = nn.ModuleList(
            Projected(d, self.finer * problem.n_novel, hidden=4 * d, width=d) for _ in range(n_heads)
        )
        fine = problem.n_known + self.finer * problem.n_novel
        self.labels = nn.ModuleList(Sinkhorn(problem.n_classes) for _ in range(n_heads))
        self.finer_labels = nn.ModuleList(Sinkhorn(fine) for _ in range(n_heads))
        self.register_buffer("running", torch.zeros(n_heads))  # the loss of each guess, lately

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        head = network.head
        assert isinstance(head, Concatenated)
        z = network(torch.cat(batch.views)).z
        known = head.known(z)

        def swapped(novel: nn.Module, labels: nn.Module) -> Tensor:
            a, b = torch.cat([known, novel(z)], dim=1).chunk(2)
            # All classes are equally large, and finer groups parts of them.
            shares = torch.ones(a.shape[1], device=a.device)
            shares[known.shape[1] :] = head.out_features - known.shape[1]
            shares[known.shape[1] :] /= a.shape[1] - known.shape[1]
            shares /= shares.sum()
            label = partial(labels, shares=shares)
            return (swapped_loss(a, b, batch.y, label) + swapped_loss(b, a, batch.y, label)) / 2

        guesses = torch.stack([*map(swapped, head.novel, self.labels)])
        with torch.no_grad():
            self.running.lerp_(guesses, 0.01 if progress else 1.0)
            head.best.copy_(self.running.argmin())
        over = torch.stack([*map(swapped, self.over, self.finer_labels)])
        return {"unlabelled": guesses.mean() / 2, "finer": over.mean() / 2}


def swapped_loss(said: Tensor, other: Tensor, y: Tensor, label: Callable[[Tensor], Tensor]) -> Tensor:
    """Cross-entropy of one view against labels (of the first rows), and Sinkhorn's of the other view.

    Logits (n, C) are cosines over 0.1; `label` makes labels of cosines.
    """
    l = len(y)  # noqa: E741
    given = F.one_hot(y, said.shape[1]).to(said.dtype)
    return F.cross_entropy(said, torch.cat([given, label(0.1 * other[l:].detach())]))

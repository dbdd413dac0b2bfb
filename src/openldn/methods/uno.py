"""UNO (Fini et al., ICCV 2021): known and novel classes in one softmax, swapped Sinkhorn pseudo-labels.

After supervised training. Prototypes of known classes see the features, those of novel classes a projection.
There are several heads for the novel classes, and as many for finer clusters (overclustering), which only
help to learn. The pseudo-labels that Sinkhorn makes of one view are the targets of the other. As OpenLDN's
authors use it, Sinkhorn runs over known and novel classes together, since unlabelled images may be of either.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.maths.priors import SinkhornQueue
from openldn.methods import supervised
from openldn.nets.classifier import Classifier
from openldn.nets.heads import Cosine, Head, projector
from openldn.training import settings
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of UNO."""

    # Of its second version, but for the small crops.
    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 500.0,
        "batch": 512,
        "lr": 0.4,
        "schedule": "warm-up-cosine",
        "optimiser": "sgd",
        "l2": 1.5e-4,
    }

    overclustering: int = 3
    """Finer clusters per novel class."""


class Projected(Head):
    """Prototypes of projected features."""

    def __init__(self, d: int, n_outputs: int, hidden: int, width: int):
        super().__init__(d, n_outputs)
        self.projector = projector(d, hidden, width)
        self.prototypes = Cosine(width, n_outputs)

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.prototypes(self.projector(z))
        return logits


class MultiHead(Head):
    """Known prototypes beside several heads for the novel ones; the `best` head is the one that counts."""

    best: Tensor

    def __init__(self, d: int, n_outputs: int, n_known: int, n_heads: int = 4):
        super().__init__(d, n_outputs)
        self.known = Cosine(d, n_known)
        self.novel = nn.ModuleList(
            Projected(d, n_outputs - n_known, hidden=4 * d, width=d) for _ in range(n_heads)
        )
        self.register_buffer("best", torch.zeros((), dtype=torch.int64))

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([self.known(z), self.novel[int(self.best)](z)], dim=1)


class UNO(Objective):
    """Two large views; the paper's second version adds small ones."""

    labelled_views = unlabelled_views = ("crop_jitter", "crop_jitter")
    settings: Settings
    running: Tensor

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        assert isinstance(network.head, MultiHead)
        d, n_heads = network.head.in_features, len(network.head.novel)
        n_fine = settings.overclustering * problem.n_novel
        self.over = nn.ModuleList(Projected(d, n_fine, hidden=4 * d, width=d) for _ in range(n_heads))
        self.labels = nn.ModuleList(SinkhornQueue(problem.n_classes) for _ in range(n_heads))
        self.fine_labels = nn.ModuleList(SinkhornQueue(problem.n_known + n_fine) for _ in range(n_heads))
        self.register_buffer("running", torch.zeros(n_heads))  # recent loss of each head

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        head = network.head
        assert isinstance(head, MultiHead)
        z = network(torch.cat(batch.views)).z
        known = head.known(z)

        def swapped(novel: nn.Module, labels: nn.Module) -> Tensor:
            a, b = torch.cat([known, novel(z)], dim=1).chunk(2)
            # All classes are equally frequent, and finer clusters are parts of them.
            prior = torch.ones(a.shape[1], device=a.device)
            prior[known.shape[1] :] = head.out_features - known.shape[1]
            prior[known.shape[1] :] /= a.shape[1] - known.shape[1]
            prior /= prior.sum()
            label = partial(labels, prior=prior)
            return (swapped_loss(a, b, batch.y, label) + swapped_loss(b, a, batch.y, label)) / 2

        heads = torch.stack([*map(swapped, head.novel, self.labels)])
        with torch.no_grad():
            self.running.lerp_(heads, 0.01 if progress else 1.0)
            head.best.copy_(self.running.argmin())
        over = torch.stack([*map(swapped, self.over, self.fine_labels)])
        return {"unlabelled": heads.mean() / 2, "overclustering": over.mean() / 2}


def swapped_loss(logits: Tensor, other: Tensor, y: Tensor, label: Callable[[Tensor], Tensor]) -> Tensor:
    """Cross-entropy of one view against labels (of the first rows) and pseudo-labels of the other view.

    Logits (n, C) are of a cosine head; `label` makes pseudo-labels of cosines.
    """
    l = len(y)  # noqa: E741
    given = F.one_hot(y, logits.shape[1]).to(logits.dtype)
    return F.cross_entropy(logits, torch.cat([given, label(Cosine.temperature * other[l:].detach())]))


SYSTEM = System(
    name="uno",
    about="supervised training, then UNO",
    paper="Fini et al., A Unified Objective for Novel Class Discovery, ICCV 2021",
    stages=(
        supervised.PRETRAINING,
        Stage(name="uno", objective=UNO, settings=Settings, share=0.7, head=MultiHead, continues=True),
    ),
)

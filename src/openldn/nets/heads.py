"""From features z (n, d) to logits (n, C): the ends that systems put on one backbone.

The softmax of what a head gives is what its system predicts.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """Any of them: how many features it takes, how many logits it gives."""

    def __init__(self, d: int, n_outputs: int):
        super().__init__()
        self.in_features, self.out_features = d, n_outputs


class Cosine(Head):
    """A prototype for each class; logits are cosines, over a temperature.

    Systems that bring prototypes to length one after each step do the same thing: lengths do not matter here.
    """

    temperature = 0.1

    def __init__(self, d: int, n_outputs: int, n_known: int = 0):
        super().__init__(d, n_outputs)
        self.weight = nn.Parameter(F.normalize(torch.randn(n_outputs, d), dim=1))

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=1), F.normalize(self.weight, dim=1)) / self.temperature


class Projected(Head):
    """Prototypes for features that first pass through a small network, as UNO has them for novel classes."""

    def __init__(self, d: int, n_outputs: int, hidden: int, width: int):
        super().__init__(d, n_outputs)
        self.projector = projector(d, hidden, width)
        self.prototypes = Cosine(width, n_outputs)

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.prototypes(self.projector(z))
        return logits


class Concatenated(Head):
    """Known prototypes beside several guesses at the novel ones; the `best` guess is what counts (UNO)."""

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


class Clusters(Head):
    """Student's t around centres in a space of as many dimensions (DTC): its softmax is
    in proportion to 1 / (1 + ‖e − μ‖²).
    """

    def __init__(self, d: int, n_outputs: int, n_known: int = 0):
        super().__init__(d, n_outputs)
        self.embed = nn.Linear(d, n_outputs)
        self.centres = nn.Parameter(torch.randn(n_outputs, n_outputs))

    def forward(self, z: Tensor) -> Tensor:
        squared = (self.embed(z)[:, None] - self.centres).square().sum(dim=2)
        return -torch.log1p(squared)


class Weighted(Head):
    """Known classes, and last the logit of the weight that an image deserves (DS3L).

    The weight is a small network's, of nothing but the class probabilities, the largest first: how sure of an
    image the network is counts, not of which class. At first it is the same for all images: who deserves less
    must be learned, not come from how the network was drawn.
    """

    def __init__(self, d: int, n_outputs: int, n_known: int, hidden: int = 100):
        super().__init__(d, n_outputs)
        self.classes = nn.Linear(d, n_outputs - 1)
        self.weigh = nn.Sequential(nn.Linear(n_outputs - 1, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.weigh[-1].weight)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        logits = self.classes(z)
        return torch.cat([logits, self.deserved(logits.softmax(dim=1))], dim=1)

    def deserved(self, p: Tensor) -> Tensor:
        """The weight's logit.  (n, K) -> (n, 1)"""
        w: Tensor = self.weigh(p.sort(dim=1, descending=True).values)
        return w


class Ladder(Head):
    """Up three levels to the mean of a latent, and known classes from there (CGDL).

    What such a network calls an image's features is that mean.
    """

    def __init__(self, d: int, n_outputs: int, n_known: int, width: int = 64):
        super().__init__(d, n_outputs)
        self.width = width
        self.levels = nn.ModuleList(
            nn.Sequential(nn.Linear(below, width), nn.BatchNorm1d(width), nn.ReLU())
            for below in (d, width, width)
        )
        self.mean, self.log_variance = nn.Linear(width, width), nn.Linear(width, width)
        self.classes = nn.Linear(width, n_outputs)

    def climb(self, z: Tensor) -> list[Tensor]:
        """What each level makes of the one below."""
        found = []
        for level in self.levels:
            z = level(z)
            found.append(z)
        return found

    def latent(self, z: Tensor) -> Tensor:
        """The latent's mean, of the backbone's features."""
        mean: Tensor = self.mean(self.climb(z)[-1])
        return mean

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.classes(z)
        return logits


def projector(d: int, hidden: int, width: int) -> nn.Sequential:
    """Two layers, from d to `width` features."""
    return nn.Sequential(
        nn.Linear(d, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


HEADS: dict[str, Callable[[int, int, int], Head | nn.Linear]] = {
    "linear": lambda d, n_outputs, n_known: nn.Linear(d, n_outputs),
    "cosine": Cosine,
    "concatenated": Concatenated,
    "clusters": Clusters,
    "weighted": Weighted,
    "ladder": Ladder,
}

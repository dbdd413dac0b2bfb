"""What a first stage says, refined: its network goes on learning all classes, from labels and from itself.

The network keeps its features and gets an output for every class. These first learn alone what the first
stage says of the unlabelled images. Then all of it learns: a view of an unlabelled image follows what the
averaged network says of another, once all classes have been given their share of the unlabelled images and
what remains is sharpened a little. By then it knows the labelled images by heart; so that there is something
left to learn from them, images have a square cut out and are mixed with each other.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openldn import config
from openldn.balance import Balance, shares, shift
from openldn.data.batches import Batch
from openldn.data.pixels import Part
from openldn.data.problem import Problem
from openldn.losses import mixup
from openldn.nets.classifier import Classifier, Says, infer
from openldn.nets.ema import MovingAverage
from openldn.optimisers import Adam, optimiser
from openldn.phases.schedule import learning_rate, oversampled, steps_for


class Refine:
    """The phase. Labelled images, as they are right, are seen more often than their share.

    So known classes come to be expected more often than they are there: whoever asks the network should give
    each class its share first, as the network's own targets do. Labelled and unlabelled images are seen in
    views of one kind, or the kind would tell a known image.
    """

    name: str = "refine"
    labelled_views: tuple[str, ...] = ("cut",)
    unlabelled_views: tuple[str, ...] = ("weak", "cut")

    def __init__(self, problem: Problem, network: Classifier, settings: config.Refine):
        self.problem, self.network, self.settings = problem, network, settings
        self.optimiser = optimiser(settings.optimiser, network)
        self.n_labelled, self.n_unlabelled = oversampled(problem, settings.batch, settings.often)
        self.epoch, self.steps = steps_for(
            settings.length,
            len(problem.unlabelled),
            self.n_unlabelled,
            cost=3.0 * settings.batch + self.n_unlabelled,
            overhead=2 * len(problem.images) * (2 if network.mirrored else 1),
        )
        self.average = MovingAverage(network, settings.ema_share * self.steps)
        self.balance = Balance(shares(problem).to(next(network.parameters())))

    @property
    def model(self) -> nn.Module:
        return self.average.network

    def begin(self, previous: Says | None) -> None:
        """The outputs learn what the first stage says."""
        if previous is None:
            return
        labelled, unlabelled = (
            Part(self.problem.images, rows) for rows in (self.problem.labelled, self.problem.unlabelled)
        )
        z = torch.cat([infer(self.network, images).z for images in (labelled, unlabelled)])
        y = F.one_hot(self.problem.labels[self.problem.labelled], self.problem.n_classes)
        said = previous(unlabelled).clamp_min(1e-8).log()
        q = (said + shift(said, shares(self.problem), rounds=50)).softmax(dim=1)
        assert isinstance(self.network.head, nn.Linear)
        learn_head(self.network.head, z, torch.cat([y, q]))
        self.average.network.load_state_dict(self.network.state_dict())

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        one, other = batch.u
        with torch.no_grad():
            said = self.balance(self.average.network(one).logits)
            q = (said / self.settings.temperature).softmax(dim=1)
        y = F.one_hot(batch.y, q.shape[1]).to(q.dtype)
        x, q = mixup(self.settings.mix, torch.cat([*batch.x, other]), torch.cat([y, q]))
        losses = F.cross_entropy(self.network(x).logits, q, reduction="none") / len(x)
        labelled, unlabelled = losses.split([len(y), len(other)])  # by the larger share of a mixture
        return {"labelled": labelled.sum(), "unlabelled": unlabelled.sum()}

    def after_step(self, batch: Batch, progress: float) -> None:
        """The average follows."""
        self.average.update(self.network, round(progress * self.steps) + 1)

    def after_epoch(self, progress: float) -> None:
        """Nothing."""

    def figures(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "average": self.average.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "recent": self.balance.recent,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.average.network.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.balance.recent = state["recent"].to(self.balance.shares)


def learn_head(head: nn.Linear, z: Tensor, q: Tensor, steps: int = 200, lr: float = 0.05) -> None:
    """Logistic regression of class probabilities q (n, C) on features z (n, d), from zero.

    Features are brought to mean 0 and spread 1 meanwhile, so that one learning rate suits them all.
    """
    mean, std = z.mean(dim=0), z.std(dim=0).clamp_min(1e-6)
    z = (z - mean) / std
    w, b = z.new_zeros(q.shape[1], z.shape[1]).requires_grad_(), z.new_zeros(q.shape[1]).requires_grad_()
    descent = Adam([w, b])
    for step in range(steps):
        descent.zero_grad()
        F.cross_entropy(F.linear(z, w, b), q).backward()
        descent.step(lr * (1 - step / steps))
    with torch.no_grad():
        head.weight.copy_(w / std)
        head.bias.copy_(b - (w / std) @ mean)

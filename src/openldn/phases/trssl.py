"""TRSSL (Rizve et al., ECCV 2022), by OpenLDN's authors: labels by Sinkhorn, softer where they are unsure.

Two views of unlabelled images, each learning what Sinkhorn makes of the other; all rows are mixed, with
their labels and their temperatures. An image's temperature is how much the averaged network's opinion of
it depends on the view, over the largest there is.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.balance import Sinkhorn
from openldn.data.batches import Batch
from openldn.data.draws import keys_of
from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.losses import mixup
from openldn.nets.classifier import Classifier, evaluating
from openldn.phases.training import Method


class TRSSL(Method):
    """From scratch, with prototypes."""

    name = "trssl"
    labelled_views = ("crop",)
    unlabelled_views = ("crop", "crop")
    averaged = True
    looks, looks_first = 4, False  # at the start nothing is known yet
    asked = 5  # views by which an image's uncertainty is found
    temperature = 0.1
    temperatures: Tensor

    def __init__(self, problem: Problem, network: Classifier):
        super().__init__()
        self.register_buffer("temperatures", torch.full((len(problem.images),), self.temperature))
        self.sinkhorn = Sinkhorn(problem.n_classes)
        self.flip, self.n_known = problem.flip, problem.n_known

    def cost(self, l: int, u: int) -> float:  # noqa: E741
        """Targets come from a pass of their own, before rows are mixed."""
        return 3.0 * (l + 2 * u) + 2 * u

    def look_cost(self, problem: Problem, network: Classifier) -> float:
        return float(self.asked * len(problem.unlabelled))

    @torch.no_grad()
    def look(self, network: Classifier, problem: Problem, progress: float) -> None:
        """Temperatures anew."""
        rows, where = problem.unlabelled, next(network.parameters()).device
        spread, seed = [], int(torch.randint(2**31, ()))
        at_once = max(1, 2**21 // (self.asked * math.prod(problem.images.shape[1:])))
        with evaluating(network):
            for part in rows.split(at_once):
                images = problem.images[part]
                keys = keys_of(seed, part.numpy())
                made = views(images, ("crop",) * self.asked, self.flip, keys)
                p = torch.stack([network(view.to(where)).logits.softmax(dim=1) for view in made])
                chosen = p.mean(dim=0).argmax(dim=1)
                spread.append(p[:, torch.arange(len(part)), chosen].std(dim=0))
        unsure = torch.cat(spread)
        scaled = (unsure / unsure.max().clamp_min(1e-8)).clamp(self.temperature, 1.0)
        self.temperatures[rows.to(where)] = scaled

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        (x,), (u1, u2), l = batch.x, batch.u, len(batch.y)  # noqa: E741
        with torch.no_grad():
            o1, o2 = (self.temperature * network(torch.cat([u1, u2])).logits).chunk(2)
            t1, t2 = (hardened(self.sinkhorn(o), self.n_known) for o in (o2, o1))
        y = F.one_hot(batch.y, o1.shape[1]).to(x.dtype)
        own = self.temperatures[batch.rows.to(self.temperatures.device)]
        given = self.temperatures.new_full((l,), self.temperature)
        rows, targets = torch.cat([x, u1, u2]), torch.cat([y, t1, t2])
        temperatures = torch.cat([given, own, own])
        rows, targets, temperatures = mixup(0.75, rows, targets, temperatures, own=False)
        said = self.temperature * network(rows).logits / temperatures[:, None]
        each = F.cross_entropy(said, targets, reduction="none")
        return {"labelled": each[:l].sum() / len(each), "unlabelled": each[l:].sum() / len(each)}

    def figures(self) -> dict[str, float]:
        return {"temperature": float(self.temperatures.mean())}


def hardened(targets: Tensor, n_known: int) -> Tensor:
    """Rows that are novel by at least one half become one-hot.  (n, C) -> (n, C)"""
    likely, chosen = targets[:, n_known:].max(dim=1)
    sure = F.one_hot(n_known + chosen, targets.shape[1]).to(targets.dtype)
    return torch.where((likely >= 0.5)[:, None], sure, targets)

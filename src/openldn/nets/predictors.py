"""Predictors: outputs of a network -> probabilities of known and novel classes.

A system with a predictor of its own defines it in its file.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.maths.k_means import k_means
from openldn.maths.metrics import confusion, match
from openldn.nets.classifier import Outputs

Infer = Callable[[Images], Outputs]
State = dict[str, Tensor]


class Predictor:
    """Turns outputs into probabilities (n, C), known classes first. What it has learned is its `state`."""

    ordered = True  # whether its known ids are the known classes by construction

    def __init__(self, settings: Any = None) -> None:
        self.state: State = {}

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        """Learns what it needs from the network's outputs."""

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        """Whether a state from a file suits a network of so many outputs and so many classes."""
        raise NotImplementedError

    def probabilities(self, outputs: Outputs) -> Tensor:
        """(n, C); each row sums to one."""
        raise NotImplementedError

    def known_logits(self, outputs: Outputs) -> Tensor | None:
        """Of predictors that reject: logits of the known classes, as if nothing were rejected.  (n, K)"""
        return None


class Argmax(Predictor):
    """The network's own probabilities: it has a logit for every class."""

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        return outputs.logits.softmax(dim=1)


class Aligned(Predictor):
    """The network's own probabilities, where its classes have no order: labelled images name the clusters.

    Hungarian matching gives each known class one cluster.
    """

    ordered = False

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        clusters = infer(Part(problem.images, problem.labelled)).logits.argmax(dim=1)
        self.state = {"order": alignment(clusters, problem)}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        order = state["order"]
        return (
            n_outputs == n_known + n_novel
            and order.dtype == torch.int64
            and sorted(order.tolist()) == [*range(n_outputs)]
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        return outputs.logits.softmax(dim=1)[:, self.state["order"]]


def alignment(clusters: Tensor, problem: Problem) -> Tensor:
    """The cluster of each class, known ones first.  clusters of labelled images (l,) -> (C,)"""
    y = problem.labels[problem.labelled]
    counts = confusion(y.numpy(), clusters.numpy(), problem.n_known, problem.n_classes)
    cluster_of = {k: cluster for cluster, k in match(counts).items()}
    known = [cluster_of[k] for k in range(problem.n_known)]
    return torch.tensor(known + [c for c in range(problem.n_classes) if c not in known])


class KMeans(Predictor):
    """k-means on features; labelled images name the clusters.

    `unit` normalises features first. `centres` replaces plain k-means by one whose first clusters are the
    known classes: it maps features, labels, n_known, n_classes and a seed to centres (C, d).
    """

    def __init__(
        self,
        settings: Any = None,
        *,
        unit: bool = False,
        centres: Callable[[Tensor, Tensor, int, int, int], Tensor] | None = None,
    ) -> None:
        super().__init__(settings)
        self.unit, self.centres, self.ordered = unit, centres, centres is not None

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        z = self._features(infer(problem.images).z)
        if self.centres is not None:
            found = self.centres(z, problem.labels, problem.n_known, problem.n_classes, seed)
        else:
            found, clusters = k_means(z, problem.n_classes, seed)
            found = found[alignment(clusters[problem.labelled], problem)]
        self.state = {"centres": found}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return state["centres"].ndim == 2 and len(state["centres"]) == n_known + n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        z, centres = self._features(outputs.z), self.state["centres"]
        # Distances in units of those between centres, so that the nearest one stands out.
        scale = torch.pdist(centres).square().mean().clamp_min(1e-12)
        return (-10 * torch.cdist(z, centres).square() / scale).softmax(dim=1)

    def _features(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1) if self.unit else z


def confidence(outputs: Outputs, state: Mapping[str, Tensor]) -> Tensor:
    """Log p / (1 - p) of the most likely class: ordered like p, without ties near one.  (n,)"""
    first = outputs.logits.amax(dim=1, keepdim=True)
    others = outputs.logits.scatter(1, outputs.logits.argmax(dim=1, keepdim=True), -torch.inf)
    return first.flatten() - others.logsumexp(dim=1)


class RejectAndCluster(Predictor):
    """For networks that know the known classes alone: the images least likely known are rejected, and
    clustered by k-means.

    The share to reject is `settings.novel_share`, by default the expected one under equal class frequencies.
    `score` says how likely an image is known, from outputs and the state that `fit_score` makes of labelled
    images (its names are `score_state`). `extra_outputs` are outputs after those of the known classes.
    """

    def __init__(
        self,
        settings: Any = None,
        *,
        score: Callable[[Outputs, Mapping[str, Tensor]], Tensor] = confidence,
        fit_score: Callable[[Outputs, Tensor, int], State] | None = None,
        score_state: tuple[str, ...] = (),
        extra_outputs: int = 0,
    ) -> None:
        super().__init__(settings)
        self.novel_share: float | None = getattr(settings, "novel_share", None)
        self.score, self.fit_score, self.extra_outputs = score, fit_score, extra_outputs
        self.needed = {"threshold", "centres", *score_state}

    def fit(self, infer: Infer, problem: Problem, seed: int) -> None:
        outputs = infer(Part(problem.images, problem.unlabelled))
        self.state = {}
        if self.fit_score is not None:
            labelled = infer(Part(problem.images, problem.labelled))
            self.state = self.fit_score(labelled, problem.labels[problem.labelled], problem.n_known)
        share = self.novel_share
        if share is None:
            share = 1 - float(problem.class_prior()[: problem.n_known].sum())
        n_reject = min(max(round(share * len(outputs.z)), problem.n_novel), len(outputs.z))
        score = self.score(outputs, self.state)
        rejected = score.argsort()[:n_reject]
        self.state["threshold"] = score[rejected[-1]].clone()
        z = F.normalize(outputs.z[rejected], dim=1)
        self.state["centres"], _ = k_means(z, problem.n_novel, seed)

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + self.extra_outputs and (
            self.needed <= state.keys() and len(state["centres"]) == n_novel
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        p = self.known_logits(outputs).softmax(dim=1)
        known = (self.score(outputs, self.state) > self.state["threshold"]).to(p.dtype)[:, None]
        # Unit vectors are at most 2 apart: a temperature makes the nearest centre stand out.
        distance = torch.cdist(F.normalize(outputs.z, dim=1), self.state["centres"])
        return torch.cat([known * p, (1 - known) * (-distance / 0.1).softmax(dim=1)], dim=1)

    def known_logits(self, outputs: Outputs) -> Tensor:
        return outputs.logits[:, :-1] if self.extra_outputs else outputs.logits

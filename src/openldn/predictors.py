"""From what a network says to class probabilities over known and novel classes."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.problem import Problem
from openldn.nets.classifier import Outputs


class Predictor(Protocol):
    """Turns outputs into probabilities (n, C); what it has learned is in its `state`."""

    ordered: bool  # whether its known ids are the known classes, in order
    state: dict[str, Tensor]

    def fit(self, outputs: Callable[[], Outputs], problem: Problem, seed: int) -> None:
        """Learns what it needs; `outputs` gives, if asked, what the network says of unlabelled images."""
        ...

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        """Whether a state from a file suits a network of so many outputs and so many classes."""
        ...

    def probabilities(self, outputs: Outputs) -> Tensor:
        """(n, C), known classes first; each row sums to one."""
        ...


class Argmax:
    """The network's own probabilities: it has a logit for every class."""

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Callable[[], Outputs], problem: Problem, seed: int) -> None:
        """Nothing to learn."""

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        return outputs.logits.softmax(dim=1)


class RejectAndCluster:
    """For networks that know the known classes alone: what they are unsure of is clustered by k-means.

    The share to reject is the share of novel images one expects if all classes are equally frequent.
    """

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Callable[[], Outputs], problem: Problem, seed: int) -> None:
        z, logits = outputs()
        n_unlabelled = len(problem.unlabelled)
        novel_images = len(problem.images) * problem.n_novel / problem.n_classes
        n_reject = int(min(max(novel_images, problem.n_novel), n_unlabelled))
        confidence = logits.softmax(dim=1).amax(dim=1)
        unsure = confidence.argsort()[:n_reject]
        features = F.normalize(z[unsure], dim=1).numpy().astype(np.float64)
        from sklearn.cluster import KMeans  # when needed: it takes as long to load as torch

        clusters = KMeans(problem.n_novel, n_init=10, random_state=seed).fit(features)
        self.state = {
            "threshold": confidence[unsure[-1]].clone(),
            "centres": torch.from_numpy(clusters.cluster_centers_).float(),
        }

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known and "threshold" in state and len(state["centres"]) == n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        p = outputs.logits.softmax(dim=1)
        known = (p.amax(dim=1, keepdim=True) > self.state["threshold"]).to(p.dtype)
        # Unit vectors are at most 2 apart: a temperature makes the nearest centre stand out.
        distance = torch.cdist(F.normalize(outputs.z, dim=1), self.state["centres"])
        return torch.cat([known * p, (1 - known) * (-distance / 0.1).softmax(dim=1)], dim=1)


PREDICTORS: dict[str, Callable[[], Predictor]] = {"argmax": Argmax, "reject-and-cluster": RejectAndCluster}

"""From what a network says to class probabilities over known and novel classes."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openldn import rest
from openldn.balance import even, shares
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.nets.classifier import Outputs

Ask = Callable[[Images], Outputs]


class Predictor(Protocol):
    """Turns outputs into probabilities (n, C); what it has learned is in its `state`."""

    ordered: bool  # whether its known ids are the known classes, in order
    state: dict[str, Tensor]

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        """Learns what it needs by asking what the network says of images."""
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

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        """Nothing to learn."""

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        return outputs.logits.softmax(dim=1)


class Balanced:
    """The network's probabilities, moved so that each class has its share of the unlabelled images.

    And then as if a new image could be of any class alike, as the images all together are.
    """

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int, most: int = 10_000) -> None:
        """From all unlabelled images, or `most` of them evenly from all."""
        some = problem.unlabelled[:: -(-len(problem.unlabelled) // most)]
        said = outputs(Part(problem.images, some)).logits.log_softmax(dim=1)
        self.state = {"shift": even(said, shares(problem))}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel and state["shift"].shape == (n_outputs,)

    def probabilities(self, outputs: Outputs) -> Tensor:
        return (outputs.logits.log_softmax(dim=1) + self.state["shift"]).softmax(dim=1)


class RejectAndCluster:
    """For networks that know the known classes alone: what they are unsure of is clustered by k-means.

    The share to reject is the share of novel images one expects if all classes are equally frequent.
    """

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        z, logits = outputs(Part(problem.images, problem.unlabelled))
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


class Groups:
    """For networks that tell known classes from the rest: the rest is grouped by k-means.

    Features are first made such that each known class is round (as in Fisher's discriminant analysis): what
    varies within the known classes likely varies within the novel ones too, and should not divide them.
    In the end each class is given its share of the unlabelled images, and from then on all are taken to be
    alike frequent, as they are among all images.
    """

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        z, _ = outputs(Part(problem.images, problem.labelled))
        y, (u, logits) = problem.labels[problem.labelled], outputs(Part(problem.images, problem.unlabelled))
        wanted = shares(problem)
        share = wanted[: problem.n_known].sum()
        self.state = {"share": share, **_round(z, y)}
        n_novel_images = max(problem.n_novel, round(len(u) * (1 - float(share))))
        novel = rest.known(logits, share).sum(dim=1).argsort()[:n_novel_images]
        from sklearn.cluster import KMeans  # when needed: it takes as long to load as torch

        features = self._features(u)[novel].numpy().astype(np.float64)
        centres = KMeans(problem.n_novel, n_init=10, random_state=seed).fit(features).cluster_centers_
        self.state["centres"] = torch.from_numpy(centres).float()
        self.state["shift"] = torch.zeros_like(wanted)
        self.state["shift"] = even(self.probabilities(Outputs(u, logits)).log(), wanted)

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return (
            n_outputs == n_known + 1
            and {"share", "mean", "round", "centres", "shift"} <= state.keys()
            and state["centres"].shape == (n_novel, state["mean"].numel())
            and state["round"].shape == (state["mean"].numel(),) * 2
            and len(state["shift"]) == n_known + n_novel
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        known = rest.known(outputs.logits, self.state["share"])
        # Squared distances of unit vectors are at most 4: a temperature makes the nearest stand out.
        distance = torch.cdist(self._features(outputs.z), self.state["centres"]).square()
        novel = (1 - known.sum(dim=1, keepdim=True)) * (-distance / 0.1).softmax(dim=1)
        p = torch.cat([known, novel], dim=1).clamp_min(1e-8)
        return (p.log() + self.state["shift"]).softmax(dim=1)

    def _features(self, z: Tensor) -> Tensor:
        return F.normalize((z - self.state["mean"]) @ self.state["round"], dim=1)


def _round(z: Tensor, y: Tensor, shrink: float = 0.03) -> dict[str, Tensor]:
    """The mean of features z (n, d) and a map after which classes y spread alike in all directions."""
    means = torch.stack(
        [z[y == k].mean(dim=0) if (y == k).any() else z.mean(dim=0) for k in range(1 + int(y.max()))]
    )
    within = (z - means[y]).double()
    scatter = within.T @ within / len(z)
    scatter += (shrink * scatter.diagonal().mean() + 1e-8) * torch.eye(len(scatter))
    variance, directions = torch.linalg.eigh(scatter)
    return {"mean": z.mean(dim=0), "round": (directions / variance.sqrt()).float()}


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "argmax": Argmax,
    "balanced": Balanced,
    "reject-and-cluster": RejectAndCluster,
    "groups": Groups,
}

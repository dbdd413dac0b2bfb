"""From what a network says to class probabilities over known and novel classes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn import rest
from openldn.balance import even, shares
from openldn.data.draws import keys_of
from openldn.data.pixels import Images, Part
from openldn.data.problem import Problem
from openldn.data.views import views
from openldn.k_means import even_k_means, k_means, semi_supervised
from openldn.metrics import confusion, match
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


class Aligned:
    """The network's own probabilities, where its classes have no order: labelled images say which is which.

    Each known class is the one that most of its labelled images are in, one class each.
    """

    ordered = False

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        said = outputs(Part(problem.images, problem.labelled)).logits.argmax(dim=1)
        self.state = {"order": aligned(said, problem)}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return n_outputs == n_known + n_novel and _is_order(state["order"], n_outputs)

    def probabilities(self, outputs: Outputs) -> Tensor:
        return outputs.logits.softmax(dim=1)[:, self.state["order"]]


def aligned(said: Tensor, problem: Problem) -> Tensor:
    """Which cluster stands for each class, known ones first.  clusters of labelled images (l,) -> (C,)"""
    y = problem.labels[problem.labelled]
    counts = confusion(y.numpy(), said.numpy(), problem.n_known, problem.n_classes)
    cluster_of = {k: cluster for cluster, k in match(counts).items()}
    known = [cluster_of[k] for k in range(problem.n_known)]
    return torch.tensor(known + [c for c in range(problem.n_classes) if c not in known])


def _is_order(order: Tensor, n: int) -> bool:
    return order.dtype == torch.int64 and sorted(order.tolist()) == [*range(n)]


class Clusters:
    """k-means on features, known classes found among the clusters by the labelled images.

    With `unit`, features are brought to length one. With `seeded`, as GCD has it, the clusters of known
    classes begin as these, and their labelled images stay in them.
    """

    def __init__(self, unit: bool = False, seeded: bool = False) -> None:
        self.unit = unit
        self.seeded = self.ordered = seeded
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        z = self._features(outputs(problem.images).z)
        if self.seeded:
            self.state = {
                "centres": semi_supervised(z, problem.labels, problem.n_known, problem.n_classes, seed)
            }
            return
        centres, clusters = k_means(z, problem.n_classes, seed)
        self.state = {"centres": centres[aligned(clusters[problem.labelled], problem)]}

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        return state["centres"].ndim == 2 and len(state["centres"]) == n_known + n_novel

    def probabilities(self, outputs: Outputs) -> Tensor:
        z, centres = self._features(outputs.z), self.state["centres"]
        # In units of how far apart the centres are, so that the nearest one stands out.
        apart = torch.pdist(centres).square().mean().clamp_min(1e-12)
        return (-10 * torch.cdist(z, centres).square() / apart).softmax(dim=1)

    def _features(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1) if self.unit else z


class RejectAndCluster:
    """For networks that know the known classes alone: what is least likely known is clustered by k-means.

    The share to reject is the share of novel images one expects if all classes are equally frequent, unless
    `rate` says otherwise. How likely known an image is: by `confidence`, the largest probability; by
    `weight`, the network's last output; by `density`, where its features lie under Gaussians of the known
    classes.
    """

    ordered = True

    def __init__(
        self, by: Literal["confidence", "weight", "density"] = "confidence", rate: float | None = None
    ) -> None:
        self.by, self.rate = by, rate
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int) -> None:
        said = outputs(Part(problem.images, problem.unlabelled))
        self.state = {}
        if self.by == "density":
            known, y = outputs(Part(problem.images, problem.labelled)), problem.labels[problem.labelled]
            self.state = gaussians(known, y, problem.n_known)
        rate = 1 - float(shares(problem)[: problem.n_known].sum()) if self.rate is None else self.rate
        n_reject = min(max(round(rate * len(said.z)), problem.n_novel), len(said.z))
        likely = self._likely(said)
        unsure = likely.argsort()[:n_reject]
        self.state["threshold"] = likely[unsure[-1]].clone()
        self.state["centres"], _ = k_means(F.normalize(said.z[unsure], dim=1), problem.n_novel, seed)

    def fits(self, state: Mapping[str, Tensor], n_outputs: int, n_known: int, n_novel: int) -> bool:
        wanted = {"threshold", "centres"} | ({"means", "precision"} if self.by == "density" else set())
        return n_outputs == n_known + (self.by == "weight") and (
            wanted <= state.keys() and len(state["centres"]) == n_novel
        )

    def probabilities(self, outputs: Outputs) -> Tensor:
        p = self.known(outputs).softmax(dim=1)
        known = (self._likely(outputs) > self.state["threshold"]).to(p.dtype)[:, None]
        # Unit vectors are at most 2 apart: a temperature makes the nearest centre stand out.
        distance = torch.cdist(F.normalize(outputs.z, dim=1), self.state["centres"])
        return torch.cat([known * p, (1 - known) * (-distance / 0.1).softmax(dim=1)], dim=1)

    def known(self, outputs: Outputs) -> Tensor:
        """Logits of the known classes, as if nothing were rejected.  (n, K)"""
        return outputs.logits[:, :-1] if self.by == "weight" else outputs.logits

    def _likely(self, outputs: Outputs) -> Tensor:
        """The larger, the likelier known.  (n,)"""
        if self.by == "weight":
            return outputs.logits[:, -1]
        if self.by == "confidence":  # log p / (1 - p): the order of p, without its many ones
            first = outputs.logits.amax(dim=1, keepdim=True)
            others = outputs.logits.scatter(1, outputs.logits.argmax(dim=1, keepdim=True), -torch.inf)
            return first.flatten() - others.logsumexp(dim=1)
        density = []
        for mean, precision in zip(self.state["means"], self.state["precision"], strict=True):
            apart = outputs.z - mean
            squared = ((apart @ precision) * apart).sum(dim=1)
            density.append(0.5 * (torch.linalg.slogdet(precision)[1] - squared))
        return torch.stack(density).amax(dim=0)


def gaussians(outputs: Outputs, y: Tensor, n_known: int, shrink: float = 0.1) -> dict[str, Tensor]:
    """Mean and precision of each class's features (K, d), (K, d, d), of images that are classified right."""
    z, said = outputs.z, outputs.logits
    right = said[:, :n_known].argmax(dim=1) == y
    means, precision = [], []
    for k in range(n_known):
        of_class = z[(y == k) & right]
        of_class = (of_class if len(of_class) > 1 else z[y == k]).double()
        within = of_class - of_class.mean(dim=0)
        scatter = within.T @ within / max(1, len(within))
        scatter += (shrink * scatter.diagonal().mean() + 1e-6) * torch.eye(z.shape[1])
        means.append(of_class.mean(dim=0).float())
        precision.append(torch.linalg.inv(scatter).float())
    return {"means": torch.stack(means), "precision": torch.stack(precision)}


class Groups:
    """For networks that tell known classes from the rest: the rest is grouped, by k-means with even groups.

    Features are those of the stage before the last, where there are any: the last one is about what tells the
    known classes apart, and mixes others. They are first made such that the views of an image spread alike in
    all directions (as in Fisher's discriminant analysis, an image for a class): what a crop or another
    light changes should not divide the images. In the end each class is given its share of the unlabelled
    images, and from then on all are taken to be alike frequent, as they are among all images.
    """

    ordered = True

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, outputs: Ask, problem: Problem, seed: int, some: int = 3_000, n_views: int = 4) -> None:
        labelled, said = (
            outputs(Part(problem.images, rows)) for rows in (problem.labelled, problem.unlabelled)
        )
        wanted = shares(problem)
        share = wanted[: problem.n_known].sum()
        n_novel_images = max(problem.n_novel, round(len(said.logits) * (1 - float(share))))
        novel = rest.known(said.logits, share).sum(dim=1).argsort()[:n_novel_images]
        few = Part(problem.images, problem.unlabelled[novel[:: -(-len(novel) // some)]])
        seen = [_early(outputs(Seen(few, problem.flip, keys=(seed, k)))) for k in range(n_views)]
        self.state = {
            "share": share,
            "mean": _early(labelled).mean(dim=0),
            "round": _round(torch.stack(seen)),
        }
        self.state["centres"] = even_k_means(self._features(said)[novel], problem.n_novel, seed)
        self.state["shift"] = torch.zeros_like(wanted)
        self.state["shift"] = even(self.probabilities(said).log(), wanted)

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
        distance = torch.cdist(self._features(outputs), self.state["centres"]).square()
        novel = (1 - known.sum(dim=1, keepdim=True)) * (-distance / 0.1).softmax(dim=1)
        p = torch.cat([known, novel], dim=1).clamp_min(1e-8)
        return (p.log() + self.state["shift"]).softmax(dim=1)

    def _features(self, outputs: Outputs) -> Tensor:
        return F.normalize((_early(outputs) - self.state["mean"]) @ self.state["round"], dim=1)


class Seen:
    """Images as views show them, crops in changed colours, one of each."""

    def __init__(self, images: Images, flip: bool, keys: tuple[int, ...]):
        self.images, self.flip, self.keys, self.shape = images, flip, keys, images.shape

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor) -> Tensor:
        (made,) = views(self.images[rows], ("crop",), self.flip, keys_of(*self.keys, rows.numpy()))
        return (255 * made).round().to(torch.uint8)


def _early(outputs: Outputs) -> Tensor:
    return outputs.z if outputs.early is None else outputs.early


def _round(z: Tensor, shrink: float = 0.03) -> Tensor:
    """A map after which views z (v, n, d) of n images spread alike in all directions.  (d, d)"""
    within = (z - z.mean(dim=0)).flatten(0, 1).double()
    scatter = within.T @ within / len(within)
    scatter += (shrink * scatter.diagonal().mean() + 1e-8) * torch.eye(len(scatter))
    variance, directions = torch.linalg.eigh(scatter)
    made: Tensor = directions / variance.sqrt()
    return made.float()


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "argmax": Argmax,
    "balanced": Balanced,
    "aligned": Aligned,
    "k-means": Clusters,
    "unit k-means": partial(Clusters, unit=True),
    "seeded k-means": partial(Clusters, unit=True, seeded=True),
    "reject-and-cluster": RejectAndCluster,
    "reject by weight": partial(RejectAndCluster, by="weight"),
    "reject by density": partial(RejectAndCluster, by="density"),
    "groups": Groups,
}

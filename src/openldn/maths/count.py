"""How many novel classes there are, from features and the labels of known classes.

The default, `estimate`, rests on a symmetry: *a clustering treats known and novel classes alike*. k-means on
all images, at many numbers of groups, never sees a label. Labels are used afterwards, to count how many
groups the known classes fill. Where n known classes fill n groups, groups are as fine as classes, and the
groups that are left are the novel classes. It takes three steps:

1. The share of the known classes' images that is labelled. Labelled images lie among the unlabelled ones of
   their class: groups of a known class have that share of labels, groups of novel classes have none, and a
   mixture of binomials over groups finds it.
2. With it, how much of every group is known, hence how many groups the known classes fill.
3. Classes of unlike sizes: k-means cuts large classes first, so the number is drawn towards what it would be
   if novel classes were as large as known ones. It is moved away from that, and towards a second reading: as
   many novel groups as make the spread of images within them that of known classes. The better the clustering
   keeps known classes apart, the further.

For the interval, random halves of the known classes are hidden as if novel. The number must rise by as many.

The default then weighs the numbers of the interval by a second kind of evidence: in a mixture of the right
number of classes, classes of equal size cost little likelihood. It speaks only as far as labelled classes are
of equal size: see `maths/whitened_mixture.py`.

`dtc` and `gcd` are the estimators of Han et al. (2019) and Vaze et al. (2022).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openldn.maths.k_means import k_means, semi_supervised
from openldn.maths.metrics import confusion, matched
from openldn.maths.principal import eigh
from openldn.maths.priors import expected_shares
from openldn.maths.ward import Tree
from openldn.maths.whitened_mixture import evenness, in_space, mixture, space

# scikit-learn and scipy are imported late: together they take as long to load as torch.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_NOVEL = 100  # `dtc` and `gcd` try up to so many, as DTC does
DIMENSIONS = 64  # principal components that k-means sees
RUNS = 5  # of k-means at each number of groups: one alone is a matter of luck
HIDINGS = 12  # of random halves of the known classes

SHARES = np.geomspace(0.01, 1, 60)  # candidates for the labelled share
KNOWN_PARTS = np.linspace(0, 1, 11)  # how much of a group may be known
# Most groups are all known or all novel. The prior counts for as many groups as this.
PRIOR = np.array([0.45, *[0.1 / 9] * 9, 0.45])
PRIOR_GROUPS = 3.0
# What follows was chosen on draws from Cars, CUB, Pets, CIFAR-100, and pixels of digits and Fashion-MNIST.
MIXED_IN = 0.3  # how much of the novel images' expected share in known groups is believed
CLOSE = 0.97  # counts and spreads nearer to each other than this are equal
WEIGHT = 0.5  # of what corrects for sizes, where known classes do not mix at all
MIXING = 0.4  # where they mix this much, it has no weight
FACTOR, SIZE_FACTOR = 2.5, 1.5  # differences in spread and in size are believed up to these
LEAN = 1.1  # one class too many costs less than one too few
MOST_MIXED = 4000  # images of the mixture
EVENNESS = 15.0  # weight of what equal sizes cost
UNLIKE = 2.0  # sizes that differ by this factor are not equal
NORMAL_80 = 1.28  # half of an 80 % interval of the normal distribution, in standard deviations
LEAST = 0.05  # a number below this part of the known classes is within the error of the labelled share
ALONE = 0.25  # squared error, in logarithms, expected of hiding, before any is hidden: worth one class
WIDTH = (0.1, 0.8, 1.2)  # the interval's squared half-width: alone, by squared error of hiding and by mixing


class Rows(Protocol):
    """Features (n, d) of which some rows are read; a tensor is one kind."""

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Evidence:
    """What the number was read from.

    At `groups[i]` groups, the known classes fill `per_known[i]` groups each, and `novel[i]` groups are novel.
    The first reading is `novel` where `per_known` is about one.
    """

    groups: tuple[int, ...]
    per_known: tuple[float, ...]
    novel: tuple[float, ...]
    by_groups: float  # the first reading
    by_spread: float  # the second: as many novel groups as make them as wide as known classes
    by_size: float  # what it would be were novel classes as large as known ones
    hidden: tuple[float, ...]  # the number again, each time with half of the known classes hidden, less these
    labelled_share: float  # of the images of known classes
    novel_images: float  # the share of unlabelled images that are novel
    mixing: float  # of two images in a group of known classes, how often they are of two classes
    images: int  # the sample that was looked at
    costs: dict[int, float]  # by number of novel classes: log-likelihood per image that equal sizes cost


@dataclass(frozen=True)
class Estimate:
    """The number of novel classes, an interval that should hold it in 80 % of cases, and why."""

    n_novel: int
    low: int
    high: int
    evidence: Evidence


@dataclass(frozen=True)
class Clustering:
    """Groups of images: of which each image is (n,), how large each is (k,), the variance within it (k,)."""

    group: Ints
    size: Ints
    spread: Floats


@dataclass(frozen=True)
class Reading:
    """What the labels say about clusterings, from coarse to fine."""

    share: float  # of the known classes' images that is labelled
    mixing: float
    known: Floats  # groups that the known classes fill, by clustering
    novel: Floats  # groups that are left
    by_groups: float
    by_spread: float
    by_size: float
    number: float


def estimate(z: Rows, labels: Tensor, n_known: int, *, seed: int, trained: bool = False) -> Estimate:
    """The number of novel classes in features z (n, d), labels (n,) with -1 for unlabelled ones.

    A sample of a few thousand images is enough. Known classes without a labelled image are taken for novel.
    `trained` says that the labels were used to learn these features.
    """
    rng = np.random.default_rng([seed, 0xC0])
    rows = _sample(labels.numpy(), n_known, rng)
    x, given = _reduced(z[torch.from_numpy(rows)]), _renumbered(labels.numpy()[rows])
    n, shown = len(x), int(given.max()) + 1

    def clusterings(k: int) -> list[Clustering]:
        return [_clustering(x, k, int(rng.integers(2**31))) for _ in range(RUNS)]

    fine = [clusterings(min(factor * (shown + 5), max(n // 8, shown + 1), n)) for factor in (4, 8)]
    share = _labelled_share(fine, given)
    groups, ladder = [], []
    for k in _rungs(shown, n):
        groups.append(k)
        ladder.append(clusterings(k))
        if _counts(ladder[-1], given, share)[0] > FACTOR * shown:
            break
    full = _read(fine, ladder, given, trained)

    hidden, errors = [], []
    for _ in range(HIDINGS if shown > 1 else 0):
        away = rng.permutation(shown)[: shown // 2]
        shorter = _renumbered(np.where(np.isin(given, away), -1, given))
        again = _read(fine, ladder, shorter, trained).number
        hidden.append(again - len(away))
        errors.append(math.log(again / (full.number + len(away))))
    missing = n_known - shown
    number = LEAN * math.hypot(full.number, LEAST * shown)
    width = _width(errors, shown, full.mixing)
    chosen = rows[rng.permutation(n)[:MOST_MIXED]]
    # Where groups say another number than sizes do, novel classes are not as large as known ones.
    alike = max(0.0, 1 - abs(math.log(full.by_groups / full.by_size)) / math.log(UNLIKE))
    number, costs = _weighed(z[torch.from_numpy(chosen)], labels.numpy()[chosen], number, width, alike)
    known_images = float((given >= 0).sum()) / full.share
    return Estimate(
        n_novel=max(1, round(number) - missing),
        low=max(0, math.floor(number * math.exp(-width)) - missing),
        high=max(1, math.ceil(number * math.exp(width)) - missing),
        evidence=Evidence(
            groups=tuple(groups),
            per_known=tuple((full.known / shown).tolist()),
            novel=tuple(full.novel.tolist()),
            by_groups=full.by_groups,
            by_spread=full.by_spread,
            by_size=full.by_size,
            hidden=tuple(hidden),
            labelled_share=full.share,
            novel_images=(n - known_images) / max(1, int((given < 0).sum())),
            mixing=full.mixing,
            images=n,
            costs=costs,
        ),
    )


def _weighed(
    z: Tensor, labels: Ints, number: float, width: float, alike: float
) -> tuple[float, dict[int, float]]:
    """The number, weighed by what equal class sizes cost, and these costs by number of novel classes.

    `alike`, from 0 to 1, says how far known and novel classes seem to be of one size.
    """
    given = torch.from_numpy(_renumbered(labels))
    n_known, n_free = int(given.max()) + 1, int((given < 0).sum())
    spread = max(width, math.log(1.5))
    candidates = {round(v) for v in np.geomspace(number * math.exp(-spread), number * math.exp(spread), 14)}
    candidates = {n for n in candidates | {round(number)} if 1 <= n < n_free}
    if n_known < 2 or len(candidates) < 2:
        return number, {}
    x = in_space(z, space(z, given, axes=256, ridge=100.0))
    tree, costs = Tree(x, given, n_known), dict[int, float]()
    for n in sorted(candidates):
        first, prior = tree.cut(n_known + n), expected_shares(given, n_known + n)
        even, free = (
            mixture(x, given, first, prior, balance, rounds=20).quality
            for balance in (evenness(given, n_known + n), 0.0)
        )
        costs[n] = free - even
    # A number that costs more than both of its neighbours was unlucky with its start.
    made = np.array([*costs.values()])
    made[1:-1] = np.minimum(made[1:-1], (made[:-2] + made[2:]) / 2)
    costs = dict(zip(costs, made.tolist(), strict=True))
    sigma = width / NORMAL_80
    best = min(costs, key=lambda n: math.log(n / number) ** 2 / (2 * sigma**2) + alike * EVENNESS * costs[n])
    return float(best), costs


def _sample(labels: Ints, n_known: int, rng: np.random.Generator) -> Ints:
    """Rows of an even sample: a few thousand, more where classes are many or labels few."""
    n, n_labelled = len(labels), int((labels >= 0).sum())
    if n_labelled == 0:
        raise ValueError("the number of classes cannot be estimated without labels")
    wanted = max(40 * n_known, 10 * n_known * n // n_labelled)
    rows = rng.permutation(n)[: min(max(wanted, 3000), 10_000)]
    if not (labels[rows] >= 0).any():
        rows[0] = np.flatnonzero(labels >= 0)[0]
    return rows


def _reduced(z: Tensor, dimensions: int = DIMENSIONS) -> Floats:
    """Principal components of features, which are scaled to unit length first.  (n, d) -> (n, dimensions)"""
    x = F.normalize(z.double(), dim=1)
    x = x - x.mean(dim=0)
    if x.shape[1] > dimensions:
        # Of the smaller of the two products, (d, d) or (n, n).
        if len(x) >= x.shape[1]:
            x = x @ eigh(x.T @ x)[1][:, -dimensions:]
        else:
            values, vectors = eigh(x @ x.T)
            x = vectors[:, -dimensions:] * values[-dimensions:].clamp_min(0).sqrt()
    reduced: Floats = x.numpy()
    return reduced


def _renumbered(labels: Ints) -> Ints:
    """Labels in which the classes that occur are 0, 1, ..."""
    classes = np.unique(labels[labels >= 0])
    return np.where(labels >= 0, np.searchsorted(classes, labels), -1)


def _rungs(n_known: int, n: int) -> Iterable[int]:
    """Numbers of groups to try: in steps of a fifth, from as many as are known to a third of the images."""
    k, most = n_known, max(n_known + 1, n // 3)
    while k <= min(most, n):
        yield k
        k = max(k + 1, round(1.2 * k))


def _clustering(x: Floats, k: int, seed: int) -> Clustering:
    group = k_means(torch.from_numpy(x), k, seed, starts=1)[1].numpy()
    size = np.bincount(group, minlength=k)
    total = np.stack([np.bincount(group, column, k) for column in x.T], axis=1)
    squares = np.bincount(group, (x**2).sum(axis=1), k) - (total**2).sum(axis=1) / np.maximum(size, 1)
    return Clustering(group, size, np.maximum(squares, 0) / np.maximum(size - 1, 1))


def _read(
    fine: list[list[Clustering]], ladder: list[list[Clustering]], labels: Ints, trained: bool
) -> Reading:
    """The number of novel classes, a fraction, from clusterings of increasing fineness."""
    n_known = int(labels.max()) + 1
    share = _labelled_share(fine, labels)
    known, novel, known_spread, novel_spread = np.array([_counts(c, labels, share) for c in ladder]).T
    known_images = float((labels >= 0).sum()) / share
    by_size = max(0.5, n_known * (len(labels) / known_images - 1))
    # Groups are classes where the known ones fill as many groups as they are. That may hold for a while, as
    # small novel classes come apart: then spread decides. Features that were learned from the labels make
    # known classes narrow, whatever novel ones are: then sizes decide.
    first, last = (_crossing(known - n_known * close) for close in (CLOSE, 1 / CLOSE))
    narrowed = np.minimum.accumulate(novel_spread)
    by_spread = max(0.5, _between(novel, _crossing(_between(known_spread, first) / CLOSE - narrowed)))
    least = max(0.5, _between(novel, first))
    by_groups = min(max(least, by_size if trained else by_spread), max(least, _between(novel, last)))
    mixing = _mixing(ladder[round(first)], labels, share)
    # Readings differ most where one of them is wrong: they pull only so far.
    most = np.log([FACTOR, SIZE_FACTOR])
    pull = np.log([by_spread / by_groups, by_groups / by_size]).clip(-most, most)
    weight = 0.0 if trained else WEIGHT * max(0.0, 1 - mixing / MIXING)
    number = by_groups * math.exp(weight * float(pull.sum()))
    return Reading(share, mixing, known, novel, by_groups, by_spread, by_size, number)


def _crossing(rising: Floats) -> float:
    """The position, a fraction, at which a rising curve first reaches zero; its end if it does not."""
    above = np.flatnonzero(rising >= 0)
    if len(above) == 0:
        return float(len(rising) - 1)
    i = int(above[0])
    return 0.0 if i == 0 else i - float(rising[i] / (rising[i] - rising[i - 1]))


def _between(curve: Floats, position: float) -> float:
    return float(np.interp(position, np.arange(len(curve)), curve))


def _labelled(clustering: Clustering, labels: Ints) -> Ints:
    """How many labelled images each group has.  (k,)"""
    return np.bincount(clustering.group[labels >= 0], minlength=len(clustering.size))


def _counts(clusterings: list[Clustering], labels: Ints, share: float) -> Floats:
    """Groups that known classes fill, groups that are left, and the mean spread within either.  (4,)"""
    rows = []
    for clustering in clusterings:
        real = clustering.size > 0
        size, spread = clustering.size[real], clustering.spread[real]
        part = _known_parts(_labelled(clustering, labels)[real], size, np.array([share]))[1][0]
        inside, outside = part * size * (size > 1), (1 - part) * size * (size > 1)
        mean = [float((w * spread).sum() / max(w.sum(), 1e-9)) for w in (inside, outside)]
        rows.append([part.sum(), (1 - part).sum(), *mean])
    means: Floats = np.mean(rows, axis=0)
    return means


def _known_parts(labelled: Ints, size: Ints, shares: Floats) -> tuple[Floats, Floats]:
    """How well each labelled share explains the groups, and how much of each group is then known.

    A group of which a part p is known has Binomial(size, p * share) labelled images. The distribution of p
    over groups is fitted (EM, from the prior).  (k,), (k,), (s,) -> (s,), (s, k)
    """
    chance = np.clip(shares[:, None] * KNOWN_PARTS, 1e-4, 1 - 1e-4)[:, None]  # (s, 1, parts)
    log_likelihood = labelled[:, None] * np.log(chance) + (size - labelled)[:, None] * np.log1p(-chance)
    best = log_likelihood.max(axis=2, keepdims=True)
    likelihood = np.exp(log_likelihood - best)  # (s, k, parts)
    weights = np.tile(PRIOR, (len(shares), 1))[:, None]  # (s, 1, parts)
    for _ in range(12):
        joint = likelihood * weights
        posterior = joint / joint.sum(axis=2, keepdims=True)
        weights = posterior.sum(axis=1, keepdims=True) + PRIOR_GROUPS * PRIOR
        weights /= weights.sum(axis=2, keepdims=True)
    fit = (np.log((likelihood * weights).sum(axis=2)) + best[:, :, 0]).sum(axis=1)
    return fit + PRIOR_GROUPS * (PRIOR * np.log(weights[:, 0])).sum(axis=1), posterior @ KNOWN_PARTS


def _labelled_share(fine: list[list[Clustering]], labels: Ints) -> float:
    """The share of the images of known classes that is labelled, from groups finer than classes."""
    n, n_labelled, n_known = len(labels), int((labels >= 0).sum()), int(labels.max()) + 1
    shares = SHARES[n_labelled / n <= SHARES]
    found = []
    for clusterings in fine:
        fit = np.zeros(len(shares))
        for c in clusterings:
            fit += _known_parts(_labelled(c, labels), c.size, shares)[0] / len(clusterings)
        chance = np.exp(fit - fit.max())
        first = math.exp(float((chance * np.log(shares)).sum() / chance.sum()))
        # Novel images in known groups make the share look smaller. Known images of other classes there, which
        # labels show, tell how many: in proportion to what there is of either.
        mixing, share = _mixing(clusterings, labels, first), first
        for _ in range(5):
            known = n_labelled / share
            others = max(0.0, n - known) / (known * max(1 - 1 / n_known, 0.3))
            share = min(1.0, first * (1 + MIXED_IN * mixing * others))
        found.append(math.log(share))
    return math.exp(sum(found) / len(found))


def _mixing(clusterings: list[Clustering], labels: Ints, share: float) -> float:
    """Of two labelled images in one group that is mostly known, how often they are of two classes."""
    n_known, means = int(labels.max()) + 1, []
    for c in clusterings:
        table = confusion(labels[labels >= 0], c.group[labels >= 0], n_known, len(c.size))  # (k, n_known)
        labelled = table.sum(axis=1)
        known = (labelled > 0.6 * share * c.size) & (labelled > 1)
        same = (table * (table - 1)).sum(axis=1)[known] / (labelled[known] - 1)
        means.append(1 - same.sum() / max(labelled[known].sum(), 1) if known.any() else 0.0)
    return float(np.clip(np.mean(means), 0, 0.8))


def _width(errors: list[float], n_known: int, mixing: float) -> float:
    """Half of the interval's width, in logarithms, from errors with hidden classes.

    With few known classes there is little to hide, and the little that was seen is mistrusted.
    """
    seen = sum(error**2 for error in errors) / max(len(errors), 1)
    trust = n_known / (n_known + 1) if errors else 0.0
    hiding = trust * seen + (1 - trust) * ALONE
    return math.sqrt(WIDTH[0] + WIDTH[1] * hiding + WIDTH[2] * mixing**2)


def dtc(z: Rows, labels: Tensor, n_known: int, *, seed: int) -> int:
    """The number of novel classes by the estimator of DTC (Han, Vedaldi and Zisserman, 2019).

    Three in five of the known classes anchor a constrained k-means, the others are treated as unlabelled.
    Over numbers of novel classes from 0 on, one is best by accuracy on these others, one by the silhouette of
    all that is not anchored. The mean of the two is taken, rounded up. Groups with less than a hundredth of
    the unlabelled images of the largest are dropped. Unlike DTC's, our unlabelled images include known
    classes; these are taken off. Features are reduced, and of many images a sample is used.
    """
    rng = np.random.default_rng([seed, 0xD7C])
    rows = _sample(labels.numpy(), n_known, rng)[:2000]
    x, given = torch.from_numpy(_reduced(z[torch.from_numpy(rows)])).float(), labels.numpy()[rows]
    classes = rng.permutation(np.unique(given[given >= 0]))
    if len(classes) == 0:
        return 1
    n_anchors = max(1, round(0.6 * len(classes)))
    place = np.full(n_known + 1, -1)  # the last is for -1
    place[classes[:n_anchors]] = np.arange(n_anchors)
    anchored = place[given]
    free, probes = anchored < 0, np.isin(given, classes[n_anchors:])
    distances = torch.cdist(x[free][:1000], x[free])

    accuracy, silhouette, groupings = [], [], []
    for k in range(n_known, min(n_known + MOST_NOVEL, int(free.sum()) + n_anchors + 1)):
        centres = semi_supervised(x, torch.from_numpy(anchored), n_anchors, max(k, n_anchors), seed, 3, 30)
        nearest = torch.cdist(x, centres).argmin(dim=1).numpy()
        groupings.append(np.where(free, nearest, anchored))
        silhouette.append(_silhouette(distances, torch.from_numpy(groupings[-1][free])))
        table = confusion(given[probes], groupings[-1][probes], n_known, k)
        accuracy.append(matched(table))
    best = (_last_best(accuracy) if probes.any() else _last_best(silhouette)) + _last_best(silhouette)
    sizes = np.bincount(groupings[-(-best // 2)][given < 0])
    return max(1, int((sizes > 0.01 * sizes.max(initial=0)).sum()) - n_known)


def _last_best(scores: list[float] | list[int]) -> int:
    return int(np.flatnonzero(np.array(scores) == max(scores))[-1])


def _silhouette(distances: Tensor, group: Tensor) -> float:
    """The mean silhouette of the first m images, from their distances to all n.  (m, n), (n,)"""
    counts = torch.bincount(group)
    sums = distances @ F.one_hot(group, len(counts)).to(distances)  # (m, k)
    own = group[: len(distances), None]
    inside = (sums.gather(1, own) / (counts[own] - 1).clamp_min(1)).flatten()
    means = torch.where(counts > 0, sums / counts.clamp_min(1), torch.inf).scatter(1, own, torch.inf)
    outside = means.amin(dim=1)
    silhouettes = (outside - inside) / torch.maximum(inside, outside).clamp_min(1e-12)
    # By convention, an image alone in its group has none, and so has a single group.
    real = (counts[own].flatten() > 1) & outside.isfinite()
    return float(torch.where(real, silhouettes, 0.0).mean())


def gcd(z: Rows, labels: Tensor, n_known: int, *, seed: int) -> int:
    """The number of novel classes by the estimator of GCD (Vaze, Han, Vedaldi and Zisserman, 2022).

    k-means on all images. Brent's bounded search finds the number of groups at which the clustering accuracy
    on labelled images is highest. Features are reduced, and of many images a sample is used.
    """
    from scipy.optimize import minimize_scalar

    rows = _sample(labels.numpy(), n_known, np.random.default_rng([seed, 0x6CD]))
    x, given = torch.from_numpy(_reduced(z[torch.from_numpy(rows)])), labels.numpy()[rows]
    labelled, most = given >= 0, min(n_known + MOST_NOVEL, len(x))
    if most <= n_known:
        return 1

    def loss(k: float) -> float:
        group = k_means(x, int(k), seed, starts=3)[1].numpy()
        return -matched(confusion(given[labelled], group[labelled], n_known, int(k))) / int(labelled.sum())

    found = minimize_scalar(loss, bounds=(n_known, most), method="bounded")
    return max(1, int(found.x) - n_known)

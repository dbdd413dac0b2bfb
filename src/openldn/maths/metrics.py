"""Accuracy under named protocols, all computed from one confusion matrix.

Class ids 0 .. n_known-1 are the known classes in order; the ids of novel classes follow in arbitrary order.
The matrix is sized by the number of classes, never by what happened to be predicted. The protocol `authors`
alone, which has to be asked for, is that of the code of OpenLDN's authors with its error.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# scikit-learn and scipy are imported late: together they take as long to load as torch.

Counts = NDArray[np.int64]
Scores = dict[str, float]

PROTOCOLS = ("openldn", "orca", "gcd", "anchored")


def confusion(true: ArrayLike, predicted: ArrayLike, n_classes: int, n_ids: int) -> Counts:
    """counts[id, class]: how many images of the class got the id.  (n_ids, n_classes)"""
    true, predicted = np.asarray(true, np.int64), np.asarray(predicted, np.int64)
    if len(true) and (min(true.min(), predicted.min()) < 0 or true.max() >= n_classes):
        raise ValueError("class ids lie outside 0 .. n_classes-1")
    n_ids = max(n_ids, int(predicted.max(initial=-1)) + 1)
    flat = np.bincount(predicted * n_classes + true, minlength=n_ids * n_classes)
    return flat.reshape(-1, n_classes).astype(np.int64)


def match(counts: Counts) -> dict[int, int]:
    """The one-to-one assignment id -> class under which most images agree (Hungarian)."""
    from scipy.optimize import linear_sum_assignment

    ids, classes = linear_sum_assignment(counts, maximize=True)
    return dict(zip(ids.tolist(), classes.tolist(), strict=True))


def matched(counts: Counts) -> int:
    """How many images agree under the best one-to-one assignment."""
    return int(sum(counts[i, c] for i, c in match(counts).items()))


def protocols(counts: Counts, n_known: int, *, ordered: bool = True) -> dict[str, Scores]:
    """Known, novel and all accuracy in percent under each protocol; NaN where there are no images.

    `ordered` says whether ids below n_known are the known classes by construction. Where clusters were named
    by the labelled images afterwards, known accuracy is by Hungarian matching, as in the paper, except for
    `anchored`, which takes ids as they are.
    """
    known, novel = counts[:, :n_known], counts[:, n_known:]
    n_known_images, n_novel_images = int(known.sum()), int(novel.sum())

    by_name = int(np.trace(known))
    plain = by_name if ordered else matched(known)
    novel_ids = matched(counts[n_known:, n_known:])
    one = match(counts)
    everything = sum(int(counts[i, c]) for i, c in one.items())
    one_known = sum(int(counts[i, c]) for i, c in one.items() if c < n_known)

    def scores(known_hits: int, novel_hits: int, all_hits: int) -> Scores:
        return {
            "known": _percent(known_hits, n_known_images),
            "novel": _percent(novel_hits, n_novel_images),
            "all": _percent(all_hits, n_known_images + n_novel_images),
        }

    return {
        "openldn": scores(plain, novel_ids, everything),
        "orca": scores(plain, matched(novel), everything),
        "gcd": scores(one_known, everything - one_known, everything),
        "anchored": scores(by_name, novel_ids, by_name + novel_ids),
    }


def authors(counts: Counts, n_known: int) -> Scores:
    """The metric of the authors' code: equal to `openldn` where every id is predicted, else mostly lower.

    Known accuracy is plain.
    """
    known, novel = counts[:, :n_known], counts[:, n_known:]
    return {
        "known": _percent(int(np.trace(known)), int(known.sum())),
        "novel": _percent(_authors_matched(counts[n_known:, n_known:]), int(novel.sum())),
        "all": _percent(_authors_matched(counts), int(counts.sum())),
    }


def _authors_matched(counts: Counts) -> int:
    """How many images agree if k different ids are predicted and only ids and classes below k are matched.

    Images with other ids are taken for class 0.
    """
    k = int((counts.sum(axis=1) > 0).sum())
    return matched(counts[:k, :k]) + int(counts[k:, :1].sum())


def evaluate(
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    n_known: int,
    n_classes: int,
    n_ids: int | None = None,
    ordered: bool = True,
    as_authors: bool = False,
) -> dict[str, Any]:
    """Every protocol, with NMI and ARI, as one line of `metrics.jsonl` holds it; `authors` if asked for."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    counts = confusion(true, predicted, n_classes, max(n_ids or n_classes, n_classes))
    asked = {"authors": authors(counts, n_known)} if as_authors else {}
    return {
        "protocols": {**protocols(counts, n_known, ordered=ordered), **asked},
        "nmi": float(normalized_mutual_info_score(true, predicted)),
        "ari": float(adjusted_rand_score(true, predicted)),
        "ordered": ordered,
    }


def evaluate_labels(
    true: Sequence[Any], predicted: ArrayLike, known: Sequence[Any], **others: Any
) -> dict[str, Any]:
    """`evaluate` for true classes by name: those that are not among the `known` ones are novel."""
    novel = sorted({*true} - {*known}, key=str)
    ids = {name: i for i, name in enumerate([*known, *novel])}
    n_known, n_classes = len(known), len(ids)
    true = [ids[name] for name in true]
    return evaluate(true, predicted, n_known=n_known, n_classes=n_classes, **others)


def headline(result: Mapping[str, Any]) -> Scores:
    """The paper's three figures out of an evaluation."""
    scores: Scores = result["protocols"]["openldn"]
    return scores


def pair_auc(similarity: ArrayLike, classes: ArrayLike) -> float:
    """ROC AUC of similarities (n, n) for "two images are of the same class"; NaN if all pairs are alike.

    0.5 is chance, 1 is perfect. The diagonal is left out.
    """
    from sklearn.metrics import roc_auc_score

    classes = np.asarray(classes)
    off_diagonal = ~np.eye(len(classes), dtype=bool)
    same = (classes[:, None] == classes[None, :])[off_diagonal]
    if same.all() or not same.any():
        return math.nan
    return float(roc_auc_score(same, np.asarray(similarity)[off_diagonal]))


def _percent(hits: int, of: int) -> float:
    return 100.0 * hits / of if of else math.nan

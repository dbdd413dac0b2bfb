"""The four protocols against brute force over all assignments, and cases worked out by hand."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from openldn.maths.metrics import (
    PROTOCOLS,
    confusion,
    evaluate,
    headline,
    match,
    matched,
    pair_auc,
    protocols,
)

Pairs = list[tuple[int, int]]  # (class, id) of each image


def assignments(ids: list[int], classes: list[int]) -> list[dict[int, int]]:
    """Every way to give as many ids as possible a class of their own."""
    if len(ids) <= len(classes):
        return [dict(zip(ids, chosen)) for chosen in itertools.permutations(classes, len(ids))]
    return [dict(zip(chosen, classes)) for chosen in itertools.permutations(ids, len(classes))]


def best(images: Pairs, ids: list[int], classes: list[int]) -> int:
    count = Counter(images)
    return max(sum(count[c, i] for i, c in assignment.items()) for assignment in assignments(ids, classes))


def percent(hits: int, of: int) -> float:
    return 100 * hits / of if of else math.nan


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b)


def check(true: list[int], predicted: list[int], n_known: int, n_classes: int, n_ids: int) -> None:
    """Every figure of every protocol, straight from its definition."""
    images = list(zip(true, predicted, strict=True))
    ids, classes = list(range(max(n_ids, n_classes))), list(range(n_classes))
    known, novel = classes[:n_known], classes[n_known:]
    known_images = [(c, i) for c, i in images if c < n_known]
    novel_images = [(c, i) for c, i in images if c >= n_known]
    n, n_k, n_n = len(images), len(known_images), len(novel_images)
    result = evaluate(true, predicted, n_known=n_known, n_classes=n_classes, n_ids=n_ids)["protocols"]
    assert tuple(result) == PROTOCOLS

    plain = sum(c == i for c, i in known_images)
    among_novel = best(novel_images, ids[n_known:], novel)
    everything = best(images, ids, classes)
    expected = {
        "openldn": (plain, among_novel, everything),
        "orca": (plain, best(novel_images, ids, novel), everything),
        "anchored": (plain, among_novel, plain + among_novel),
    }
    for protocol, hits in expected.items():
        for part, hit, of in zip(("known", "novel", "all"), hits, (n_k, n_n, n), strict=True):
            assert same(result[protocol][part], percent(hit, of)), (protocol, part)

    # There may be several best assignments; the figures must be read off one of them.
    count = Counter(images)
    readings = set()
    for assignment in assignments(ids, classes):
        hits_k = sum(count[c, i] for i, c in assignment.items() if c in known)
        hits_n = sum(count[c, i] for i, c in assignment.items() if c in novel)
        if hits_k + hits_n == everything:
            readings.add((hits_k, hits_n))
    assert any(
        same(result["gcd"]["known"], percent(k, n_k)) and same(result["gcd"]["novel"], percent(m, n_n))
        for k, m in readings
    )
    assert same(result["gcd"]["all"], percent(everything, n))


# -------------------------------------------------------------------------- against brute force


@pytest.mark.parametrize(("n_known", "n_classes"), [(2, 3), (2, 4), (3, 4), (3, 5), (1, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_against_all_permutations(n_known: int, n_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, n_classes, 40)
    right = rng.random(40) < 0.4
    predicted = np.where(right, (true + 1) % n_classes, rng.integers(0, n_classes, 40))
    check(true.tolist(), predicted.tolist(), n_known, n_classes, n_classes)


@pytest.mark.parametrize("seed", range(4))
def test_more_ids_than_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, 4, 40).tolist(), rng.integers(0, 6, 40).tolist()
    check(true, predicted, 2, 4, 6)


@pytest.mark.parametrize("n_ids", [1, 2, 3])
def test_fewer_ids_than_classes(n_ids: int) -> None:
    rng = np.random.default_rng(n_ids)
    true, predicted = rng.integers(0, 5, 40).tolist(), rng.integers(0, n_ids, 40).tolist()
    check(true, predicted, 2, 5, n_ids)


@pytest.mark.parametrize("used", [[0, 1], [0], [1, 4], [2, 3, 4], [4]])
def test_empty_clusters_and_predictions_all_known(used: list[int]) -> None:
    rng = np.random.default_rng(0)
    check(rng.integers(0, 5, 40).tolist(), rng.choice(used, 40).tolist(), 2, 5, 5)


@pytest.mark.parametrize("present", [[0, 1], [2, 3, 4], [0], [4]])
def test_classes_without_images(present: list[int]) -> None:
    """No known images: no known accuracy. No novel ones: no novel accuracy."""
    rng = np.random.default_rng(1)
    true, predicted = rng.choice(present, 30).tolist(), rng.integers(0, 5, 30).tolist()
    check(true, predicted, 2, 5, 5)
    for scores in evaluate(true, predicted, n_known=2, n_classes=5)["protocols"].values():
        assert math.isnan(scores["known"]) == (min(present) >= 2)
        assert math.isnan(scores["novel"]) == (max(present) < 2)
        assert not math.isnan(scores["all"])


def test_no_images_at_all() -> None:
    for scores in protocols(confusion([], [], 4, 4), 2).values():
        assert all(math.isnan(figure) for figure in scores.values())


# ------------------------------------------------------------------------------------- by hand

TEN = np.repeat(np.arange(10), 50)  # ten classes of fifty images, the first five known


def figures(predicted: np.ndarray) -> dict[str, tuple[float, float, float]]:
    result = evaluate(TEN, predicted, n_known=5, n_classes=10)["protocols"]
    return {name: (s["known"], s["novel"], s["all"]) for name, s in result.items()}


def test_perfect_up_to_the_order_of_the_novel_ids() -> None:
    predicted = np.where(TEN < 5, TEN, 14 - TEN)
    assert figures(predicted) == dict.fromkeys(PROTOCOLS, (100, 100, 100))


def test_case_a_every_novel_class_falls_into_a_known_id() -> None:
    """ORCA's novel figure does not see it; the others do."""
    predicted = TEN % 5
    found = figures(predicted)
    assert found["openldn"] == (100, 0, 50)
    assert found["orca"] == (100, 100, 50)
    assert found["anchored"] == (100, 0, 50)
    assert found["gcd"] == (100, 0, 50)


def test_case_a_without_ties() -> None:
    """With fewer novel images than known ones the assignment over everything is the only one."""
    keep = np.arange(500) % 50 < np.where(TEN < 5, 50, 40)
    result = evaluate(TEN[keep], TEN[keep] % 5, n_known=5, n_classes=10)["protocols"]
    assert result["gcd"] == {"known": 100, "novel": 0, "all": pytest.approx(100 * 250 / 450)}
    assert result["orca"]["novel"] == 100
    assert result["openldn"]["novel"] == 0


def test_case_b_known_classes_change_places() -> None:
    """Plain accuracy sees it; a Hungarian over everything does not."""
    predicted = np.where(TEN < 2, 1 - TEN, TEN)
    found = figures(predicted)
    assert found["openldn"] == (60, 100, 100)
    assert found["orca"] == (60, 100, 100)
    assert found["gcd"] == (100, 100, 100)
    assert found["anchored"] == (60, 100, 80)


def test_case_c_one_novel_class_merges_into_another() -> None:
    predicted = np.where(TEN == 9, 8, TEN)
    assert figures(predicted) == dict.fromkeys(PROTOCOLS, (100, 80, 90))


def test_case_d_a_known_class_falls_into_a_novel_id() -> None:
    """Class 0 is called 9, and class 9 is called 0: right for GCD alone."""
    predicted = np.select([TEN == 0, TEN == 9], [9, 0], TEN)
    found = figures(predicted)
    assert found["openldn"] == (80, 80, 100)
    assert found["orca"] == (80, 100, 100)
    assert found["gcd"] == (100, 100, 100)
    assert found["anchored"] == (80, 80, 80)


# --------------------------------------------------------------------------------- order of the ids


def test_unordered_ids_are_matched_for_the_known_figure_too() -> None:
    """Clusters numbered anyhow: the same figures as if the numbers had been right."""
    predicted = np.where(TEN == 9, 8, TEN)
    other_numbers = (predicted + 3) % 10
    ordered = evaluate(TEN, other_numbers, n_known=5, n_classes=10)
    unordered = evaluate(TEN, other_numbers, n_known=5, n_classes=10, ordered=False)
    assert ordered["ordered"] is True
    assert unordered["ordered"] is False
    assert ordered["protocols"]["openldn"]["known"] == 0
    for protocol in PROTOCOLS:  # but where ids are to be taken as they are
        assert unordered["protocols"][protocol]["known"] == (0 if protocol == "anchored" else 100)
    assert unordered["protocols"]["orca"] == {"known": 100, "novel": 80, "all": 90}
    assert unordered["protocols"]["gcd"] == {"known": 100, "novel": 80, "all": 90}


@pytest.mark.parametrize("seed", range(4))
def test_unordered_known_accuracy_against_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, 5, 40), rng.integers(0, 5, 40)
    result = evaluate(true, predicted, n_known=3, n_classes=5, ordered=False)["protocols"]
    images = [(c, i) for c, i in zip(true.tolist(), predicted.tolist(), strict=True) if c < 3]
    expected = percent(best(images, list(range(5)), [0, 1, 2]), len(images))
    for protocol in ("openldn", "orca"):
        assert result[protocol]["known"] == pytest.approx(expected)
    by_name = percent(sum(c == i for c, i in images), len(images))
    assert result["anchored"]["known"] == pytest.approx(by_name)


# ------------------------------------------------------------------------------------- the parts


def test_confusion_counts_and_is_sized_by_the_classes() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 3, 50), rng.integers(0, 2, 50)
    counts = confusion(true, predicted, 3, 4)
    assert counts.shape == (4, 3)
    for i in range(4):
        for c in range(3):
            assert counts[i, c] == sum((t, p) == (c, i) for t, p in zip(true, predicted, strict=True))
    assert confusion([0], [6], 3, 4).shape == (7, 3)


@pytest.mark.parametrize(("true", "predicted"), [([3], [0]), ([-1], [0]), ([0], [-1])])
def test_ids_that_cannot_be_are_refused(true: list[int], predicted: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        confusion(true, predicted, 3, 3)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (1, 4), (4, 1)])
def test_match_is_one_to_one_and_the_best(shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).integers(0, 9, shape)
    ids, classes = list(range(shape[0])), list(range(shape[1]))
    found = match(counts)
    assert len(found) == len(set(found.values())) == min(shape)
    most = max(sum(counts[i, c] for i, c in a.items()) for a in assignments(ids, classes))
    assert sum(counts[i, c] for i, c in found.items()) == matched(counts) == most


def test_evaluate_holds_nmi_and_ari() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 30).tolist()
    predicted = [c if rng.random() < 0.6 else int(rng.integers(0, 4)) for c in true]
    result = evaluate(true, predicted, n_known=2, n_classes=4)
    n, joint = 30, Counter(zip(true, predicted, strict=True))
    rows, columns = Counter(true), Counter(predicted)

    def entropy(counts: Counter) -> float:
        return -sum(k / n * math.log(k / n) for k in counts.values())

    mutual = entropy(rows) + entropy(columns) - entropy(joint)
    assert result["nmi"] == pytest.approx(2 * mutual / (entropy(rows) + entropy(columns)))
    pairs = list(itertools.combinations(range(n), 2))
    a = sum(true[i] == true[j] for i, j in pairs)
    b = sum(predicted[i] == predicted[j] for i, j in pairs)
    both = sum(true[i] == true[j] and predicted[i] == predicted[j] for i, j in pairs)
    chance = a * b / len(pairs)
    assert result["ari"] == pytest.approx((both - chance) / ((a + b) / 2 - chance))
    assert headline(result) == result["protocols"]["openldn"]


# ------------------------------------------------------------------------------------------ pairs


def naive_auc(similarity: np.ndarray, classes: np.ndarray) -> float:
    """How often a pair of one class is more similar than a pair of two; ties count half."""
    n = len(classes)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    ones = [similarity[i, j] for i, j in pairs if classes[i] == classes[j]]
    others = [similarity[i, j] for i, j in pairs if classes[i] != classes[j]]
    wins = sum((a > b) + (a == b) / 2 for a in ones for b in others)
    return wins / (len(ones) * len(others))


@pytest.mark.parametrize("seed", range(5))
def test_pair_auc_against_counting(seed: int) -> None:
    """Similarities need not be symmetric, and many are equal."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation([0, 0, 0, 1, 1, 2, 2, 2])
    alike = classes[:, None] == classes[None, :]
    similarity = (rng.random((8, 8)) + 0.3 * alike).round(1)
    np.fill_diagonal(similarity, rng.random(8) * 100)  # must not matter
    assert pair_auc(similarity, classes) == pytest.approx(naive_auc(similarity, classes))


def test_pair_auc_by_hand() -> None:
    classes = [0, 0, 1, 1]
    alike = np.equal.outer(classes, classes)
    assert pair_auc(alike, classes) == 1
    assert pair_auc(~alike, classes) == 0
    assert pair_auc(np.full((4, 4), 0.7), classes) == 0.5
    assert math.isnan(pair_auc(np.eye(3), [0, 0, 0]))
    assert math.isnan(pair_auc(np.eye(3), [0, 1, 2]))
    assert math.isnan(pair_auc(np.eye(1), [0]))


def by_the_authors(true: list[int], predicted: list[int], offset: int, of: int) -> float:
    """Their metric, image by image: ids and classes are counted from `offset`, ids below it are wrong."""
    valid = [(t - offset, p - offset) for t, p in zip(true, predicted) if p >= offset]
    k = len({p for _, p in valid})
    table = np.zeros((k, k), int)
    for t, p in valid:
        if t < k and p < k:
            table[p, t] += 1
    named = max(assignments([*range(k)], [*range(k)]), key=lambda assignment: total(table, assignment))
    return percent(sum(named.get(p, 0) == t for t, p in valid), of)


def total(table: np.ndarray, assignment: dict[int, int]) -> int:
    return sum(int(table[i, c]) for i, c in assignment.items())


@pytest.mark.parametrize("seed", range(40))
def test_the_authors_metric(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_known, n_classes = 2, 6
    true = rng.integers(0, n_classes, 60)
    predicted = np.where(rng.random(60) < 0.6, true, rng.integers(0, n_classes, 60))
    for empty in rng.permutation(n_classes)[: seed % 4]:  # ids that are never predicted
        predicted[predicted == empty] = 0
    found = evaluate(true, predicted, n_known=n_known, n_classes=n_classes, as_authors=True)["protocols"]
    novel = true >= n_known
    mine = found["authors"]
    assert mine["known"] == found["openldn"]["known"]
    assert same(mine["all"], by_the_authors(true.tolist(), predicted.tolist(), 0, 60))
    expected = by_the_authors(true[novel].tolist(), predicted[novel].tolist(), n_known, int(novel.sum()))
    assert same(mine["novel"], expected)
    if len({*predicted.tolist()}) == n_classes and len({*predicted[novel & (predicted >= 2)].tolist()}) == 4:
        assert mine == found["openldn"]


def test_the_authors_metric_where_a_cluster_in_the_middle_is_empty() -> None:
    """Five perfect classes but one that joined the first: they say 60, not 80."""
    true = np.repeat(np.arange(5), 10)
    found = evaluate(true, np.where(true == 2, 0, true), n_known=0, n_classes=5, as_authors=True)
    assert found["protocols"]["authors"]["novel"] == 60
    assert found["protocols"]["openldn"]["novel"] == 80
    assert tuple(evaluate(true, true, n_known=0, n_classes=5)["protocols"]) == PROTOCOLS

"""Batches: every pass covers all rows once, and everything depends on the seed alone."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from openldn.data.batches import Batch, Batches, Stream
from openldn.data.benchmark import Benchmark
from openldn.data.problem import UNLABELLED, Problem


def benchmark(per_class: tuple[int, ...] = (30, 17, 25, 9, 12), flip: bool = True) -> Benchmark:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(per_class)), per_class))
    images = torch.from_numpy(rng.integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8))
    classes = tuple("abcdefghij"[: len(per_class)])
    return Benchmark.in_memory("toy", (images, labels), (images[:10], labels[:10]), classes, flip)


def problem(labels: list[int], classes: tuple[str | int, ...] = ("cat", "dog"), n_novel: int = 2) -> Problem:
    images = torch.arange(len(labels) * 64).remainder(251).to(torch.uint8).view(-1, 1, 8, 8)
    return Problem(images, torch.tensor(labels), tuple(map(str, labels)), classes, n_novel)


@pytest.mark.parametrize(("n", "batch"), [(10, 5), (10, 3), (7, 7), (3, 8), (1, 4), (13, 1)])
def test_every_pass_covers_each_row_once(n: int, batch: int) -> None:
    """Also where a batch is longer than the pool, or ends in the middle of a pass."""
    rows = torch.arange(n) * 2 + 5
    stream = Stream(rows, batch, (1, 2))
    drawn = torch.cat([stream[i] for i in range(6 * n)]).tolist()
    passes = [drawn[k : k + n] for k in range(0, len(drawn), n)]
    assert len(passes) >= 6
    assert all(sorted(one) == rows.tolist() for one in passes)
    if n > 5:
        assert all(a != b for a, b in itertools.pairwise(passes))  # shuffled anew each time
        assert rows.tolist() not in passes


@pytest.mark.parametrize(("n", "batch"), [(10, 3), (3, 8), (7, 7)])
def test_random_access_equals_sequential(n: int, batch: int) -> None:
    sequential = Stream(torch.arange(n), batch, (4,))
    expected = [sequential[i].tolist() for i in range(20)]
    assert Stream(torch.arange(n), batch, (4,))[7].tolist() == expected[7]
    anyhow = Stream(torch.arange(n), batch, (4,))
    for i in [19, 3, 4, 0, 7, 7, 12, 2]:
        assert anyhow[i].tolist() == expected[i]
    assert [len(one) for one in expected] == [batch] * 20


def test_streams_differ_by_seed() -> None:
    seeds = [(0,), (1,), (0, 1), (1, 0, 1)]
    drawn = [tuple(Stream(torch.arange(50), 50, seed)[0].tolist()) for seed in seeds]
    assert len(set(drawn)) == len(seeds)


def test_batches_of_no_rows() -> None:
    assert Stream(torch.arange(5), 0, (0,))[3].tolist() == []
    assert Stream(torch.empty(0, dtype=torch.int64), 0, (0,))[0].dtype == torch.int64


def batches(given: Problem, seed: tuple[int, ...] = (1, 2), n_labelled: int = 4) -> Batches:
    return Batches(
        given,
        n_labelled=n_labelled,
        n_unlabelled=6,
        labelled_views=("weak",),
        unlabelled_views=("weak", "strong"),
        seed=seed,
        device=torch.device("cpu"),
    )


def equal(a: Batch, b: Batch) -> bool:
    return (
        all(torch.equal(x, y) for x, y in zip([*a.x, *a.u], [*b.x, *b.u], strict=True))
        and torch.equal(a.y, b.y)
        and torch.equal(a.rows, b.rows)
    )


def test_batches_follow_their_seed() -> None:
    """And nothing else: not torch's generator, nor which batches were asked for before."""
    given, _ = benchmark().split(known=0.6, labelled=0.5, seed=0)
    made = batches(given)
    uninterrupted = [made[i] for i in range(12)]
    for i in (11, 3, 7):
        torch.manual_seed(i)
        assert equal(batches(given)[i], uninterrupted[i])  # as after a resumption
    assert batches(given, (1, 3))[3].rows.tolist() != uninterrupted[3].rows.tolist()


Views = dict[tuple[str, int], list[Tensor]]


def noise() -> Problem:
    """40 images, half of them labelled, of which two views are hardly ever the same by chance."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 80, 80), dtype=np.uint8)
    labels = torch.arange(40).remainder(4).where(torch.arange(40) % 4 < 2, UNLABELLED)
    return Problem(torch.from_numpy(pixels), labels, tuple(map(str, range(40))), ("a", "b"), 2)


def views_by_row(made: Batches, n: int) -> Views:
    """The views of each row in n batches, under their kind (x0, u0, u1)."""
    found: Views = {}
    for i in range(n):
        batch = made[i]
        labelled = made._labelled[i // made._ahead].view(made._ahead, -1)[i % made._ahead]
        for kind, rows, views in [("x", labelled, batch.x), ("u", batch.rows, batch.u)]:
            for k, view in enumerate(views):
                for row, image in zip(rows.tolist(), view, strict=True):
                    found.setdefault((f"{kind}{k}", row), []).append(image)
    return found


def test_a_view_is_the_same_whoever_else_is_in_the_batch() -> None:
    given = noise()
    few, many = views_by_row(batches(given, n_labelled=4), 15), views_by_row(batches(given, n_labelled=12), 5)
    for row in given.labelled.tolist():  # 20 of them, 60 drawn: three passes
        assert len(few["x0", row]) == len(many["x0", row]) == 3
        assert all(map(torch.equal, few["x0", row], many["x0", row]))


def test_views_differ_between_passes_epochs_phases_seeds_names_and_rows() -> None:
    """In all, nearly as many as were made; by chance a few weak views show the same."""
    given = noise()
    given = replace(given, images=given.images[:1].expand(40, -1, -1, -1))  # 40 times the same image
    found = [views_by_row(batches(given, seed), 10) for seed in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]]
    for kinds, n, fewest in [(("x0", "u0"), 400, 280), (("u1",), 240, 239)]:
        made = [
            view for one in found for (kind, _), several in one.items() if kind in kinds for view in several
        ]
        assert len(made) == n
        assert len({view.numpy().tobytes() for view in made}) >= fewest


def test_batches_hold_what_they_say() -> None:
    """Labels fit their images, rows are unlabelled ones, and each image comes as often as any other."""
    whole = benchmark((8, 8, 8, 8, 8))
    grey = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    same = (grey, whole.train.labels)
    whole = Benchmark.in_memory("toy", same, same, whole.classes)
    given, _ = whole.split(known=0.6, labelled=0.5, seed=0)
    made = batches(given)
    seen: Counter[int] = Counter()
    for i in range(6):  # 24 labelled in all, twice the twelve there are
        batch = made[i]
        assert [x.shape for x in (*batch.x, *batch.u)] == [(4, 1, 8, 8), (6, 1, 8, 8), (6, 1, 8, 8)]
        rows = (batch.x[0][:, 0, 0, 0] * 255).round().long()  # an image of one grey stays what it is
        assert torch.equal(batch.y, given.labels[rows])
        seen.update(rows.tolist())
        assert (given.labels[batch.rows] == UNLABELLED).all()
        assert torch.equal((batch.u[0][:, 0, 0, 0] * 255).round().long(), batch.rows)
    assert seen == Counter(dict.fromkeys(given.labelled.tolist(), 2))


def test_without_unlabelled_images_all_of_them_serve() -> None:
    given = problem([0, 1, 2, 3, 0, 1])
    assert sorted(batches(given)[0].rows.tolist()) == list(range(6))

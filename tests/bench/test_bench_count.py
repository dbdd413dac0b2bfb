"""`openldn bench count`, on a few digits."""

from pathlib import Path
from typing import Any

import pytest

from openldn import bench
from openldn.bench import count as counting
from openldn.bench import running, shown
from openldn.bench.cells import Result, Scale
from openldn.errors import UserError
from openldn.maths import count

BENCH = bench.find("count")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "CASES", {"digits": ((3, 2), (4, 1)), "cub": ((2, 1),)})
    monkeypatch.setattr(counting, "IMAGES", 14)
    counting.features.cache_clear()


def run(out: Path, data: tuple[str, ...] = ("digits",)) -> tuple[str, str]:
    cells = BENCH.cells(Scale(data=data, seeds=1, data_dir=str(out)))
    results = running.run(BENCH, cells, out, jobs=None).results
    assert BENCH.notes is not None
    return shown.markdown(BENCH, results), BENCH.notes(results)


@pytest.mark.usefixtures("own_cache")
def test_draws_are_kept_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, summary = run(tmp_path / "out")
    assert table.count("digits") == 2
    assert summary.startswith("2 draws; mean relative error: ours ")

    def none(*_: Any, **__: Any) -> None:
        raise AssertionError("estimated again")

    for name in ("estimate", "dtc", "gcd"):
        monkeypatch.setattr(count, name, none)
    assert run(tmp_path / "out") == (table, summary)


def test_a_draw_labels_half_of_the_images_of_known_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()

    def noted(z: Any, labels: Any, n_known: int, *, seed: int) -> int:
        seen.append((len(z), labels.tolist(), n_known))
        return 2

    monkeypatch.setattr(counting, "default_features", lambda images, *_: images)
    monkeypatch.setattr(count, "estimate", lambda *a, **k: Found(noted(*a, **k)))
    monkeypatch.setattr(count, "dtc", noted)
    monkeypatch.setattr(count, "gcd", noted)
    drawn = counting.Features("digits", None).draw((3, 2), seed=5)
    assert (drawn["ours"], drawn["dtc"], drawn["gcd"], drawn["low"]) == (2, 2, 2, 1)
    [(n, labels, n_known)] = {(n, tuple(labels), k) for n, labels, k in seen}
    assert (n, n_known) == (5 * 14, 3)
    assert [labels.count(k) for k in (0, 1, 2, -1)] == [7, 7, 7, 49]


class Found:
    def __init__(self, n: int):
        self.n_novel, self.low, self.high = n, 1, 3


def test_the_summary_by_hand() -> None:
    draws = [
        {"novel": 4, "ours": 5, "dtc": 2, "gcd": 4, "low": 3, "high": 6},
        {"novel": 10, "ours": 8, "dtc": 10, "gcd": 20, "low": 7, "high": 9},
    ]
    assert counting.summary([Result(("digits",), 0, draw, {}, {}) for draw in draws]) == (
        "2 draws; mean relative error: ours 0.23, dtc 0.25, gcd 0.50; ours is 1.00 times the truth "
        "(geometric mean); its interval holds the truth in 50 % of the draws"
    )


def test_bad_input(tmp_path: Path) -> None:
    for data, said in ((("mnist",), "choose from digits"), (("cub",), "cub is not there")):
        with pytest.raises(UserError, match=said):
            run(tmp_path / "out", data)

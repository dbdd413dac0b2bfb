"""The figures of the OpenLDN paper, to stand beside ours."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from openldn.bench.cells import Column, Result

Scores = list[float | str]  # known, novel, all; "-" where the paper has none


@cache
def _table() -> dict[str, dict[str, dict[str, Scores]]]:
    return tomllib.loads(resources.files("openldn.bench").joinpath("paper.toml").read_text("utf-8"))


def scores(bench: str, data: str, row: str) -> Scores | None:
    """What the paper reports, if it does."""
    return _table().get(bench, {}).get(data, {}).get(row)


def column(bench: str, data: str | None = None) -> Column:
    """The paper's figures; rows are (data, row), or (row,) of one data set."""

    def text(of: Sequence[Result]) -> str:
        *first, row = of[0].row
        found = scores(bench, data or first[0], row)
        return "" if found is None else " / ".join(map(str, found))

    heading = "paper: known / novel / all" if data is None else f"paper, {data}: known / novel / all"
    return Column(heading, text, optional=True)

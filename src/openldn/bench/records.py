"""Records: whole data sets, systems at a length that gives them their due, accuracy stage by stage.

Time is that of one run with the threads that it has: give `--jobs 1` for all cores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openldn.bench import paper, pictures
from openldn.bench.cells import Bench, Cell, Column, Result, Scale, figure
from openldn.bench.tables import COST, check_data, present
from openldn.bench.training import Trained
from openldn.errors import UserError

ROWS: dict[str, dict[str, Any]] = {
    "pu-self-training": {"method": "pu-self-training"},
    "openldn-uda": {"method": "openldn-uda"},
    "openldn-mixmatch": {"method": "openldn-mixmatch"},
}
DATA = ("cifar10", "cifar100", "svhn", "tiny-imagenet", "mnist", "fashion-mnist")


def cells(scale: Scale) -> list[Cell]:
    """A cell for each data set, row and seed; lengths are the preset's unless the scale says otherwise."""
    for name in scale.data:
        check_data(name)
    for name in scale.only:
        if name not in ROWS:
            raise UserError(f"there is no row {name!r}; choose from: {'; '.join(ROWS)}")
    return [
        Cell((data, name), seed, Trained.at(scale, data, seed, **{"evaluations": 5, **ROWS[name]}))
        for seed in range(scale.seeds)
        for data in present(scale.data or DATA, scale, asked=bool(scale.data))
        for name in scale.only or ROWS
    ]


def after(number: int) -> Column:
    """Known / novel / all at the end of a stage, as means over seeds."""

    def text(of: Sequence[Result]) -> str:
        ends = [list(ends_of(r.figures["curve"]).values()) for r in of]
        if any(len(end) <= number + 1 for end in ends):
            return ""
        means = (sum(end[number][key] for end in ends) / len(ends) for key in ("known", "novel", "all"))
        return " / ".join(f"{mean:.1f}" for mean in means)

    return Column(f"after stage {number + 1}: known / novel / all", text, optional=True)


def ends_of(curve: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last evaluation of each stage."""
    return {point["stage"]: point for point in curve}


BENCH = Bench(
    name="records",
    about="whole data sets, systems at a length that gives them their due",
    fields=("data", "system"),
    needs=DATA,
    cells=cells,
    columns=(
        after(0),
        figure("known"),
        figure("novel"),
        figure("all"),
        figure("all, anchored", "anchored"),
        *COST,
        paper.column("main"),
    ),
    picture=pictures.curves,
)

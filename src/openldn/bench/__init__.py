"""`openldn bench`: tables and figures by one command, resumable, each beside the paper's."""

from openldn.bench import (
    count,
    data,
    features,
    folders,
    hidden,
    pairs,
    photographs,
    records,
    step,
    tables,
)
from openldn.bench.cells import Bench, Cell, Result, Scale
from openldn.errors import UserError

__all__ = ["BENCHES", "Bench", "Cell", "Result", "Scale", "find"]

BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        *tables.BENCHES,
        *(count.BENCH, records.BENCH, photographs.BENCH, folders.BENCH),
        *(features.BENCH, data.BENCH, step.BENCH, pairs.BENCH, hidden.BENCH),
    )
}


def find(name: str) -> Bench:
    """A bench by name."""
    if name not in BENCHES:
        raise UserError(f"there is no bench {name!r}; choose one of {', '.join(BENCHES)}, or list")
    return BENCHES[name]

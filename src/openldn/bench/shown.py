"""Tables of results: for a terminal, as Markdown, and `results.md` and a picture beside `results.json`."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from openldn.bench.cells import Bench, Result, by_row, mean
from openldn.files import whole

Grid = list[list[str]]


def headings(bench: Bench) -> list[str]:
    """Of all columns."""
    return [*bench.fields, *(column.heading for column in bench.columns)]


def grid(
    bench: Bench, results: Sequence[Result], mark: Callable[[Sequence[Result]], str] = lambda of: ""
) -> Grid:
    """The cells of the table, a row of texts for each row; `mark` is behind its name."""
    rows = by_row(results)
    order = list(rows)
    if bench.best_first is not None:  # within the first field, where there are several
        name = bench.best_first
        firsts = list(dict.fromkeys(row[:-1] for row in rows))
        order.sort(key=lambda row: (firsts.index(row[:-1]), -mean(rows[row], name)))
    seeds = max((len(of) for of in rows.values()), default=0)

    def first(row: tuple[str, ...]) -> list[str]:
        few = len(rows[row]) < seeds and row[-1] not in bench.single
        missing = f" ({len(rows[row])} of {seeds} seeds)" if few else ""
        return [*row[:-1], row[-1] + missing + mark(rows[row])]

    return [[*first(row), *(column.text(rows[row]) for column in bench.columns)] for row in order]


def fitted(bench: Bench, results: Sequence[Result], title: str, width: int) -> Table:
    """As many columns as a terminal of that width has room for; optional ones are left out from the last."""
    rows, names = grid(bench, results), headings(bench)
    needed = [3 + max(map(len, [*name.split(), *(row[i] for row in rows)])) for i, name in enumerate(names)]
    kept = [i for i in range(len(names)) if any(row[i] for row in rows)]
    n_fields = len(bench.fields)
    same = [i for i in range(n_fields - 1) if len({row[i] for row in rows}) == 1]  # said in the title
    kept = [i for i in kept if i not in same]
    title = ", ".join([*(rows[0][i] for i in same), title])
    optional = [i for i in kept if i >= n_fields and bench.columns[i - n_fields].optional]
    while optional and 1 + sum(needed[i] for i in kept) > width:
        kept.remove(optional.pop())
    notes = [] if bench.notes is None else [bench.notes(results)]
    if any(row[i] for row in rows for i in range(n_fields, len(names)) if i not in kept):
        notes.append("results.md has more columns")
    shown = Table(title=title, caption="; ".join(filter(None, notes)) or None)
    for i in kept:
        shown.add_column(names[i], no_wrap=i < n_fields)
    for row in rows:
        shown.add_row(*(row[i] for i in kept))
    return shown


def markdown(
    bench: Bench, results: Sequence[Result], mark: Callable[[Sequence[Result]], str] = lambda of: ""
) -> str:
    """The table as Markdown; columns that are empty in all rows are left out."""
    rows, names = grid(bench, results, mark), headings(bench)
    kept = [i for i in range(len(names)) if any(row[i] for row in rows)]
    lines = [[names[i] for i in kept], ["---"] * len(kept)]
    lines += [[_escaped(row[i]) for i in kept] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write(bench: Bench, results: Sequence[Result], folder: Path) -> list[Path]:
    """`results.md` and, if the bench has one, `picture.svg`; returns the files."""
    files = [folder / "results.md"]
    notes = "" if bench.notes is None else f"\n{bench.notes(results)}\n"
    whole(files[0], lambda part: part.write_text(markdown(bench, results) + notes))
    if bench.picture is not None:
        import matplotlib

        buffer = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": bench.name, "svg.fonttype": "none", "font.size": 9}):
            drawn = bench.picture(results)
            drawn.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
        files.append(folder / "picture.svg")
        whole(files[1], lambda part: part.write_text(buffer.getvalue()))
    return files

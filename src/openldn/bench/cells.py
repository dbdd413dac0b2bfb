"""The vocabulary: a *bench* is a table or figure; its *cells* are measurements, made once and kept."""

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from openldn.options import PresetName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = dict[str, Any]
"""What was measured in a cell: numbers, texts and lists of them, as JSON has them."""
Row = tuple[str, ...]


class Measure(Protocol):
    """How the figures of a cell are measured, perhaps in a process of its own: it can be pickled."""

    @property
    def record(self) -> Mapping[str, Any]:
        """All choices that the figures depend on, as JSON: kept figures with other choices are refused."""

    @property
    def modules(self) -> Sequence[str]:
        """The modules that make the figures; what these import counts too."""

    def __call__(self, path: Path, quiet: bool) -> Figures:
        """The figures. `path` is for what can be resumed; it may not exist."""

    def where(self, path: Path) -> str:
        """How far it has come, if it is under way."""


@dataclass(frozen=True)
class Cell:
    """One measurement: the row of the table that it belongs to, and a seed."""

    row: Row
    seed: int
    measure: Measure

    @property
    def key(self) -> str:
        """A name for its files."""
        parts = ("".join(c if c.isalnum() or c in ".-+" else "-" for c in part) for part in self.row)
        return "_".join([*parts, str(self.seed)])

    def __str__(self) -> str:
        return ", ".join([*self.row, f"seed {self.seed}"])


@dataclass(frozen=True)
class Result:
    """The figures of a cell, and where they come from."""

    row: Row
    seed: int
    figures: Figures
    record: Mapping[str, Any]  # the choices
    made: Mapping[str, Any]  # date, commit, code, machine


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured, and on what: a bench's own scale, with what the user gives."""

    data: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # systems, or whatever the rows are
    seeds: int = 3
    images: int | None = None
    per_image: float | None = None  # budget in passes
    epochs: float | None = None
    preset: PresetName = "fast"
    backbone: str | None = None
    size: int | None = None
    oracle: bool = False
    data_dir: str | None = None

    def command(self, bench: "Bench") -> str:
        """The command line that asks for this scale, without paths."""
        words = ["openldn bench", bench.name]
        for name in ("data", "only", "seeds", "images", "size", "per_image", "epochs", "preset", "backbone"):
            value = getattr(self, name)
            if value not in (getattr(bench.scale, name), None, ()):
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{name.replace('_', '-')}", *(shlex.quote(f"{one}") for one in values)]
        return " ".join([*words, *(["--novel-share oracle"] if self.oracle else [])])

    @property
    def sentence(self) -> str:
        """In words."""
        parts = ["all training images" if self.images is None else f"at most {self.images:,} training images"]
        if self.size is not None:
            parts.append(f"{self.size} pixels")
        if self.per_image is not None:
            parts.append(f"{self.per_image:g} passes per image")
        elif self.epochs is not None:
            parts.append(f"{self.epochs:g} epochs")
        parts += [f"preset {self.preset}", "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Column:
    """A column of a table: a text from the results of a row, one for each seed."""

    heading: str
    text: Callable[[Sequence[Result]], str]
    optional: bool = False  # left out where there is no room


def figure(
    heading: str, name: str | None = None, per: float = 1.0, optional: bool = False, digits: int = 1
) -> Column:
    """A figure as mean ± standard deviation over seeds, divided by `per`; empty if there is none."""

    def text(of: Sequence[Result]) -> str:
        found = [r.figures.get(name or heading) for r in of]
        values = [value / per for value in found if value is not None]
        return spread(values, digits) if values else ""

    return Column(heading, text, optional)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def mean(of: Sequence[Result], name: str) -> float:
    """The mean of a figure over seeds."""
    return statistics.fmean(r.figures[name] for r in of)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A table or figure, and how it is made."""

    name: str
    about: str  # one line
    paper: str = ""  # the table or figure of the paper that it repeats
    fields: tuple[str, ...] = ("system",)  # the parts of a row
    needs: tuple[str, ...] = ()  # named data sets
    measured_on: str = ""  # instead of the scale's sentence, where that does not fit
    scale: Scale = field(default_factory=Scale)  # for two cores
    cells: Callable[[Scale], list[Cell]]
    columns: tuple[Column, ...]
    said: tuple[str, ...] = ("known", "novel", "all")  # figures on the line that reports a cell
    single: tuple[str, ...] = ()  # rows of one seed, by their last part
    best_first: str | None = None  # rows are sorted by this figure; else they stay in order
    notes: Callable[[Sequence[Result]], str] | None = None  # below the table
    picture: "Callable[[Sequence[Result]], Figure] | None" = None
    alone: bool = False  # its figures are times: one cell at a time, with all cores


def by_row(results: Sequence[Result]) -> dict[Row, list[Result]]:
    """The results of each row, seeds in order."""
    rows: dict[Row, list[Result]] = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    return {row: sorted(of, key=lambda r: r.seed) for row, of in rows.items()}

"""Pictures of results, with matplotlib."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from openldn.bench.cells import Result, Row, by_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = ("known", "novel", "all")
COLOURS = {"known": "#1b6ca8", "novel": "#d1495b", "all": "#444444"}


def blank(
    columns: int = 1, rows: int = 1, width: float = 7.0, height: float = 3.2
) -> "tuple[Figure, list[Axes]]":
    """A figure with so many axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    return drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def bars(results: Sequence[Result]) -> "Figure":
    """Known, novel and all accuracy of each row, with the spread over seeds; a panel for each data set."""
    rows = by_row(results)
    panels: dict[Row, list[Row]] = {}
    for row in rows:
        panels.setdefault(row[:-1], []).append(row)
    longest = max(map(len, panels.values()))
    drawn, axes = blank(rows=len(panels), height=len(panels) * (0.9 + 0.34 * longest))
    for ax, (panel, members) in zip(axes, panels.items(), strict=True):
        for k, key in enumerate(KEYS):
            values = [[r.figures[key] for r in rows[row]] for row in members]
            ax.barh(
                [i + 0.27 * (k - 1) for i in range(len(members))],
                [statistics.fmean(of) for of in values],
                0.25,
                xerr=[statistics.stdev(of) if len(of) > 1 else 0.0 for of in values],
                color=COLOURS[key],
                error_kw={"elinewidth": 0.8},
                label=key,
            )
        ax.set_yticks(range(len(members)), [row[-1] for row in members])
        ax.invert_yaxis()
        ax.set_xlim(0, 100)
        ax.set_title(" ".join(panel), loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("accuracy on test images, percent")
    axes[0].legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    return drawn


def lines(results: Sequence[Result]) -> "Figure":
    """Known, novel and all accuracy along the rows."""
    rows = by_row(results)
    drawn, [ax] = blank()
    for key in KEYS:
        values = [[r.figures[key] for r in of] for of in rows.values()]
        spread = [statistics.stdev(of) if len(of) > 1 else 0.0 for of in values]
        means = [statistics.fmean(of) for of in values]
        ax.errorbar(
            range(len(rows)), means, spread, color=COLOURS[key], marker="o", ms=3, capsize=2, label=key
        )
    ax.set_xticks(range(len(rows)), [row[-1] for row in rows])
    ax.set_ylabel("accuracy on test images, percent")
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
    return drawn


def curves(results: Sequence[Result]) -> "Figure":
    """Accuracy on all test images against minutes and image passes, pretraining included."""
    rows = {row: of for row, of in by_row(results).items() if of[0].figures["curve"]}
    drawn, axes = blank(columns=2)
    styles = ("-", "--", ":", "-.")
    for ax, (unit, per, label) in zip(
        axes, (("seconds", 60, "minutes"), ("passes", 1e6, "million image passes")), strict=True
    ):
        for style, (row, of) in zip(styles * len(rows), rows.items(), strict=False):
            for result in of:
                points = result.figures["curve"]
                ax.plot(
                    [point[unit] / per for point in points],
                    [point["all"] for point in points],
                    style,
                    color="#1b6ca8" if "openldn" in row[-1] else "#d1495b",
                    lw=1,
                    label=row[-1] if result is of[0] else None,
                )
        ax.set_xlabel(label)
        ax.set_xlim(left=0)
        ax.locator_params(axis="x", nbins=5)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("all, test images, percent")
    axes[0].legend(frameon=False, ncols=max(1, len(rows)), loc="lower left", bbox_to_anchor=(0, 1))
    return drawn


def maps(results: Sequence[Result]) -> "Figure":
    """The maps of the first seed, a panel for each stage, coloured by true class."""
    figures = results[0].figures
    stages = [name.removeprefix("map ") for name in figures if name.startswith("map ")]
    drawn, axes = blank(columns=len(stages), height=3.6)
    classes = sorted({*figures["classes"]})
    for ax, stage in zip(axes, stages, strict=True):
        for c in classes:
            points = [p for p, k in zip(figures[f"map {stage}"], figures["classes"], strict=True) if k == c]
            ax.scatter([x for x, _ in points], [y for _, y in points], s=4, linewidths=0, label=str(c))
        ax.set_title(f"after {stage} (silhouette {figures[f'silhouette {stage}']:.2f})")
        ax.set_xticks([])
        ax.set_yticks([])
    return drawn

"""`docs/results.md`, made of the `results.json` files of benches, each in a folder of its own.

Such a folder may also hold `notes.md`, what the figures say in words, and `picture.svg`. Rows that were
made by other code than is here now have a mark.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openldn.bench import BENCHES
from openldn.bench.cells import Bench, Result
from openldn.bench.kept import current, read
from openldn.bench.shown import markdown

OLDER = "†"


def text(folder: Path) -> str:
    """The whole page: `head.md`, a section for each bench that has results, `tail.md`."""
    found = {file.parent: BENCHES[_head(file)["bench"]] for file in sorted(folder.glob("*/results.json"))}
    order = [*BENCHES.values()]
    parts = [section(found[at], at) for at in sorted(found, key=lambda at: (order.index(found[at]), at))]
    return "\n".join([_file(folder / "head.md"), *parts, _file(folder / "tail.md")]).rstrip() + "\n"


def section(bench: Bench, folder: Path) -> str:
    """Of one bench: what it is, its command, where figures come from, table, picture and notes."""
    results = read(folder / "results.json", bench)
    [*data] = {str(r.record["data"]) for r in results if "data" in r.record}
    on = f", {data[0]}" if len(data) == 1 else ""
    of = f" ({bench.paper} of the paper)" if bench.paper else ""
    head = _head(folder / "results.json")
    lines = [f"## `{bench.name}`{on}: {bench.about}{of}", ""]
    lines += [f"`{head['command']}`: {head['scale']}. {origins(results)}", ""]
    lines += [markdown(bench, results, mark=mark)]
    if any(not current(result) for result in results):
        lines += [f"{OLDER} made by older code than is here now.", ""]
    if bench.notes is not None and (said := bench.notes(results)):
        lines += [said, ""]
    if (folder / "picture.svg").exists():
        lines += [f"![{bench.about}]({folder.parent.name}/{folder.name}/picture.svg)", ""]
    if (folder / "notes.md").exists():
        lines += [_file(folder / "notes.md")]
    return "\n".join(lines)


def mark(of: Sequence[Result]) -> str:
    """Behind a row's name, if a figure of it is older than the code."""
    return "" if all(map(current, of)) else f" {OLDER}"


def origins(results: Sequence[Result]) -> str:
    """Dates, commits and machines."""

    def all_of(key: str) -> str:
        return ", ".join(dict.fromkeys(str(r.made[key]) for r in results if r.made.get(key)))

    return f"{all_of('date')}; {all_of('commit')}; torch {all_of('torch')}; {all_of('machine')}."


def _head(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def _file(path: Path) -> str:
    return path.read_text("utf-8").rstrip() + "\n" if path.exists() else ""

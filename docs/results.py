"""Makes results.md of what is in results/: python docs/results.py [--check]

`--check` writes nothing, and fails if results.md is not what it would be.
"""

import sys
from pathlib import Path

from openldn.bench import document

HERE = Path(__file__).parent


def main() -> None:
    made, page = document.text(HERE / "results"), HERE / "results.md"
    if "--check" not in sys.argv:
        page.write_text(made, "utf-8")
    elif made != page.read_text("utf-8"):
        sys.exit("docs/results.md is not made of docs/results: run python docs/results.py")


if __name__ == "__main__":
    main()

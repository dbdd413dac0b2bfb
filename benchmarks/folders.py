"""One's own images: what the default chooses, beside all that it could have chosen.

    python benchmarks/folders.py [--data-dir DIR] [--only NAME ...] [--draws 2] [--first 0]

Each data set becomes a folder of image files, as a user has it: class folders for the known classes, which
are half of all, with half of their images, and all other images in `unlabelled`. A draw takes other classes,
other images and other labels. Nobody says how many novel classes there are. Shown are, per folder: *all* on
the unlabelled images with frozen features, fine-tuned, from scratch, and by default; and the time that each
took, the default with its rehearsals. Runs are kept, and not made again.

The data sets are in DIR ($OPENLDN_DATA by default), as for `photographs.py`.
"""

import csv
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import spread
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

import openldn
from openldn.data import sources
from openldn.data.sources import class_folders

WAYS = ("frozen", "fine-tuned", "scratch")


class Folder(NamedTuple):
    """A data set as a folder: how many of its classes, and how many images of each at the most."""

    data: str
    classes: int
    images: int


FOLDERS = {
    "pets": Folder("oxford-pets", 37, 100),
    "birds": Folder("cub", 40, 30),
    "cars": Folder("stanford-cars", 40, 40),
    "cifar10": Folder("cifar10", 10, 200),
    "cifar100": Folder("cifar100", 40, 50),
    "svhn": Folder("svhn", 10, 200),
    "fashion": Folder("fashion-mnist", 10, 200),
    "digits": Folder("digits", 10, 130),
}


def main() -> None:
    parser = harness.parser(__doc__, out="runs/benchmark-folders", jobs=1)
    parser.add_argument("--data-dir", default=os.environ.get("OPENLDN_DATA"), help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=[*FOLDERS], choices=[*FOLDERS], help="folders")
    parser.add_argument("--draws", type=int, default=2, help="draws of each folder (default: 2)")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw (default: 0)")
    args = parser.parse_args()
    harness.prepare(harness.threads(1))
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for draw in range(args.first, args.first + args.draws):
        for name in args.only:
            results[name, draw] = measured(name, draw, args.data_dir, args.out / f"{name}-{draw}")
            show(results)


# -------------------------------------------------------------------------------------------- folders


def write(name: str, draw: int, data_dir: str | None, path: Path) -> None:
    """Class folders, `unlabelled`, and the truth beside them."""
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    folder, rng = FOLDERS[name], np.random.default_rng([draw, 0xF01])
    labels, save = read(folder.data, Path(data_dir or ""))
    n_classes = int(labels.max()) + 1
    chosen = rng.permutation(n_classes)[: folder.classes]
    rows = list[tuple[str, str]]()
    for place, k in enumerate(chosen.tolist()):
        of_class = rng.permutation(np.flatnonzero(labels == k))[: folder.images].tolist()
        for number, i in enumerate(of_class):
            known = place < folder.classes // 2 and number % 2 == 0
            file = f"{f'class-{k}' if known else 'unlabelled'}/{i}"
            (part / "photos" / file).parent.mkdir(parents=True, exist_ok=True)
            file += save(i, part / "photos" / file)
            if not known:
                rows.append((file, f"class-{k}"))
    with (part / "truth.csv").open("w", newline="") as f:
        csv.writer(f).writerows([("image", "label"), *rows])
    part.rename(path)


def read(data: str, data_dir: Path) -> tuple[NDArray[np.int64], Callable[[int, Path], str]]:
    """The label of each image, and a function that writes an image and returns its ending."""
    in_class_folders = data in ("cub", "stanford-cars")
    benchmark = (
        class_folders.read(data, data_dir / data) if in_class_folders else sources.read_named(data, data_dir)
    )
    listing, files = benchmark.train, benchmark.train.files

    def save(i: int, path: Path) -> str:
        if files is not None:
            ending = Path(files[i]).suffix
            shutil.copyfile(files[i], f"{path}{ending}")
            return ending
        [image] = listing.pixels[np.array([i])]
        image = image.permute(1, 2, 0).numpy()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(f"{path}.png")
        return ".png"

    return listing.labels, save


# --------------------------------------------------------------------------------------- measurements


def measured(name: str, draw: int, data_dir: str | None, path: Path) -> dict[str, Any]:
    """*all*, seconds and the number of novel classes, by way; and the way that the default took."""
    file = path / "results.json"
    # One's own: what was decoded, computed or chosen for another folder would make times too short.
    os.environ["OPENLDN_CACHE"] = str(path.with_name(f"{path.name}.cache"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(name, draw, data_dir, path)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    choices = {"flip": False} if name in ("digits", "svhn") else {}
    for way in ("default", *WAYS):
        if way in found:
            continue
        if way != "default" and way == found["default"]["weights"]:
            # The same run, bit for bit, but without rehearsals.
            found[way] = {**found["default"], "seconds": None}
        else:
            run = path / way
            shutil.rmtree(run, ignore_errors=True)
            started = time.monotonic()
            weights = {} if way == "default" else {"weights": way}
            openldn.train(path / "photos", out=run, quiet=True, seed=draw, **weights, **choices)
            seconds = time.monotonic() - started
            made = openldn.evaluate(run, path / "truth.csv")
            config, classes = json.loads((run / "config.json").read_text()), run / "classes.json"
            found[way] = {
                **made["protocols"]["openldn"],
                "seconds": seconds,
                "weights": config["weights"],
                "n_novel": len(json.loads(classes.read_text())["novel"]),
                "rehearsals": config["rehearsals"],
            }
        file.write_text(json.dumps(found))
    return found


def show(results: dict[tuple[str, int], dict[str, Any]]) -> None:
    """A row per folder: mean ± spread over draws, what the default took, and how far behind the best."""
    table = Table(
        "folder", *(f"{way}: all" for way in WAYS), "default: all", "took", "behind", "novel", "min"
    )
    rows = dict.fromkeys(name for name, _ in results)
    behind: list[float] = []
    for name in rows:
        of = [found for (other, _), found in results.items() if other == name]
        lost = [max(f[way]["all"] for way in WAYS) - f["default"]["all"] for f in of]
        behind += lost
        table.add_row(
            name,
            *(spread([f[way]["all"] for f in of]) for way in (*WAYS, "default")),
            " ".join(f["default"]["weights"] for f in of),
            " ".join(f"{value:.1f}" for value in lost),
            " ".join(str(f["default"]["n_novel"]) for f in of) + f" of {novel(name)}",
            " ".join(f"{f['default']['seconds'] / 60:.1f}" for f in of),
        )
    means = [np.mean([f[way]["all"] for f in results.values()]) for way in (*WAYS, "default")]
    table.add_row("mean", *(f"{mean:.1f}" for mean in means), "", f"{np.mean(behind):.1f}", "", "")
    Console(width=150).print(table)
    print(f"behind the best way with hindsight: {np.mean(behind):.1f} on average, {max(behind):.1f} at most")


def novel(name: str) -> int:
    return FOLDERS[name].classes - FOLDERS[name].classes // 2


if __name__ == "__main__":
    main()

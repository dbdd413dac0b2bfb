"""One's own images: what the default chooses, beside all that it could have chosen.

Each data set becomes a folder of image files, as a user has it: class folders for the known classes, which
are half of all, with half of their images, and all other images in `unlabelled`. A seed takes other classes,
other images and other labels. Nobody says how many novel classes there are. Accuracy is of the unlabelled
images.
"""

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from openldn import inference, pipeline
from openldn.bench.cells import Bench, Cell, Column, Figures, Result, Scale, mean
from openldn.bench.isolation import own_folder
from openldn.bench.tables import present
from openldn.bench.training import rounded
from openldn.data import sources
from openldn.errors import UserError
from openldn.files import read_json, write_csv
from openldn.options import Options, Weights

WAYS: tuple[Weights, ...] = ("frozen", "fine-tuned", "scratch")


class Folder(NamedTuple):
    """A data set as a folder: how many of its classes, and how many images of each at the most."""

    data: str
    classes: int
    images: int

    @property
    def novel(self) -> int:
        return self.classes - self.classes // 2


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


@dataclass(frozen=True)
class Chosen:
    """One folder: the default, and each way by itself."""

    name: str
    seed: int
    data_dir: str | None

    @property
    def record(self) -> Mapping[str, Any]:
        return {"folder": list(FOLDERS[self.name])}

    @property
    def modules(self) -> Sequence[str]:
        ways = ("whitened_clustering", "fine_tuning", "pu_clustering", "self_training")
        return ("openldn.bench.folders", "openldn.choice", *(f"openldn.methods.{way}" for way in ways))

    def __call__(self, path: Path, quiet: bool) -> Figures:
        # What was decoded, computed or chosen for another folder would make times too short.
        with own_folder(path) as place:
            write(FOLDERS[self.name], self.seed, self.data_dir, place)
            found = self.trained(place, None)
            for way in WAYS:
                # What the default took is the same run, bit for bit, but for the rehearsals.
                found[way] = found["all"] if way == found["weights"] else self.trained(place, way)["all"]
        found["behind"] = round(max(found[way] for way in WAYS) - found["all"], 2)
        return found

    def trained(self, place: Path, way: Weights | None) -> Figures:
        """One way, or the default."""
        flip = False if self.name in ("digits", "svhn") else None
        options, started = Options(seed=self.seed, weights=way, flip=flip), time.monotonic()
        run = pipeline.train(place / "photos", options, out=place / (way or "default"), quiet=True)
        seconds = time.monotonic() - started
        scores = inference.evaluate(run, place / "truth.csv")["protocols"]["openldn"]
        classes = read_json(run.path / "classes.json", "measure again")
        return {
            **rounded(scores),
            "weights": run.config["weights"],
            "n_novel": len(classes["novel"]),
            "seconds": round(seconds, 1),
            "rehearsals": run.config["rehearsals"],
        }

    def where(self, path: Path) -> str:
        return "training"


def write(folder: Folder, seed: int, data_dir: str | None, path: Path) -> None:
    """Class folders, `unlabelled`, and the truth beside them."""
    photos = path / "photos"
    listing = sources.read_named(folder.data, data_dir).train
    labels, rng = listing.labels, np.random.default_rng([seed, 0xF01])
    chosen = rng.permutation(int(labels.max()) + 1)[: folder.classes]
    truth = list[tuple[str, str]]()
    for place, k in enumerate(chosen.tolist()):
        of_class = rng.permutation(np.flatnonzero(labels == k))[: folder.images].tolist()
        for number, i in enumerate(of_class):
            known = place < folder.classes // 2 and number % 2 == 0
            below = photos / (f"class-{k}" if known else "unlabelled")
            below.mkdir(parents=True, exist_ok=True)
            if listing.files is not None:
                file = below / f"{i}{Path(listing.files[i]).suffix}"
                shutil.copyfile(listing.files[i], file)
            else:
                file = below / f"{i}.png"
                [image] = listing.pixels[torch.tensor([i])]
                pixels = image.permute(1, 2, 0).numpy()
                Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file)
            if not known:
                truth.append((f"unlabelled/{file.name}", f"class-{k}"))
    write_csv(path / "truth.csv", ("image", "label"), truth)


def cells(scale: Scale) -> list[Cell]:
    """A cell for each folder and draw; the first draw, 0, served to choose how the default chooses."""
    for name in scale.only:
        if name not in FOLDERS:
            raise UserError(f"there is no folder {name!r}; choose from {', '.join(FOLDERS)}")
    here = {*present([*dict.fromkeys(f.data for f in FOLDERS.values())], scale, asked=False)}
    names = [name for name in scale.only or FOLDERS if scale.only or FOLDERS[name].data in here]
    return [
        Cell((name,), seed, Chosen(name, 1 + seed, scale.data_dir))
        for seed in range(scale.seeds)
        for name in names
    ]


def each(heading: str, name: str, digits: int = 1) -> Column:
    """A figure of each draw."""

    def text(of: Sequence[Result]) -> str:
        values = [r.figures[name] for r in of]
        return ", ".join(v if isinstance(v, str) else f"{v:.{digits}f}" for v in values)

    return Column(heading, text)


def found(of: Sequence[Result]) -> str:
    """How many novel classes were found, of how many."""
    numbers = ", ".join(str(r.figures["n_novel"]) for r in of)
    return f"{numbers} of {FOLDERS[of[0].row[0]].novel}"


def minutes(of: Sequence[Result]) -> str:
    """Of the default, rehearsals included."""
    return ", ".join(f"{r.figures['seconds'] / 60:.1f}" for r in of)


def summary(results: Sequence[Result]) -> str:
    """Means over all folders and draws."""
    means = ", ".join(f"{way} {mean(results, way):.1f}" for way in WAYS)
    behind = [r.figures["behind"] for r in results]
    return (
        f"mean of all: {means}, default {mean(results, 'all'):.1f}; behind the best way with hindsight: "
        f"{statistics.fmean(behind):.1f} on average, {max(behind):.1f} at most"
    )


BENCH = Bench(
    name="folders",
    about="one's own images: what the default chooses, beside what it could have chosen",
    fields=("folder",),
    scale=Scale(seeds=2),
    needs=tuple(dict.fromkeys(folder.data for folder in FOLDERS.values())),
    measured_on="1,200 to 3,700 files a folder",
    cells=cells,
    columns=(
        *(each(way, way) for way in WAYS),
        each("default", "all"),
        each("it took", "weights"),
        each("behind the best", "behind"),
        Column("novel classes found", found),
        Column("minutes", minutes),
    ),
    notes=summary,
    alone=True,
)

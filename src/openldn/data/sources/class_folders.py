"""Data sets that lie in class folders, train/CLASS/* and test/CLASS/*, as many are passed on."""

from dataclasses import dataclass
from pathlib import Path

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists

PARTS = ("train", "test")


@dataclass(frozen=True)
class ClassFolders:
    """A reader of a set with so many classes; these are sorted by name."""

    name: str
    n_classes: int

    def missing(self, folder: Path) -> str | None:
        for part in PARTS:
            found = len(_classes(folder / part))
            if found != self.n_classes:
                return f"{folder / part} has {found} class folders instead of {self.n_classes}"
        return None

    def read(self, folder: Path) -> Benchmark:
        remedy = (
            f"put a folder for each of {self.n_classes} classes, with its images, into train and into test"
        )
        classes = _classes(folder / PARTS[0])
        train, test = (
            file_lists.from_folders(folder, [f"{part}/{own}" for own in classes], classes, remedy)
            for part in PARTS
        )
        return file_lists.benchmark(self.name, folder, train, test, classes, remedy=remedy)


def _classes(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


CUB = ClassFolders("cub", 200)

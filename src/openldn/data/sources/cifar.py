"""CIFAR-10 and CIFAR-100, in the binary or the Python version: 60,000 photographs of 32 x 32 pixels each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists, pickled
from openldn.errors import UserError

PIXELS = 3 * 32 * 32  # red, green and blue planes, row by row
NAMES_OF_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Rows = NDArray[np.uint8]  # (n, PIXELS)
Labels = NDArray[np.int64]  # (n,)


@dataclass(frozen=True)
class Layout:
    """The files of one version of a set."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str | None  # the file with the class names; None for the ten above
    archive: str

    @property
    def needs(self) -> tuple[str, ...]:
        files = (*self.train, *self.test, *((self.names,) if self.names else ()))
        return tuple(f"{self.folder}/{file}" for file in files)

    @property
    def remedy(self) -> str:
        return f"unpack {self.archive} again"


@dataclass(frozen=True)
class Cifar:
    """A reader of one of the two sets."""

    name: str
    title: str
    binary: Layout
    python: Layout
    label_bytes: int  # before each image in the binary version; the last byte is the class
    label_key: str  # of the classes in the Python version

    def missing(self, folder: Path) -> str | None:
        """What is missing, if anything."""
        return file_lists.missing(folder, *self._layout(folder).needs)

    def read(self, folder: Path) -> Benchmark:
        """The publisher's training and test images."""
        layout = self._layout(folder)
        at = folder / layout.folder
        classes = self._classes(at, layout)
        one = self._binary if layout is self.binary else self._python
        parts = []
        for files in (layout.train, layout.test):
            read = [one(at / file, len(classes), layout.remedy) for file in files]
            rows, labels = (np.concatenate(both) for both in zip(*read, strict=True))
            parts.append((torch.from_numpy(rows.reshape(-1, 3, 32, 32)), labels))
        return Benchmark.in_memory(self.name, parts[0], parts[1], classes)

    def _layout(self, folder: Path) -> Layout:
        """The binary version if it is there, else the Python version: pickles are harder to read safely."""
        python = (folder / self.python.folder).is_dir() and not (folder / self.binary.folder).is_dir()
        return self.python if python else self.binary

    def _classes(self, at: Path, layout: Layout) -> tuple[str, ...]:
        if layout.names is None:
            return NAMES_OF_10
        path = at / layout.names
        if layout is self.binary:
            names = file_lists.lines(path, layout.remedy)
        else:
            found = pickled.read(path, layout.remedy).get("fine_label_names")
            found = found if isinstance(found, list) else []
            names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in found]
        if len(set(names)) < max(2, len(names)):
            raise UserError(f"{path} does not name each class once; {layout.remedy}")
        return tuple(names)

    def _binary(self, path: Path, n_classes: int, remedy: str) -> tuple[Rows, Labels]:
        record = self.label_bytes + PIXELS
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as e:
            raise UserError(f"{path} cannot be read ({e.strerror}); {remedy}") from None
        if len(data) == 0 or len(data) % record:
            raise UserError(f"{path} is cut off ({len(data)} bytes, but a record has {record}); {remedy}")
        data = data.reshape(-1, record)
        labels = self._labels(path, data[:, self.label_bytes - 1].tolist(), n_classes, remedy)
        return data[:, self.label_bytes :], labels

    def _python(self, path: Path, n_classes: int, remedy: str) -> tuple[Rows, Labels]:
        found = pickled.read(path, remedy)
        rows, given = found.get("data"), found.get(self.label_key)
        if not isinstance(rows, np.ndarray) or rows.shape[1:] != (PIXELS,) or len(rows) == 0:
            raise UserError(f"{path} does not hold images of {PIXELS} bytes; {remedy}")
        given = given if isinstance(given, list) and all(type(label) is int for label in given) else []
        if len(given) != len(rows):
            raise UserError(f"{path} does not hold one label per image; {remedy}")
        return rows, self._labels(path, given, n_classes, remedy)

    def _labels(self, path: Path, given: list[int], n_classes: int, remedy: str) -> Labels:
        outside = next((label for label in given if not 0 <= label < n_classes), None)
        if outside is not None:
            raise UserError(
                f"{path} holds the label {outside}, but {self.title} ends at {n_classes - 1}; {remedy}"
            )
        return np.array(given, np.int64)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

CIFAR10 = Cifar(
    "cifar10",
    "CIFAR-10",
    Layout(
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in _BATCHES),
        ("test_batch.bin",),
        None,
        "cifar-10-binary.tar.gz",
    ),
    Layout("cifar-10-batches-py", _BATCHES, ("test_batch",), None, "cifar-10-python.tar.gz"),
    label_bytes=1,
    label_key="labels",
)

CIFAR100 = Cifar(
    "cifar100",
    "CIFAR-100",
    Layout(
        "cifar-100-binary", ("train.bin",), ("test.bin",), "fine_label_names.txt", "cifar-100-binary.tar.gz"
    ),
    Layout("cifar-100-python", ("train",), ("test",), "meta", "cifar-100-python.tar.gz"),
    label_bytes=2,  # the coarse class, then the fine one
    label_key="fine_labels",
)

"""CIFAR-10 and CIFAR-100, in the binary or the Python version: 60,000 photographs of 32 x 32 pixels each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists, pickled
from openldn.data.text_files import read_bytes
from openldn.errors import UserError

PIXELS = 3 * 32 * 32  # red, green and blue planes, row by row
NAMES_OF_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Rows = NDArray[np.uint8]  # (n, PIXELS)


@dataclass(frozen=True)
class Layout:
    """The files of one version of a set."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    remedy: str
    names: str | None = None  # the file with the class names; None for the ten above


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
        layout = self._layout(folder)
        files = (*layout.train, *layout.test, *((layout.names,) if layout.names else ()))
        return file_lists.missing(folder / layout.folder, *files)

    def read(self, folder: Path) -> Benchmark:
        layout = self._layout(folder)
        at = folder / layout.folder
        classes = self._classes(at, layout)
        parts = []
        for files in (layout.train, layout.test):
            read = [self._part(at / file, layout, len(classes)) for file in files]
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

    def _part(self, path: Path, layout: Layout, n_classes: int) -> tuple[Rows, NDArray[np.int64]]:
        read = self._binary if layout is self.binary else self._python
        rows, labels = read(path, layout.remedy)
        for label in labels:
            if not 0 <= label < n_classes:
                wrong = f"{path} holds the label {label}, but {self.title} ends at {n_classes - 1}"
                raise UserError(f"{wrong}; {layout.remedy}")
        return rows, np.array(labels, np.int64)

    def _binary(self, path: Path, remedy: str) -> tuple[Rows, list[int]]:
        data: Rows = np.frombuffer(read_bytes(path, remedy), np.uint8)
        record = self.label_bytes + PIXELS
        if len(data) == 0 or len(data) % record:
            raise UserError(f"{path} is cut off ({len(data)} bytes, but a record has {record}); {remedy}")
        data = data.reshape(-1, record)
        return data[:, self.label_bytes :], data[:, self.label_bytes - 1].tolist()

    def _python(self, path: Path, remedy: str) -> tuple[Rows, list[int]]:
        found = pickled.read(path, remedy)
        rows, labels = found.get("data"), found.get(self.label_key)
        if not isinstance(rows, np.ndarray) or rows.shape[1:] != (PIXELS,) or len(rows) == 0:
            raise UserError(f"{path} does not hold images of {PIXELS} bytes; {remedy}")
        labels = labels if isinstance(labels, list) and all(type(label) is int for label in labels) else []
        if len(labels) != len(rows):
            raise UserError(f"{path} does not hold one label per image; {remedy}")
        return rows, labels


_FIVE, _FIVE_BIN = (tuple(f"data_batch_{i}{end}" for i in range(1, 6)) for end in ("", ".bin"))
CIFAR10 = Cifar(
    "cifar10",
    "CIFAR-10",
    Layout("cifar-10-batches-bin", _FIVE_BIN, ("test_batch.bin",), "unpack cifar-10-binary.tar.gz again"),
    Layout("cifar-10-batches-py", _FIVE, ("test_batch",), "unpack cifar-10-python.tar.gz again"),
    label_bytes=1,
    label_key="labels",
)
_NAMES = "fine_label_names.txt"
CIFAR100 = Cifar(
    "cifar100",
    "CIFAR-100",
    Layout("cifar-100-binary", ("train.bin",), ("test.bin",), "unpack cifar-100-binary.tar.gz again", _NAMES),
    Layout("cifar-100-python", ("train",), ("test",), "unpack cifar-100-python.tar.gz again", "meta"),
    label_bytes=2,  # the coarse class, then the fine one
    label_key="fine_labels",
)

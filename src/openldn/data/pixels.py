"""Images as rows of uint8 (n, c, h, w), in memory, on disk or in image files, and lists of them.

Images from files are channels-last in memory: the channels of a pixel are adjacent, whatever the shape says.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import image_files, workers
from openldn.data.image_files import Decoded
from openldn.errors import UserError

PRINT = np.dtype(f"V{image_files.PRINT}")
Decoding = Future[list[Decoded | str]]  # of some image files, by a worker process
FEW = 200  # files that are decoded faster in this process than by starting worker processes


class Images(Protocol):
    """Rows of images, or of their features; a tensor is one kind."""

    @property
    def shape(self) -> Sequence[int]: ...  # (n, c, h, w), or (n, views, d) of features
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Tensor: ...


class _Rows:
    """Images that are not in memory, or not on their own."""

    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]


class Part(_Rows):
    """Some rows of other images, without a copy."""

    def __init__(self, images: Images, rows: Tensor):
        self.images, self.rows, self.shape = images, rows, (len(rows), *images.shape[1:])

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.images[self.rows[rows]]


class Stored(_Rows):
    """Images in a memory-mapped file of pixels."""

    def __init__(self, file: Path, places: NDArray[np.int64], prints: NDArray[np.void], shape: Sequence[int]):
        c, h, w = shape
        n = file.stat().st_size // (c * h * w)
        mapped = torch.from_file(str(file), shared=False, size=n * c * h * w, dtype=torch.uint8)
        self._mapped, self._places = mapped.view(n, h, w, c), torch.from_numpy(places)
        self.prints, self.shape = prints, (len(places), *shape)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._mapped[self._places[rows]].permute(0, 3, 1, 2)


class OnTheFly(_Rows):
    """Images that worker processes decode each time they are needed, for lack of disk space."""

    def __init__(
        self, files: Sequence[str], prints: NDArray[np.void], shape: Sequence[int], squash: bool = False
    ):
        self.files, self.prints, self.shape, self.squash = files, prints, (len(files), *shape), squash
        self._expected: dict[bytes, list[Decoding]] = {}

    def expect(self, rows: Tensor) -> None:
        """Starts to decode rows that will be needed next."""
        files = [self.files[i] for i in rows.tolist()]
        n_tasks = min(len(files), 2 * workers.count()) or 1
        self._expected[rows.numpy().tobytes()] = _submitted(files, self.shape[1:], n_tasks, self.squash)
        while len(self._expected) > 4:  # some are never asked for, as at the end of an epoch
            self._expected.pop(next(iter(self._expected)))

    def __getitem__(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return torch.empty((0, *self.shape[1:]), dtype=torch.uint8)
        if (key := rows.numpy().tobytes()) not in self._expected:
            self.expect(rows)
        pixels, skipped = _joined([task.result() for task in self._expected.pop(key)], self.shape[1:])
        for i, reason in skipped.items():
            wrong = f"{self.files[int(rows[i])]} could be read before and now cannot ({reason})"
            raise UserError(f"{wrong}; restore it, or train again")
        return pixels


def decode(
    files: Sequence[str], size: int, channels: int, squash: bool = False
) -> tuple[Tensor, dict[int, str]]:
    """The readable images, in order, and the reasons why others are not, by number. Paths are absolute."""
    shape = (channels, size, size)
    if len(files) <= FEW:
        return _joined([image_files.decode(files, size, channels, squash=squash)], shape)
    return _joined([task.result() for task in _submitted(files, shape, -(-len(files) // 64), squash)], shape)


def _submitted(files: Sequence[str], shape: Sequence[int], n_tasks: int, squash: bool) -> list[Decoding]:
    ends = [len(files) * k // n_tasks for k in range(n_tasks + 1)]
    return [
        workers.submit(image_files.decode, files[a:b], shape[1], shape[0], None, squash)
        for a, b in pairwise(ends)
    ]


def _joined(parts: Iterable[list[Decoded | str]], shape: Sequence[int]) -> tuple[Tensor, dict[int, str]]:
    results = [one for part in parts for one in part]
    good = bytearray().join(one.pixels for one in results if isinstance(one, Decoded))
    c, h, w = shape
    pixels = torch.frombuffer(good, dtype=torch.uint8) if good else torch.empty(0, dtype=torch.uint8)
    skipped = {i: one for i, one in enumerate(results) if isinstance(one, str)}
    return pixels.view(-1, h, w, c).permute(0, 3, 1, 2), skipped


def fingerprints(images: Images) -> NDArray[np.void]:
    """A hash of each image.  (n,)"""
    if isinstance(images, Part):
        return fingerprints(images.images)[images.rows.numpy()]  # type: ignore[no-any-return]
    prints = getattr(images, "prints", None)
    if prints is not None:
        return prints  # type: ignore[no-any-return]
    channels_last = (image for piece in pieces(images) for image in piece.permute(0, 2, 3, 1).numpy())
    return np.frombuffer(b"".join(map(image_files.fingerprint, channels_last)), PRINT)


def expect(images: Images, rows: Tensor) -> None:
    """Tells which rows will be needed next; images that are decoded on the fly are prefetched."""
    if isinstance(images, Part):
        expect(images.images, images.rows[rows])
    elif isinstance(images, OnTheFly):
        images.expect(rows)


def takes_time(images: Images) -> bool:
    """Whether `expect` has any effect."""
    return takes_time(images.images) if isinstance(images, Part) else isinstance(images, OnTheFly)


def pieces(images: Images, values: int = 2**24) -> Iterator[Tensor]:
    """All images in order, in tensors of at most so many values (but at least one image)."""
    each = max(1, values // int(np.prod(images.shape[1:])))
    parts = torch.arange(len(images)).split(each)
    for i, rows in enumerate(parts):
        piece = images[rows]
        if i + 1 < len(parts):
            expect(images, parts[i + 1])
        yield piece


@dataclass(frozen=True)
class Listing:
    """Images with their names and labels. The images are pixels, or files that are not opened yet.

    Labels are as the user or the publisher gives them; for a benchmark they are places in its classes.
    """

    names: tuple[str, ...]
    labels: NDArray[Any]  # (n,)
    images: Images | tuple[str, ...]  # uint8 (n, c, h, w), or paths
    root: str = ""  # of files: what they have in common; it names the store of their pixels

    def __len__(self) -> int:
        return len(self.names)

    @property
    def files(self) -> tuple[str, ...] | None:
        """The paths of the images, or None if they are pixels."""
        return self.images if isinstance(self.images, tuple) else None

    @property
    def pixels(self) -> Images:
        """The images, once they are opened."""
        assert not isinstance(self.images, tuple)
        return self.images

    def rows(self, rows: NDArray[np.int64]) -> "Listing":
        """Some of the images."""
        names = tuple(self.names[i] for i in rows.tolist())
        files = self.files and tuple(self.files[i] for i in rows.tolist())
        images = Part(self.pixels, torch.from_numpy(rows)) if files is None else files
        return Listing(names, self.labels[rows], images, self.root)

"""Images as rows of uint8 (n, c, h, w) that are asked for by number: in memory, on disk, or in files.

What was decoded from files has each pixel's channels together in memory, whatever the shape says.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openldn.data import images as image_files
from openldn.data import workers
from openldn.errors import UserError

PRINT = np.dtype(f"V{image_files.PRINT}")


class Images(Protocol):
    """What a tensor in memory offers too."""

    @property
    def shape(self) -> Sequence[int]:
        """(n, c, h, w)"""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Tensor: ...


class Part:
    """Some rows of other images, which are not copied."""

    def __init__(self, images: Images, rows: Tensor):
        self.images, self.rows = images, rows
        self.shape = (len(rows), *images.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.images[self.rows[rows]]


class Stored:
    """Rows of a file of pixels, which is mapped into memory and read as far as it is needed."""

    def __init__(self, file: Path, places: NDArray[np.int64], prints: NDArray[np.void], shape: Sequence[int]):
        c, h, w = shape
        each = c * h * w
        n_places = file.stat().st_size // each
        pool = torch.from_file(str(file), shared=False, size=n_places * each, dtype=torch.uint8)
        self._pool, self._places = pool.view(n_places, h, w, c), torch.from_numpy(places)
        self.prints, self.shape = prints, (len(places), *shape)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._pool[self._places[rows]].permute(0, 3, 1, 2)


class OnTheFly:
    """Images that are decoded by worker processes each time they are needed: for want of disk space."""

    def __init__(self, paths: Sequence[str | Path], prints: NDArray[np.void], shape: Sequence[int]):
        self.paths, self.prints, self.shape = paths, prints, (len(paths), *shape)
        self._expected: dict[bytes, list[Future[list[bytes | str]]]] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def expect(self, rows: Tensor) -> None:
        """Begins to decode what will be asked for next."""
        parts = np.array_split(rows.numpy(), min(len(rows), 2 * workers.count()) or 1)
        files = [[str(self.paths[i]) for i in part.tolist()] for part in parts]
        begun = [workers.submit(image_files.decode, some, self.shape[2], self.shape[1]) for some in files]
        self._expected[rows.numpy().tobytes()] = begun
        while (
            len(self._expected) > 4
        ):  # what nobody came for: the end of an epoch may be another than expected
            self._expected.pop(next(iter(self._expected)))

    def __getitem__(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return torch.empty((0, *self.shape[1:]), dtype=torch.uint8)
        if (asked := rows.numpy().tobytes()) not in self._expected:
            self.expect(rows)
        begun = self._expected.pop(asked)
        results, made = [result for future in begun for result in future.result()], bytearray()
        for row, result in zip(rows.tolist(), results, strict=True):
            if isinstance(result, str):
                raise UserError(
                    f"{self.paths[row]} could be read before and now cannot ({result}); "
                    "bring it back, or train anew"
                )
            made += result
        c, h, w = self.shape[1:]
        return torch.frombuffer(made, dtype=torch.uint8).view(len(rows), h, w, c).permute(0, 3, 1, 2)


def fingerprints(images: Images) -> NDArray[np.void]:
    """A fingerprint of each image.  (n,)"""
    if isinstance(images, Part):
        prints: NDArray[np.void] = fingerprints(images.images)[images.rows.numpy()]
        return prints
    if isinstance(images, Stored | OnTheFly):
        return images.prints
    made = [
        image_files.fingerprint(image)
        for piece in pieces(images)
        for image in piece.permute(0, 2, 3, 1).numpy()
    ]
    return np.frombuffer(b"".join(made), PRINT)


def takes_time(images: Images) -> bool:
    """Whether it helps to say which rows will be asked for."""
    return takes_time(images.images) if isinstance(images, Part) else isinstance(images, OnTheFly)


def expect(images: Images, rows: Tensor) -> None:
    """Says which rows will be asked for next, for images that take their time."""
    if isinstance(images, Part):
        expect(images.images, images.rows[rows])
    elif isinstance(images, OnTheFly):
        images.expect(rows)


def pieces(images: Images, values: int = 2**24) -> Iterator[Tensor]:
    """All images in order, so many values at a time (or one image), whatever their number and size."""
    each = max(1, values // int(np.prod(images.shape[1:])))
    parts = torch.arange(len(images)).split(each)
    for i, rows in enumerate(parts):
        piece = images[rows]
        if i + 1 < len(parts):
            expect(images, parts[i + 1])
        yield piece

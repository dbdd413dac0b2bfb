"""Images with their names and labels, before any image file is opened."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openldn.data.pixels import Images, Part


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
        images: Images | tuple[str, ...]
        if self.files is None:
            images = Part(self.pixels, torch.from_numpy(rows))
        else:
            images = tuple(self.files[i] for i in rows.tolist())
        return Listing(names, self.labels[rows], images, self.root)

"""Features of images, computed once by a frozen network and kept on disk.

Rows are float16 (views, d): the features of the image itself, then those of its other views. Their keys are
fingerprints of decoded images. So a changed image is computed again, and one that is found again, in whatever
folder, is not.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openldn import lock
from openldn.data import image_files, store
from openldn.data.draws import Draws, Keys, integers, keys_of
from openldn.data.pixels import Images, expect, fingerprints
from openldn.data.row_store import RowStore
from openldn.data.store import Watch
from openldn.errors import UserError

FORMAT = 1  # raised when features are computed in another way, so that old ones are not used
BYTES = 2  # of a number, float16
AT_ONCE = 256  # images whose features are recorded together
DROPPED = 0.2  # share of the features that a strong view lacks

Compute = Callable[[Tensor], Tensor]  # uint8 (n, c, h, w) -> (n, views, d)


class Features:
    """Features (n, views, d) in a memory-mapped file; `prints` are the fingerprints of their images."""

    def __init__(self, file: Path, places: NDArray[np.int64], prints: NDArray[np.void], views: int, d: int):
        n = file.stat().st_size // (BYTES * views * d)
        mapped = torch.from_file(str(file), shared=False, size=n * views * d, dtype=torch.float16)
        self._mapped, self._places = mapped.view(n, views, d), torch.from_numpy(places)
        self.prints, self.shape = prints, (len(places), views, d)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._mapped[self._places[rows]].float()


class SideBySide:
    """Features of several networks, each of unit length, one after the other."""

    def __init__(self, parts: Sequence[Features]):
        self.parts, self.prints = parts, parts[0].prints
        self.shape = (*parts[0].shape[:2], sum(part.shape[2] for part in parts))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.cat([F.normalize(part[rows], dim=2) for part in self.parts], dim=2)


class MeanOverViews:
    """Features (n, views, d), averaged over the views where rows are asked for.  (n, d)"""

    def __init__(self, images: Images):
        self.images, self.shape = images, (images.shape[0], images.shape[2])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.images[rows].mean(dim=1)


@dataclass(frozen=True)
class Recipe:
    """How features are computed. `key` names the network, its weights, and all else that they depend on."""

    key: str
    views: int
    d: int
    compute: Compute
    batch: int  # images per call of `compute`


def features(images: Images, recipe: Recipe, watch: Watch | None = None) -> Features:
    """The features of all images; those that are not stored yet are computed first, and then stored."""
    prints = fingerprints(images)
    folder = store.folder(f"features\0{FORMAT}\0{recipe.key}\0{recipe.views}\0{recipe.d}")
    with lock.held(folder / "lock", busy=None):
        rows = RowStore(folder, "features", BYTES * recipe.views * recipe.d)
        known = rows.index.places()
        missing = {mark: i for i, mark in enumerate(prints.tolist()) if mark not in known}
        if missing:
            _compute(images, sorted(missing.values()), prints, recipe, rows, watch)
            known = rows.index.places()
        places = np.array([known[mark] for mark in prints.tolist()], np.int64)
        return Features(rows.file, places, prints, recipe.views, recipe.d)


def _compute(
    images: Images,
    missing: list[int],
    prints: NDArray[np.void],
    recipe: Recipe,
    rows: RowStore,
    watch: Watch | None,
) -> None:
    if not rows.has_room(len(missing)):
        size = f"features of {len(missing):,} images take {len(missing) * rows.each / 1e9:.1f} GB"
        where = f"more than {rows.folder} has room for"
        raise UserError(f"{size}, {where}; make room, or name another place in $OPENLDN_CACHE")
    parts = torch.tensor(missing).split(AT_ONCE)
    done = 0
    try:
        for k, part in enumerate(parts):
            pixels = images[part]
            if k + 1 < len(parts):
                expect(images, parts[k + 1])
            made = torch.cat([recipe.compute(piece) for piece in pixels.split(recipe.batch)])
            data = made.half().contiguous().numpy().view(np.uint8).reshape(len(part), -1)
            place = rows.append(data)
            marks = [image_files.fingerprint(row) for row in data]
            keys = prints[part.numpy()].tolist()
            rows.index.add([(keys[i], marks[i], place + i) for i in range(len(part))])
            done += len(part)
            if watch is not None:
                watch("features", done, len(missing))
        rows.trust()
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        remedy = "make room, or name another place in $OPENLDN_CACHE, and start again"
        raise UserError(f"the disk is full, so features cannot be stored; {remedy}") from None


# ----------------------------------------------------------------------------------------------- views


def views(z: Tensor, names: tuple[str, ...], keys: Keys) -> tuple[Tensor, ...]:
    """One view per name of stored views z (n, v, d): one of them at random.  (n, d) each

    In all views but `weak`, some features are dropped and the others scaled up (dropout).
    """
    n, v, d = z.shape
    made = []
    for k, name in enumerate(names):
        draws = Draws(keys_of(keys, k))
        chosen = torch.from_numpy(integers(draws.uniform(1)[0], 0, v))
        view = z[torch.arange(n), chosen]
        if name != "weak":
            kept = torch.from_numpy(draws.uniform(d).T >= DROPPED)
            view = view * kept / (1 - DROPPED)
        made.append(view)
    return tuple(made)

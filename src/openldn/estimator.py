"""OpenLDN as a scikit-learn estimator."""

import atexit
import operator
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from openldn.config import PRESETS, ClosedWorldName, Options
from openldn.data.problem import UNLABELLED
from openldn.data.sources import arrays
from openldn.errors import UserError
from openldn.inference import load_model
from openldn.model import Model, Prediction
from openldn.pipeline import check, go_on, start
from openldn.run import Run, read_json, write_json

N = TypeVar("N")
TRANSDUCTION = "transduction.json"  # in a run: a label for every row that an estimator was given


class OpenLDN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns known classes from a few labels and discovers novel ones.

    n_novel: how many novel classes there are, or "auto" to estimate it.
    closed_world: stage 2: "mixmatch", "uda", "fixmatch", "mean-teacher", or None for stage 1 alone.
    backbone: "small", "medium", "resnet18", "resnet50", or a module that maps images to features (n, d); a
        copy is trained, all of it in training mode, each stage from the weights it came with.
    preset: "fast" (minutes on a CPU) or "paper" (the paper's settings and lengths).
    device: "auto", "cpu", "cuda" or "mps".
    epochs: passes over the unlabelled images in all (default: the preset's).
    flip: whether a mirrored image shows the same thing; say False for digits or text.
    seed: seed of all that is random.
    out: where the run is kept (default: a folder that lasts as long as the process). If it holds a run of
        the same images, labels and settings, that run goes on, or is taken as it is when finished.
    verbose: whether to show progress.

    After `fit`: `classes_` (known ones sorted, then novel ones), `n_known_`, `n_novel_`, `transduction_`
    (a label for every row; given ones never change, and a file that cannot be read has none) and `run_`.
    """

    def __init__(
        self,
        n_novel: int | Literal["auto"] = "auto",
        *,
        closed_world: ClosedWorldName | None = "uda",
        backbone: str | nn.Module | None = None,
        preset: Literal["fast", "paper"] = "fast",
        device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
        epochs: float | None = None,
        flip: bool = True,
        seed: int = 0,
        out: str | Path | None = None,
        verbose: bool = False,
    ):
        self.n_novel = n_novel
        self.closed_world = closed_world
        self.backbone = backbone
        self.preset = preset
        self.device = device
        self.epochs = epochs
        self.flip = flip
        self.seed = seed
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "OpenLDN":
        """Trains on images `X` and labels `y`.

        X: uint8 array (n, h, w) or (n, h, w, 3), or a list of image paths; of what is not square, the centre.
        y: integers with -1 for unlabelled, or strings with "" or None for unlabelled.
        """
        if self.n_novel != "auto" and (
            isinstance(self.n_novel, bool) or not isinstance(self.n_novel, int | np.integer)
        ):
            raise UserError(
                f"n_novel={self.n_novel!r} is neither a whole number nor 'auto'; give one of these"
            )
        custom = self.backbone if isinstance(self.backbone, nn.Module) else None
        options = Options(
            novel=self.n_novel if self.n_novel == "auto" else int(self.n_novel),
            method="openldn" if self.closed_world is None else f"openldn-{self.closed_world}",
            preset=self.preset,
            epochs=None if self.epochs is None else _number(float, "epochs", self.epochs),
            seed=_number(operator.index, "seed", self.seed),
            device=self.device,
            backbone=None if custom is not None else self.backbone,  # type: ignore[arg-type]
            flip=bool(self.flip),
        )
        n_novel = 1 if options.novel == "auto" else int(options.novel or 0)
        check(options)
        problem, kept, skipped = arrays.read(
            X, y, n_novel=n_novel, flip=bool(self.flip), largest=PRESETS[self.preset].largest
        )
        quiet = not self.verbose
        if self.out is not None and Path(self.out).exists():
            self.run_ = go_on(_same(Path(self.out), options), problem, None, backbone=custom, quiet=quiet)
        else:
            path = Path(self.out) if self.out is not None else _passing_folder() / "run"
            source = {"kind": "arrays"}
            self.run_ = start(
                problem, None, options, source, path, backbone=custom, skipped=skipped, quiet=quiet
            )
        self._take(load_model(self.run_, custom))
        predicted = self.model_.predict(problem.images).ids.numpy()
        given = problem.labels.numpy()
        labels = self.classes_[np.where(given == UNLABELLED, predicted, given)]
        none = UNLABELLED if self.classes_.dtype.kind == "i" else ""
        self.transduction_ = np.full(len(kept) + len(skipped), none, self.classes_.dtype)
        self.transduction_[kept] = labels
        write_json(self.run_.path / TRANSDUCTION, self.transduction_.tolist())
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each image."""
        ids = self._predict(X).ids.numpy()
        labels: NDArray[Any] = self.classes_[ids]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities (n, C), columns as in `classes_`."""
        p = self._predict(X).p.double()
        proba: NDArray[np.float64] = (p / p.sum(dim=1, keepdim=True)).numpy()
        return proba

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Features (n, d)."""
        z: NDArray[np.float32] = self._predict(X).z.numpy()
        return z

    def save(self, path: str | Path) -> None:
        """The run without its checkpoints, at a new place; `openldn.load` gives the model back."""
        check_is_fitted(self)
        self.run_.copy_to(Path(path))

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self, "model_")
        parts = [*map(self.model_.predict, arrays.in_parts(X, self.model_.size, self.model_.channels))]
        return Prediction(torch.cat([part.p for part in parts]), torch.cat([part.z for part in parts]))

    def _take(self, model: Model) -> None:
        self.model_ = model
        self.classes_ = np.array(model.classes)
        self.n_known_, self.n_novel_ = model.n_known, len(model.classes) - model.n_known


def load(path: str | Path, *, backbone: nn.Module | None = None) -> OpenLDN:
    """The model of a finished run, as an estimator that can predict."""
    run = Run.open(path)
    model, options = load_model(run, backbone), run.options
    loaded = OpenLDN(
        n_novel=len(model.classes) - model.n_known,
        closed_world=options.method.partition("openldn-")[2] or None,  # type: ignore[arg-type]
        backbone=backbone or options.backbone,
        preset=options.preset,
        device=options.device,
        epochs=options.epochs,
        flip=bool(run.config["image"]["flip"]),
        seed=options.seed,
    )
    loaded.run_ = run
    loaded._take(model)
    if (file := run.path / TRANSDUCTION).exists():  # of a run that an estimator made
        labels = read_json(file, "remove it, or take the run from a backup")
        loaded.transduction_ = np.array(labels, loaded.classes_.dtype)
    return loaded


def _number(kind: Callable[[Any], N], name: str, given: Any) -> N:
    """A plain number, whatever library it comes from."""
    try:
        return kind(given)
    except (TypeError, ValueError):
        raise UserError(f"{name}={given!r} is not a number that can be used; give a plain one") from None


def _same(path: Path, options: Options) -> Run:
    """The run at `path`, if it was begun with the same options."""
    run = Run.open(path)
    before, now = asdict(run.options), asdict(options)
    if differing := [name for name in now if now[name] != before[name]]:
        name = differing[0]
        raise UserError(
            f"{path} exists already, with {name} {before[name]!r} instead of {now[name]!r}; "
            "choose another out, or the same settings"
        )
    return run


def _passing_folder() -> Path:
    """A folder that is gone when the process ends."""
    folder = tempfile.mkdtemp(prefix="openldn-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)

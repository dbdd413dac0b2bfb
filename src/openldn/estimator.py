"""OpenLDN, and every other system, as a scikit-learn estimator."""

import atexit
import operator
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from openldn.choice import choose
from openldn.data import reading
from openldn.data.pixels import Images
from openldn.data.problem import UNLABELLED
from openldn.errors import UserError
from openldn.files import read_json, write_json
from openldn.inference import load_model
from openldn.job import go_on, start
from openldn.maths import metrics
from openldn.model import Model
from openldn.nets.classifier import Prediction
from openldn.options import DeviceName, Options, Precision, PresetName, Weights
from openldn.pipeline import check, decided
from openldn.progress import watcher
from openldn.run import Run

N = TypeVar("N")
ClosedWorldName = Literal["mixmatch", "uda", "fixmatch", "mean-teacher"]
TRANSDUCTION = "transduction.json"  # in a run: a label for every row that an estimator was given


class OpenLDN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns known classes from a few labels and discovers novel ones.

    n_novel: the number of novel classes, or "auto" to estimate it.
    closed_world: OpenLDN's stage 2: "mixmatch", "uda", "fixmatch", "mean-teacher", or None for stage 1 alone.
    method: any system by name, such as "orca" or "pu-self-training" (`openldn systems`); it overrules
        `closed_world`. Default: OpenLDN.
    settings: hyperparameters of the system, such as {"lr": 1e-3} (`openldn systems NAME` lists them).
    weights: "scratch" (a network learns from scratch, or a module of yours from the weights it came with),
        "frozen" (features of a pretrained network, or of your module, which stays as it is), "fine-tuned"
        (pretrained weights go on learning), or "auto" (what does best on known classes hidden as if novel).
        Without `method`, it also chooses the system. Default: "scratch", or "frozen" if `backbone` names a
        pretrained network.
    backbone: "small", "medium", "resnet18", "resnet50", a pretrained network (`openldn backbones`, a Hugging
        Face id or a folder), or a module that maps images to features (n, d). A copy of it is trained, all of
        it in training mode, each stage from the weights it came with.
    preset: "fast" (minutes on a CPU) or "paper" (the paper's settings and lengths).
    device: "auto", "cpu", "cuda" or "mps".
    precision: "float32", "bfloat16" (mixed precision), or None for the faster one on this machine.
    epochs: passes over the unlabelled images in all (default: the preset's).
    size: pixels that image files are resized to (default: chosen from the images).
    flip: whether a horizontally flipped image shows the same thing; say False for digits or text.
    seed: random seed.
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
        method: str | None = None,
        settings: Mapping[str, Any] | None = None,
        weights: Weights | None = None,
        backbone: str | nn.Module | None = None,
        preset: PresetName = "fast",
        device: DeviceName = "auto",
        precision: Precision | None = None,
        epochs: float | None = None,
        size: int | None = None,
        flip: bool = True,
        seed: int = 0,
        out: str | Path | None = None,
        verbose: bool = False,
    ):
        self.n_novel = n_novel
        self.closed_world = closed_world
        self.method = method
        self.settings = settings
        self.weights = weights
        self.backbone = backbone
        self.preset = preset
        self.device = device
        self.precision = precision
        self.epochs = epochs
        self.size = size
        self.flip = flip
        self.seed = seed
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "OpenLDN":
        """Trains on images `X` and labels `y`.

        X: uint8 array (n, h, w) or (n, h, w, 3), or a list of image paths; images that are not square are
            centre-cropped.
        y: integers with -1 for unlabelled, or strings with "" or None for unlabelled.
        """
        custom = self.backbone if isinstance(self.backbone, nn.Module) else None
        quiet = not self.verbose

        def read(options: Options) -> reading.Given:
            return reading.read_arrays(
                X,
                y,
                n_novel=1 if options.novel == "auto" else int(options.novel or 0),
                flip=bool(self.flip),
                size=options.size,
                largest=options.largest,
            )

        options = decided(self._options(), {"kind": "arrays"})
        rehearsals: Mapping[Weights, float] = {}
        if options.weights == "auto":
            automatic = options.novel == "auto"
            options, rehearsals = choose(
                lambda own: read(own).problem, options, watcher(quiet), automatic=automatic
            )
            check(options)
        given = read(options)
        if self.out is not None and Path(self.out).exists():
            self.run_ = go_on(
                _same(Path(self.out), options), given.problem, None, backbone=custom, quiet=quiet
            )
        else:
            path = Path(self.out) if self.out is not None else _temporary_folder() / "run"
            source = {"kind": "arrays"}
            self.run_ = start(
                given, options, source, path, backbone=custom, rehearsals=rehearsals, quiet=quiet
            )
        self._take(load_model(self.run_, custom))
        images: Images = given.problem.images
        if self.model_.encoder is not None:
            images = self.model_.encoder.features(images)  # they are in the store by now
        predicted = self.model_.predict(images).ids.numpy()
        labels = given.problem.labels.numpy()
        none = UNLABELLED if self.classes_.dtype.kind == "i" else ""
        self.transduction_ = np.full(len(given.kept) + len(given.skipped), none, self.classes_.dtype)
        self.transduction_[given.kept] = self.classes_[np.where(labels == UNLABELLED, predicted, labels)]
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

    def score(self, X: Any, y: Any, sample_weight: None = None) -> float:
        """Accuracy in [0, 1]: known classes by name, novel ones by the best matching (protocol `anchored`).

        The names of novel classes are arbitrary, so their plain accuracy would mean nothing. A label in `y`
        that is not a known class is a novel one; unlabelled rows (-1, "" or None) are left out.
        """
        if sample_weight is not None:
            raise UserError("score takes no sample_weight; leave it out")
        predicted = self._predict(X).ids.numpy()
        true = np.asarray(y)
        if true.shape != predicted.shape:
            raise UserError(
                f"there are {len(predicted)} images but labels of shape {true.shape}; give one each"
            )
        rows = [i for i, label in enumerate(true.tolist()) if label not in (UNLABELLED, "", None)]
        known, n_ids = self.classes_[: self.n_known_].tolist(), len(self.classes_)
        result = metrics.evaluate_labels(true[rows].tolist(), predicted[rows], known, n_ids=n_ids)
        return float(result["protocols"]["anchored"]["all"]) / 100

    def save(self, path: str | Path) -> None:
        """The run without its checkpoints, at a new place; `openldn.load` gives the model back."""
        check_is_fitted(self)
        self.run_.copy_to(Path(path))

    def _options(self) -> Options:
        if self.n_novel != "auto" and (
            isinstance(self.n_novel, bool) or not isinstance(self.n_novel, int | np.integer)
        ):
            raise UserError(
                f"n_novel={self.n_novel!r} is neither a whole number nor 'auto'; give one of these"
            )
        alone = "openldn" if self.closed_world is None else f"openldn-{self.closed_world}"
        return Options(
            novel="auto" if self.n_novel == "auto" else int(self.n_novel),
            method=self.method or (None if self.weights else alone),
            weights=self.weights,
            settings=dict(self.settings or {}),
            preset=self.preset,
            epochs=None if self.epochs is None else _number(float, "epochs", self.epochs),
            seed=_number(operator.index, "seed", self.seed),
            device=self.device,
            precision=self.precision,
            backbone=None if isinstance(self.backbone, nn.Module) else self.backbone,
            size=None if self.size is None else _number(operator.index, "size", self.size),
            flip=bool(self.flip),
        )

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self, "model_")
        parts = []
        for part in reading.new_images(
            X, size=self.model_.size, channels=self.model_.channels, squash=self.model_.squash
        ):
            if part.skipped:
                name, reason = part.skipped[0]
                raise UserError(f"{name} cannot be read ({reason}); repair it or leave it out")
            parts.append(self.model_.predict(part.images))
        return Prediction(torch.cat([part.p for part in parts]), torch.cat([part.z for part in parts]))

    def _take(self, model: Model) -> None:
        self.model_ = model
        self.classes_ = np.array(model.classes)
        self.n_known_, self.n_novel_ = model.n_known, len(model.classes) - model.n_known


def load(path: str | Path, *, backbone: nn.Module | None = None) -> OpenLDN:
    """The model of a finished run, as the estimator that would train it again."""
    run = Run.open(path)
    model, options = load_model(run, backbone), run.options
    loaded = OpenLDN(
        n_novel=len(model.classes) - model.n_known,
        method=options.method,
        settings=dict(options.settings) or None,
        weights=options.weights,
        backbone=backbone or options.backbone,
        preset=options.preset,
        device=options.device,
        precision=options.precision,
        epochs=options.epochs,
        size=options.size,
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


def _temporary_folder() -> Path:
    """A folder that is gone when the process ends."""
    folder = tempfile.mkdtemp(prefix="openldn-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)

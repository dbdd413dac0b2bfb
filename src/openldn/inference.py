"""What a finished run is good for: labels for images, and how good they are."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openldn import device, systems
from openldn.data import image_files, reading, store
from openldn.data.pixels import Images, Part
from openldn.data.problem import Truth
from openldn.data.sources import folder
from openldn.errors import UserError
from openldn.files import read_json, write_csv
from openldn.maths import metrics
from openldn.model import Model
from openldn.run import SKIPPED, Run

PREDICTIONS = ("image", "label", "confidence", "kind")
AT_ONCE = 20_000  # images whose features are in memory together


def predict(run: Run | str | Path, images: str | Path, out: str | Path) -> int:
    """Labels new images, a file or all below a folder, into a CSV file; returns their number.

    Images that cannot be read are left out, and listed with their reasons in a second file beside it.
    """
    run, out = _finished(run), Path(out)
    model = load_model(run)
    beside = out.with_name(f"{out.stem}.skipped.csv")
    for file in (out, beside):
        if file.exists():
            raise UserError(
                f"{file} exists already and is not overwritten; choose another --out, or remove it"
            )
    if not out.parent.is_dir():
        raise UserError(
            f"there is no folder {out.parent} to write {out.name} in; make it, or choose another --out"
        )
    skipped = list[tuple[str, str]]()
    labelled = 0

    def rows() -> Iterator[Sequence[Any]]:
        nonlocal labelled
        for part in reading.new_images(images, size=model.size, channels=model.channels, squash=model.squash):
            skipped.extend(part.skipped)
            labelled += len(part.names)
            if part.names:
                yield from prediction_rows(model, part.names, part.images)

    write_csv(out, PREDICTIONS, rows())
    if skipped:
        write_csv(beside, SKIPPED, skipped)
        image_files.warn_of_unreadable(skipped, labelled + len(skipped), str(beside))
    return labelled


def prediction_rows(model: Model, names: Sequence[str], images: Images) -> Iterator[Sequence[Any]]:
    """Rows of `image,label,confidence,kind`."""
    for rows in torch.arange(len(images)).split(AT_ONCE):
        part = Part(images.images, images.rows[rows]) if isinstance(images, Part) else Part(images, rows)
        prediction = model.predict(part)
        labels = [model.classes[i] for i in prediction.ids.tolist()]
        confidence = [f"{c:.4f}" for c in prediction.confidence.tolist()]
        names_of = [names[i] for i in rows.tolist()]
        yield from zip(names_of, labels, confidence, model.kind(prediction), strict=True)


def predicted_ids(run: Run) -> NDArray[np.int64]:
    """The class ids that a finished run predicted, of its unlabelled images in order.  (n,)"""
    names = read_json(run.path / "classes.json", "train again")
    ids = {str(name): i for i, name in enumerate([*names["known"], *names["novel"]])}
    with (run.path / "predictions.csv").open(newline="", encoding="utf-8") as f:
        return np.array([ids[row["label"]] for row in csv.DictReader(f)], np.int64)


def evaluate(
    run: Run | str | Path,
    truth: str | Path | None = None,
    predictions: str | Path | None = None,
    *,
    as_authors: bool = False,
) -> dict[str, Any]:
    """Known, novel and all accuracy under every protocol.

    A named data set is evaluated on its test images. For one's own images, `truth` is a CSV file of
    `image,label` with the ground truth of unlabelled images; a label that is not a known class is novel.
    Other images in that file are counted (`left_out`) and ignored. `predictions` is a file that `predict`
    wrote, to evaluate new images instead. `as_authors` adds the metric of the code of OpenLDN's authors.
    """
    run = _finished(run)
    if truth is not None:
        file = Path(predictions or run.path / "predictions.csv")
        return _evaluate_csv(run, Path(truth), file, as_authors)
    if predictions is not None:
        raise UserError("predictions are evaluated by their ground truth; give it with --truth FILE.csv")
    if run.config["data"]["kind"] != "named":
        raise UserError(
            f"{run.path} has no test images; give true classes of unlabelled images with --truth FILE.csv"
        )
    test = reread(run).truth
    assert test is not None
    return score(load_model(run), test, as_authors=as_authors)


def reread(run: Run, watch: store.Watch | None = None) -> reading.Given:
    """The images and labels that a run was begun with."""
    split = run.path / "split.json" if run.options.split is not None else None
    return reading.read(run.config["data"], run.options, split=split, watch=watch)


def score(model: Model, truth: Truth, *, as_authors: bool = False) -> dict[str, Any]:
    """Every protocol on the test images of a benchmark.

    Where the model rejects images, also the percentage of known images it would get right if it rejected
    none: `none_rejected`.
    """
    outputs, predictor = model.outputs(truth.images), model.predictor
    result = metrics.evaluate(
        truth.labels,
        predictor.probabilities(outputs).argmax(dim=1).numpy(),
        n_known=truth.n_known,
        n_classes=truth.n_classes,
        n_ids=len(model.classes),
        ordered=predictor.ordered,
        as_authors=as_authors,
    )
    known, logits = truth.labels < truth.n_known, predictor.known_logits(outputs)
    if logits is not None and known.any():
        right = logits.argmax(dim=1).numpy() == truth.labels
        result["none_rejected"] = 100 * float(right[known].mean())
    return result


def load_model(run: Run, backbone: torch.nn.Module | None = None) -> Model:
    """The model of a finished run, on the run's device, or the fastest one available."""
    name = run.options.device
    on = device.pick(name) if device.available(name) else device.pick("auto")
    return Model.load(run.path, backbone, on)


def _finished(run: Run | str | Path) -> Run:
    """A run that has a model; an error if it has not yet."""
    run = run if isinstance(run, Run) else Run.open(run)
    if not run.finished:
        raise UserError(f"{run.path} is not finished; go on with it: openldn resume {run.path}")
    return run


def _evaluate_csv(run: Run, truth: Path, file: Path, as_authors: bool) -> dict[str, Any]:
    hint = f"the run is incomplete; go on with it: openldn resume {run.path}"
    names = read_json(run.path / "classes.json", hint)
    try:
        known = [str(name) for name in names["known"]]
        ids = {name: i for i, name in enumerate([*known, *map(str, names["novel"])])}
        with file.open(newline="", encoding="utf-8") as f:
            predicted = {row["image"]: ids[row["label"]] for row in csv.DictReader(f)}
    except (OSError, KeyError, TypeError, UnicodeDecodeError, csv.Error):
        raise UserError(
            f"{file} is missing, or its labels are not the classes of {run.path}; give a file that "
            "`openldn predict` wrote, or train again"
        ) from None
    found = folder.trimmed(folder.read_labels(truth), predicted)
    given = {image: label for image, label in found.items() if label and image in predicted}
    if not given:
        example = next((image for image in found if found[image]), None)
        what = f"it names {example!r}, among others" if example else "it has no labels"
        raise UserError(
            f"{truth} names none of the images in {file} ({what}); name them as that file does, such as "
            f"{next(iter(predicted), '')!r}"
        )
    ours = [predicted[image] for image in given]
    result = metrics.evaluate_labels(
        [*given.values()], ours, known, n_ids=len(ids), ordered=_ordered(run), as_authors=as_authors
    )
    return {**result, "images": len(given), "left_out": sum(map(bool, found.values())) - len(given)}


def _ordered(run: Run) -> bool:
    """Whether a finished run's known ids are the known classes by construction."""
    stage = systems.find(run.options.method).stages[-1]
    return stage.predictor(stage.settings()).ordered

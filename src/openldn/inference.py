"""What a finished run is good for: labels for images, and how good they are."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from openldn import device, metrics
from openldn.data import images as image_files
from openldn.data import reading, store
from openldn.data.pixels import Images
from openldn.data.problem import Truth
from openldn.data.sources import arrays, folder
from openldn.errors import UserError
from openldn.model import Model
from openldn.nets.classifier import infer
from openldn.predictors import PREDICTORS, RejectAndCluster
from openldn.run import SKIPPED, Run, read_json, read_metadata, write_csv

PREDICTIONS = ("image", "label", "confidence", "kind")


def predict(run: Run | str | Path, images: str | Path, out: str | Path) -> int:
    """Labels new images, a file or all below a folder, into a CSV file; gives their number.

    Images that cannot be read are left out, and listed with their reasons in a second file beside it.
    """
    run, data, out = _finished(run), Path(images), Path(out)
    model = load_model(run)
    if not data.exists():
        raise UserError(f"there is nothing at {data}; give an image or a folder of images")
    paths = [data / name for name in image_files.find(data)] if data.is_dir() else [data]
    if not paths:
        raise UserError(f"there are no images in {data}; give an image or a folder of images")
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

    skipped: dict[Path, str] = {}

    def name(path: Path) -> str:
        return image_files.shown(path.relative_to(data).as_posix() if data.is_dir() else path)

    def rows() -> Iterator[Sequence[Any]]:
        for i in range(0, len(paths), arrays.AT_ONCE):
            part = paths[i : i + arrays.AT_ONCE]
            pixels, unreadable = arrays.decode_readable(part, model.size, model.channels)
            skipped.update(unreadable)
            if len(skipped) == len(paths):
                path, reason = next(iter(skipped.items()))
                shown = image_files.shown(path)
                raise UserError(f"{shown} cannot be read ({reason}); give an image or a folder of images")
            names = [name(path) for path in part if path not in unreadable]
            yield from prediction_rows(model, names, pixels)

    write_csv(out, PREDICTIONS, rows())
    if skipped:
        left_out = [(name(path), reason) for path, reason in skipped.items()]
        write_csv(beside, SKIPPED, left_out)
        image_files.warn_of_unreadable(left_out, len(paths), str(beside))
    return len(paths) - len(skipped)


def prediction_rows(model: Model, names: Sequence[str], images: Images) -> Iterator[Sequence[Any]]:
    """Rows of `image,label,confidence,kind`."""
    prediction = model.predict(images)
    labels = [model.classes[i] for i in prediction.ids.tolist()]
    confidence = [f"{c:.4f}" for c in prediction.confidence.tolist()]
    return zip(names, labels, confidence, model.kind(prediction), strict=True)


def evaluate(run: Run | str | Path, truth: str | Path | None = None) -> dict[str, Any]:
    """Known, novel and all under every protocol.

    A named set is judged by its test images. For one's own images, `truth` is a CSV file of `image,label` for
    images that were unlabelled; a label that is not a known class is a novel one.
    """
    run = _finished(run)
    if truth is not None:
        return _evaluate_csv(run, Path(truth))
    source = run.config["data"]
    if source["kind"] != "named":
        raise UserError(
            f"{run.path} has no test images; give true classes of unlabelled images with --truth FILE.csv"
        )
    test = reread(run).truth
    assert test is not None
    return score(load_model(run), test)


def reread(run: Run, watch: store.Watch | None = None) -> reading.Given:
    """What a run was begun with."""
    split = run.path / "split.json" if run.options.split is not None else None
    return reading.read(run.config["data"], run.options, split=split, watch=watch)


def score(model: Model, truth: Truth) -> dict[str, Any]:
    """Every protocol on the images of a benchmark's test part.

    Where the model rejects what it is unsure of, also how many of the known images it would get right if it
    did not: `none_rejected`, in percent.
    """
    outputs, predictor = infer(model.network, truth.images), model.predictor
    result = metrics.evaluate(
        truth.labels,
        predictor.probabilities(outputs).argmax(dim=1).numpy(),
        n_known=truth.n_known,
        n_classes=truth.n_classes,
        n_ids=len(model.classes),
        ordered=predictor.ordered,
    )
    known = truth.labels < truth.n_known
    if isinstance(predictor, RejectAndCluster) and known.any():
        said = predictor.known(outputs).argmax(dim=1).numpy()
        result["none_rejected"] = 100 * float((said == truth.labels)[known].mean())
    return result


def load_model(run: Run, backbone: torch.nn.Module | None = None) -> Model:
    """The model of a finished run, on the device that the run was made on, or the nearest there is."""
    name = run.options.device
    on = device.pick(name) if device.there(name) else device.pick("auto")
    return Model.load(run.path, backbone, on)


def _ordered(run: Run) -> bool:
    """Whether a finished run's known ids are the known classes by themselves."""
    name = read_metadata(run.path / "model.safetensors").get("predictor", "")
    return name not in PREDICTORS or PREDICTORS[name]().ordered


def _finished(run: Run | str | Path) -> Run:
    """A run that has a model; an error if it has not yet."""
    run = run if isinstance(run, Run) else Run.open(run)
    if not run.finished:
        raise UserError(f"{run.path} is not finished; go on with it: openldn resume {run.path}")
    return run


def _evaluate_csv(run: Run, truth: Path) -> dict[str, Any]:
    names = read_json(run.path / "classes.json", "the run is incomplete; go on with it: openldn resume RUN")
    file = run.path / "predictions.csv"
    try:
        known = [str(name) for name in names["known"]]
        ids = {name: i for i, name in enumerate([*known, *map(str, names["novel"])])}
        with file.open(newline="", encoding="utf-8") as f:
            predicted = {row["image"]: ids[row["label"]] for row in csv.DictReader(f)}
    except (OSError, KeyError, TypeError, UnicodeDecodeError):
        raise UserError(
            f"{file} is missing, or does not fit classes.json; train again, or take the run from a backup"
        ) from None
    found = folder.trimmed(folder.read_labels(truth), predicted)
    given = {image: label for image, label in found.items() if label}
    strangers = [image for image in given if image not in predicted]
    if strangers or not given:
        what = f"such as {strangers[0]!r}" if strangers else "it names none"
        raise UserError(
            f"{truth} must name images that were unlabelled in this run, as predictions.csv has them ({what})"
        )
    novel = sorted(set(given.values()) - set(known))
    classes = {name: i for i, name in enumerate([*known, *novel])}
    return metrics.evaluate(
        [classes[label] for label in given.values()],
        [predicted[image] for image in given],
        n_known=len(known),
        n_classes=len(classes),
        n_ids=len(ids),
        ordered=_ordered(run),
    )

"""Stanford Cars: 16,185 photographs of cars in 196 classes (make, model and year).

The publisher's site is gone. Copies come in four layouts, which are tried in this order:

1.  devkit/{cars_train_annos,cars_meta}.mat, cars_test_annos_withlabels.mat (in devkit or beside it),
    cars_train/*.jpg, cars_test/*.jpg; or nested, as on mirrors: car_devkit/devkit/, cars_train/cars_train/;
2.  the older cars_annos.mat and car_ims/*.jpg;
3.  anno_train.csv, anno_test.csv (image, four numbers of a box, class number; no header), names.csv with
    one class per line, and class folders in car_data/car_data/train, car_data/train or train, likewise test;
4.  train.csv and test.csv, with a column `image`, `filename`, `fname` or `relative_im_path` and a column
    `class` or `label` with a number or a name. Images are at that path, or in cars_train/ and cars_test/,
    or in train/ and test/. Classes are in numerical or alphabetical order.
"""

import csv
import io
from pathlib import Path
from typing import Any

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists, matlab
from openldn.data.sources.file_lists import FileList
from openldn.data.text_files import read_text
from openldn.errors import UserError

DEVKITS, TEST = ("devkit", "car_devkit/devkit"), "cars_test_annos_withlabels.mat"
ANNO = ("anno_train.csv", "anno_test.csv", "names.csv")
OLDER = ("cars_annos.mat", "car_ims/")
CSV = ("train.csv", "test.csv")
IMAGE_COLUMNS, CLASS_COLUMNS = ("image", "filename", "fname", "relative_im_path"), ("class", "label")
REMEDY = "fetch a whole copy of Stanford Cars"


def read(folder: Path) -> Benchmark:
    """The publisher's training and test images; classes in the publisher's order."""
    if file_lists.missing(folder, *_devkit(folder)) is None:
        return _read_devkit(folder)
    if file_lists.missing(folder, *OLDER) is None:
        return _read_older(folder)
    return _read_anno(folder) if file_lists.missing(folder, *ANNO) is None else _read_csv(folder)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    others = (file_lists.missing(folder, *layout) for layout in (OLDER, ANNO, CSV))
    return None if None in others else file_lists.missing(folder, *_devkit(folder))


def _devkit(folder: Path) -> tuple[str, ...]:
    """The training list, the test list, the classes, the training images and the test images."""
    kit = next((kit for kit in DEVKITS if (folder / kit).is_dir()), DEVKITS[0])
    test = next((file for file in (f"{kit}/{TEST}", TEST) if (folder / file).is_file()), f"{kit}/{TEST}")
    images = [f"cars_{part}/" for part in ("train", "test")]
    nested = [2 * below if (folder / (2 * below)).is_dir() else below for below in images]
    return f"{kit}/cars_train_annos.mat", test, f"{kit}/cars_meta.mat", *nested


def _read_devkit(folder: Path) -> Benchmark:
    train_file, test_file, meta, *images = _devkit(folder)
    (names,) = matlab.read(folder / meta, "class_names", remedy=REMEDY)
    train, test = _annotated(folder, train_file, images[0]), _annotated(folder, test_file, images[1])
    return _listing(folder, train, test, names)


def _annotated(folder: Path, file: str, below: str) -> FileList:
    (records,) = matlab.read(folder / file, "annotations", remedy=REMEDY)
    images, labels = matlab.fields(folder / file, records, "fname", "class", remedy=REMEDY)
    return FileList(folder / file, [f"{below}{image}" for image in images], labels)


def _read_older(folder: Path) -> Benchmark:
    path = folder / OLDER[0]
    records, names = matlab.read(path, "annotations", "class_names", remedy=REMEDY)
    columns = matlab.fields(path, records, "relative_im_path", "class", "test", remedy=REMEDY)
    rows = list(zip(*columns, strict=True))
    train, test = (
        FileList(
            path, [str(image) for image, _, t in rows if t == test], [k for _, k, t in rows if t == test]
        )
        for test in (0, 1)
    )
    return _listing(folder, train, test, names)


def _listing(folder: Path, train: FileList, test: FileList, names: Any) -> Benchmark:
    """Classes are numbered from 1, in the order of their names."""
    classes = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    keys = range(1, len(classes) + 1)
    return file_lists.benchmark("stanford-cars", folder, train, test, classes, keys=keys, remedy=REMEDY)


def _read_anno(folder: Path) -> Benchmark:
    names = file_lists.lines(folder / ANNO[2], REMEDY)
    train, test = (_from_anno(folder, part, names) for part in ("train", "test"))
    return _listing(folder, train, test, names)


def _from_anno(folder: Path, part: str, classes: list[str]) -> FileList:
    path = folder / f"anno_{part}.csv"
    rows = [line.split(",") for line in file_lists.lines(path, REMEDY)]
    fine = (len(row) == 6 and row[5].strip().isdecimal() and len(row[5]) < 10 for row in rows)
    wrong = next((i for i, good in enumerate(fine, 1) if not good), None)
    if wrong is not None:
        raise UserError(f"entry {wrong} of {path} is not image,x1,y1,x2,y2,class; {REMEDY}")
    places = [f"car_data/car_data/{part}", f"car_data/{part}", part]
    at = next((place for place in places if (folder / place).is_dir()), places[0])
    folder_of = {k: name.replace("/", "-") for k, name in enumerate(classes, 1)}
    labels = [int(row[5]) for row in rows]
    names = [f"{at}/{folder_of.get(k, k)}/{row[0]}" for k, row in zip(labels, rows, strict=True)]
    return FileList(path, names, labels)


def _read_csv(folder: Path) -> Benchmark:
    train, test = (_from_csv(folder, file, file.removesuffix(".csv")) for file in CSV)
    keys = sorted({str(label) for label in train.labels})
    classes: list[str | int] = [*keys]
    if all(key.isdecimal() and len(key) < 10 for key in keys):
        keys.sort(key=int)
        classes = [int(key) for key in keys]
    return file_lists.benchmark("stanford-cars", folder, train, test, classes, keys=keys, remedy=REMEDY)


def _from_csv(folder: Path, file: str, part: str) -> FileList:
    path = folder / file
    reader = csv.DictReader(io.StringIO(read_text(path, REMEDY)))
    try:
        rows = list(reader)
    except csv.Error:
        raise UserError(f"{path} is not a CSV file; {REMEDY}") from None
    columns = reader.fieldnames or ()
    image, label = (
        next((column for column in wanted if column in columns), None)
        for wanted in (IMAGE_COLUMNS, CLASS_COLUMNS)
    )
    if image is None or label is None:
        raise UserError(
            f"{path} has no column {' or '.join(CLASS_COLUMNS if image else IMAGE_COLUMNS)}; "
            "name its columns in the first line"
        )
    names = [(row[image] or "").strip() for row in rows]
    first = names[0] if names and file_lists.is_inside(names[0]) else ""
    places = (".", f"cars_{part}", part)
    below = next((place for place in places if (folder / place / first).is_file()), places[1])
    return FileList(path, [f"{below}/{name}" for name in names], [(row[label] or "").strip() for row in rows])

"""Stanford Cars: 16,185 photographs of cars in 196 classes (make, model and year).

The publisher's site is gone. Copies come in five layouts, which are tried in this order:

1.  devkit/{cars_train_annos,cars_meta}.mat, cars_test_annos_withlabels.mat (in devkit or beside it),
    cars_train/*.jpg, cars_test/*.jpg; or nested, as on mirrors: car_devkit/devkit/, cars_train/cars_train/;
2.  the older cars_annos.mat and car_ims/*.jpg;
3.  anno_train.csv, anno_test.csv (image, four numbers of a box, class number; no header), names.csv with
    one class per line, and class folders in car_data/car_data/train, car_data/train or train, likewise test;
4.  train.csv and test.csv, with a column `image`, `filename`, `fname` or `relative_im_path` and a column
    `class` or `label` with a number or a name. Images are at that path, or in cars_train/ and cars_test/,
    or in train/ and test/. Classes are in numerical or alphabetical order;
5.  class folders in train/ and test/, in alphabetical order.
"""

from pathlib import Path
from typing import Any

from openldn.data.benchmark import Benchmark
from openldn.data.sources import file_lists, matlab
from openldn.data.sources.class_folders import ClassFolders
from openldn.data.sources.file_lists import FileList
from openldn.data.text_files import read_csv
from openldn.errors import UserError

DEVKITS, TEST = ("devkit", "car_devkit/devkit"), "cars_test_annos_withlabels.mat"
ANNO = ("anno_train.csv", "anno_test.csv", "names.csv")
OLDER = ("cars_annos.mat", "car_ims/")
CSV = ("train.csv", "test.csv")
IMAGE_COLUMNS, CLASS_COLUMNS = ("image", "filename", "fname", "relative_im_path"), ("class", "label")
FOLDERS = ClassFolders("stanford-cars", 196)
REMEDY = "fetch a whole copy of Stanford Cars"


def read(folder: Path) -> Benchmark:
    """The publisher's training and test images; classes in the publisher's order."""
    if file_lists.missing(folder, *_devkit(folder)) is None:
        return _read_devkit(folder)
    if file_lists.missing(folder, *OLDER) is None:
        return _read_older(folder)
    if file_lists.missing(folder, *ANNO) is None:
        return _read_anno(folder)
    return _read_csv(folder) if file_lists.missing(folder, *CSV) is None else FOLDERS.read(folder)


def missing(folder: Path) -> str | None:
    """What is missing, if anything."""
    others = (file_lists.missing(folder, *layout) for layout in (OLDER, ANNO, CSV))
    if None in others or FOLDERS.missing(folder) is None:
        return None
    return file_lists.missing(folder, *_devkit(folder))


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
    return FileList(folder / file, [(f"{below}{i}", k) for i, k in zip(images, labels, strict=True)])


def _read_older(folder: Path) -> Benchmark:
    path = folder / OLDER[0]
    records, names = matlab.read(path, "annotations", "class_names", remedy=REMEDY)
    columns = matlab.fields(path, records, "relative_im_path", "class", "test", remedy=REMEDY)
    rows = list(zip(*columns, strict=True))
    train, test = (FileList(path, [(str(i), k) for i, k, t in rows if t == part]) for part in (0, 1))
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
    for i, row in enumerate(rows, 1):
        if len(row) != 6 or not row[5].strip().isdecimal() or len(row[5]) >= 10:
            raise UserError(f"entry {i} of {path} is not image,x1,y1,x2,y2,class; {REMEDY}")
    places = [f"car_data/car_data/{part}", f"car_data/{part}", part]
    at = next((place for place in places if (folder / place).is_dir()), places[0])
    folder_of = {k: name.replace("/", "-") for k, name in enumerate(classes, 1)}
    images = [(row[0], int(row[5])) for row in rows]
    return FileList(path, [(f"{at}/{folder_of.get(k, k)}/{image}", k) for image, k in images])


def _read_csv(folder: Path) -> Benchmark:
    train, test = (_from_csv(folder, part) for part in ("train", "test"))
    keys = sorted({str(label) for _, label in train.images})
    classes: list[str | int] = [*keys]
    if all(key.isdecimal() and len(key) < 10 for key in keys):
        keys.sort(key=int)
        classes = [int(key) for key in keys]
    return file_lists.benchmark("stanford-cars", folder, train, test, classes, keys=keys, remedy=REMEDY)


def _from_csv(folder: Path, part: str) -> FileList:
    path = folder / f"{part}.csv"
    columns, rows = read_csv(path, REMEDY)
    image, label = (
        next((column for column in wanted if column in columns), None)
        for wanted in (IMAGE_COLUMNS, CLASS_COLUMNS)
    )
    if image is None or label is None:
        wrong = f"{path} has no column {' or '.join(CLASS_COLUMNS if image else IMAGE_COLUMNS)}"
        raise UserError(f"{wrong}; name its columns in the first line")
    images = [((row[image] or "").strip(), (row[label] or "").strip()) for row in rows]
    places = (".", f"cars_{part}", part)
    return FileList(path, file_lists.placed(folder, images, places, default=places[1]))

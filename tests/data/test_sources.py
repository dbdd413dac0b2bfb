"""The named benchmarks: miniatures in each publisher's layout, what is read of them, and what goes wrong."""

import csv
import gzip
import json
import os
import pickle
import shutil
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from openldn.data import sources
from openldn.data.benchmark import Benchmark
from openldn.data.sources import class_folders, imagenet100, matlab, pickled
from openldn.errors import UserError

Pixels = NDArray[np.uint8]


@dataclass
class Miniature:
    """What was written: each image (its pixels as bytes, or its path) with its class."""

    classes: list[str | int]
    train: list[tuple[Any, str | int]]
    test: list[tuple[Any, str | int]]
    needs: list[str]  # files and folders without which it is not whole
    lists: list[str] = field(default_factory=list)  # files with labels in them


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def put(at: Path, content: bytes | str = b"an image") -> Path:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content.encode() if isinstance(content, str) else content)
    return at


def pairs(pixels: Pixels, labels: list[int], classes: list[str | int]) -> list[tuple[bytes, str | int]]:
    """Pixels (n, c, h, w) as bytes, with the names of their classes."""
    return [(x.tobytes(), classes[k]) for x, k in zip(pixels, labels, strict=True)]


# ---------------------------------------------------------------------------------------- the arrays

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE = [f"fine {i}" for i in range(100)][::-1]  # not in the order of letters
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def cifar10(at: Path, label: int | None = None) -> Miniature:
    pixels, labels = noise(18, 3, 32, 32), [i % 10 for i in range(18)]
    stored = [*labels[:-1], labels[-1] if label is None else label]
    files = [f"cifar-10-batches-bin/{name}.bin" for name in BATCHES]
    for i, file in enumerate(files):
        put(at / file, b"".join(bytes([stored[j]]) + pixels[j].tobytes() for j in range(3 * i, 3 * i + 3)))
    whole = pairs(pixels, labels, [*CIFAR10])
    return Miniature([*CIFAR10], whole[:15], whole[15:], files, files)


def cifar100(at: Path, label: int | None = None) -> Miniature:
    pixels, labels = noise(12, 3, 32, 32), [(i * 37) % 100 for i in range(12)]
    stored = [*labels[:-1], labels[-1] if label is None else label]
    records = [bytes([i % 20, k]) + x.tobytes() for i, (x, k) in enumerate(zip(pixels, stored, strict=True))]
    put(at / "cifar-100-binary/train.bin", b"".join(records[:8]))
    put(at / "cifar-100-binary/test.bin", b"".join(records[8:]))
    put(at / "cifar-100-binary/fine_label_names.txt", "\n".join(FINE) + "\n\n")
    whole = pairs(pixels, labels, [*FINE])
    files = [f"cifar-100-binary/{name}" for name in ("train.bin", "test.bin", "fine_label_names.txt")]
    return Miniature([*FINE], whole[:8], whole[8:], files, files)


def python2(value: Any) -> bytes:
    """A pickle as Python 2 and its numpy wrote it, which no Python 3 writes: strings are bytes."""

    def code(value: Any) -> bytes:
        if isinstance(value, str):
            return b"T" + struct.pack("<I", len(value)) + value.encode("latin1")
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(code, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(code, value)) + b"t"
        if isinstance(value, dict):
            return b"}(" + b"".join(code(k) + code(v) for k, v in value.items()) + b"u"
        assert isinstance(value, np.ndarray)
        order = "C" if value.flags.c_contiguous else "F"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + code((0,)) + code("b") + b"tR"
        kind = b"cnumpy\ndtype\n" + code(("u1", 0, 1)) + b"R" + code((3, "|")) + b"b"
        raw = code(value.tobytes(order).decode("latin1"))
        return made + b"(" + code(1) + code(value.shape) + kind + code(order == "F") + raw + b"tb"

    return b"\x80\x02" + code(value) + b"."


def python3(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def cifar10_python(
    at: Path, label: int | None = None, write: Callable[[Any], bytes] = python2, order: Any = "C"
) -> Miniature:
    pixels, labels = noise(18, 3, 32, 32), [i % 10 for i in range(18)]
    stored = [*labels[:-1], labels[-1] if label is None else label]
    files = [f"cifar-10-batches-py/{name}" for name in BATCHES]
    for i, file in enumerate(files):
        rows = slice(3 * i, 3 * i + 3)
        data = np.array(pixels[rows].reshape(3, 3072), order=order)
        names = [f"{j}.png" for j in range(3)]
        put(at / file, write({"batch_label": "b", "labels": stored[rows], "data": data, "filenames": names}))
    whole = pairs(pixels, labels, [*CIFAR10])
    return Miniature([*CIFAR10], whole[:15], whole[15:], files, files)


def cifar100_python(at: Path, label: int | None = None) -> Miniature:
    pixels, labels = noise(12, 3, 32, 32), [(i * 37) % 100 for i in range(12)]
    stored = [*labels[:-1], labels[-1] if label is None else label]
    for name, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        coarse = [0] * len(labels[rows])
        data = pixels[rows].reshape(-1, 3072)
        value = {"coarse_labels": coarse, "fine_labels": stored[rows], "data": data}
        put(at / "cifar-100-python" / name, python2(value))
    put(at / "cifar-100-python/meta", python2({"coarse_label_names": ["no"], "fine_label_names": FINE}))
    whole = pairs(pixels, labels, [*FINE])
    files = [f"cifar-100-python/{name}" for name in ("train", "test", "meta")]
    return Miniature([*FINE], whole[:8], whole[8:], files, files)


def svhn_(at: Path, label: int | None = None, **how: Any) -> Miniature:
    pixels, digits = noise(24, 32, 32, 3), [i % 10 for i in range(24)]
    stored = [d or 10 for d in digits]
    stored[-1] = stored[-1] if label is None else label
    for file, rows in (("train_32x32.mat", slice(0, 13)), ("test_32x32.mat", slice(13, 24))):
        at.mkdir(parents=True, exist_ok=True)
        y = np.array(stored[rows], np.uint8)[:, None]
        savemat(at / file, {"X": pixels[rows].transpose(1, 2, 3, 0), "y": y}, **how)
    whole = pairs(pixels.transpose(0, 3, 1, 2), digits, [*range(10)])
    files = ["train_32x32.mat", "test_32x32.mat"]
    return Miniature([*range(10)], whole[:13], whole[13:], files, files)


def svhn_compressed(at: Path, label: int | None = None) -> Miniature:
    return svhn_(at, label, do_compression=True)


def idx(values: Pixels) -> bytes:
    return (
        struct.pack(">BBBB", 0, 0, 8, values.ndim)
        + struct.pack(">" + "I" * values.ndim, *values.shape)
        + (values.tobytes())
    )


def mnist(
    at: Path, label: int | None = None, mark: str = "-", end: str = ".gz", classes: Any = range(10)
) -> Miniature:
    pixels, labels = noise(30, 1, 28, 28), [(7 * i) % 10 for i in range(30)]
    stored = np.array([*labels[:-1], labels[-1] if label is None else label], np.uint8)
    files = []
    for part, rows in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        for kind, values in (("images{}idx3", pixels[rows, 0]), ("labels{}idx1", stored[rows])):
            files.append(f"{part}-{kind.format(mark)}-ubyte{end}")
            put(at / files[-1], gzip.compress(idx(values)) if end else idx(values))
    whole = pairs(pixels, labels, [*classes])
    return Miniature([*classes], whole[:20], whole[20:], files, files)


FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"]
FASHION += ["Ankle boot"]

# ------------------------------------------------------------------------------------ the image files

Files = list[tuple[Any, str | int]]


def tiny_imagenet(at: Path, label: str | None = None, first: str | None = None) -> Miniature:
    wnids = ["n3", "n1", "n2"]
    top = at / "tiny-imagenet-200"
    put(top / "wnids.txt", "n3\nn1\nn2\n")
    put(top / "words.txt", "n1\tone\nn2\ttwo\nn3\tthree\n")
    train: Files = [(f"train/{w}/images/{w}_{i}.JPEG", w) for w in wnids for i in range(3)]
    test: Files = [(f"val/images/val_{i}.JPEG", wnids[i % 3]) for i in range(5)]
    for name, _ in train + test:
        put(top / name)
    put(top / "train/n1/n1_boxes.txt", "n1_0.JPEG\t0\t0\t1\t1\n")
    rows = [[name.split("/")[-1], w, "0", "1", "62", "63"] for name, w in test]
    rows[0][0], rows[0][1] = first or rows[0][0], label or rows[0][1]
    put(top / "val/val_annotations.txt", "".join("\t".join(map(str, row)) + "\n" for row in rows))
    below = "tiny-imagenet-200/"
    needs = [below + name for name in ("wnids.txt", "val/val_annotations.txt", "train", "val/images")]
    moved: list[Files] = [[(below + name, w) for name, w in part] for part in (train, test)]
    return Miniature(sorted(wnids), *moved, needs, needs[:2])


def oxford_pets(at: Path, label: str | None = None, first: str | None = None) -> Miniature:
    classes: list[str | int] = ["Abyssinian", "american_bulldog", "Bengal", "pug"]  # sorted: cats first
    train: Files = [(f"{k}_{i}", k) for i in range(3) for k in classes]
    test: Files = [(f"{k}_{i}", k) for i in range(10, 12) for k in classes]
    for file, part in (("trainval", train), ("test", test)):
        rows = [[name, str(classes.index(k) + 1), "1", "1"] for name, k in part]
        if file == "test":
            rows[0][0], rows[0][1] = first or rows[0][0], label or rows[0][1]
        put(at / f"annotations/{file}.txt", "".join(" ".join(row) + "\n" for row in rows))
    put(at / "images/Abyssinian_100.mat")
    for name, _ in train + test:
        put(at / f"images/{name}.jpg")
    lists = ["annotations/trainval.txt", "annotations/test.txt"]
    moved: list[Files] = [[(f"images/{name}.jpg", k) for name, k in part] for part in (train, test)]
    return Miniature(classes, *moved, [*lists, "images"], lists)


def fgvc_aircraft(at: Path, label: str | None = None, first: str | None = None) -> Miniature:
    classes: list[str | int] = ["Cessna 172", "707-320", "F/A-18"]
    below = "fgvc-aircraft-2013b/data/"
    parts: list[Files] = []
    for file, numbers in (("trainval", range(7)), ("test", range(7, 12))):
        part: Files = [(f"{below}images/{i:07}.jpg", classes[i % 3]) for i in numbers]
        rows = [[f"{i:07}", str(classes[i % 3])] for i in numbers]
        if file == "test":
            rows[0][0], rows[0][1] = first or rows[0][0], label or rows[0][1]
        put(at / f"{below}images_variant_{file}.txt", "".join(" ".join(row) + "\n" for row in rows))
        for name, _ in part:
            put(at / name)
        parts.append(part)
    put(at / below / "variants.txt", "Cessna 172\n707-320\nF/A-18\n")
    lists = [below + f for f in ("variants.txt", "images_variant_trainval.txt", "images_variant_test.txt")]
    return Miniature(classes, *parts, [*lists, below + "images"], lists)


def imagenet(at: Path, below: str = "", flat: bool = False, **spoilt: str | None) -> Miniature:
    wnids = imagenet100.wnids()
    train: Files = [(f"{below}train/{w}/{w}_{i}.JPEG", w) for w in wnids for i in range(1)]
    test: Files = [(f"{below}val/{w}/{i}.JPEG", w) for i, w in enumerate(wnids)]
    needs = [f"{below}train/{wnids[0]}", f"{below}train/{wnids[99]}", f"{below}val/{wnids[50]}"]
    if flat:
        test = [(f"{below}val/ILSVRC2012_val_{i:08}.JPEG", w) for i, w in enumerate(wnids[::-1])]
        needs = [needs[0], f"{below}val"]
        rows = [[Path(name).stem, f"{w} 85 1 499 272 {w} 1 2 3 4 "] for name, w in test]
        rows[0][0] = spoilt.get("first") or rows[0][0]
        rows.insert(50, ["ILSVRC2012_val_90000000", "n00000000 1 2 3 4 "])
        put(at / below / "val/ILSVRC2012_val_90000000.JPEG")
        text = "".join(",".join(row) + "\n" for row in [["ImageId", "PredictionString"], *rows])
        put(at / "LOC_val_solution.csv", text)
    for name, _ in train + test:
        put(at / name)
    put(at / below / "train/n00000000/1.JPEG")  # a class that is not one of the hundred
    return Miniature([*wnids], train, test, needs, ["LOC_val_solution.csv"] if flat else [])


def imagenet_kaggle(at: Path, first: str | None = None) -> Miniature:
    return imagenet(at, "ILSVRC/Data/CLS-LOC/", flat=True, first=first)


def records(**columns: list[Any]) -> NDArray[Any]:
    """A MATLAB structure array, as the devkit has them."""
    n = len(next(iter(columns.values())))
    made = np.zeros((1, n), dtype=[(name, object) for name in columns])
    for name, values in columns.items():
        for i, value in enumerate(values):
            made[name][0, i] = value
    return made


CARS: list[str | int] = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"]


def cell(names: list[Any]) -> NDArray[Any]:
    made = np.empty((1, len(names)), object)
    made[0] = names
    return made


def cars_devkit(
    at: Path, label: int | None = None, first: str | None = None, beside: bool = False, nested: bool = False
) -> Miniature:
    kit = "car_devkit/devkit" if nested else "devkit"
    images = [f"{part}/{part}" if nested else part for part in ("cars_train", "cars_test")]
    (at / kit).mkdir(parents=True)
    test_list = "cars_test_annos_withlabels.mat" if beside else f"{kit}/cars_test_annos_withlabels.mat"
    parts, lists = list[Files](), [f"{kit}/cars_train_annos.mat", test_list]
    for file, below, n in ((lists[0], images[0], 7), (lists[1], images[1], 4)):
        labels = [i % 3 for i in range(n)]
        parts.append([(f"{below}/{i:05}.jpg", CARS[k]) for i, k in enumerate(labels)])
        for name, _ in parts[-1]:
            put(at / name)
        names, ids = [f"{i:05}.jpg" for i in range(n)], [np.uint8(k + 1) for k in labels]
        if below == images[1]:
            names[0], ids[0] = first or names[0], ids[0] if label is None else np.uint8(label)
        box = [np.uint16(1)] * n
        annotations = {"bbox_x1": box, "bbox_y1": box, "class": ids, "fname": names}
        savemat(at / file, {"annotations": records(**annotations)})
    savemat(at / kit / "cars_meta.mat", {"class_names": cell(CARS)})
    files = [*lists, f"{kit}/cars_meta.mat"]
    return Miniature(CARS, *parts, [*files, "cars_train", "cars_test"], files)


def cars_older(at: Path, label: int | None = None, first: str | None = None) -> Miniature:
    whole: Files = [(f"car_ims/{i:06}.jpg", CARS[i % 3]) for i in range(11)]
    for name, _ in whole:
        put(at / name)
    paths, ids = [name for name, _ in whole], [np.uint8(i % 3 + 1) for i in range(11)]
    test = [np.uint8(i % 2) for i in range(11)]
    paths[1], ids[1] = first or paths[1], ids[1] if label is None else np.uint8(label)
    annotations = records(**{"relative_im_path": paths, "class": ids, "test": test})
    savemat(at / "cars_annos.mat", {"annotations": annotations, "class_names": cell(CARS)})
    needs = ["cars_annos.mat", "car_ims"]
    return Miniature(CARS, whole[::2], whole[1::2], needs, needs[:1])


def cars_anno(
    at: Path, label: int | None = None, first: str | None = None, below: str = "car_data/car_data/"
) -> Miniature:
    parts = list[Files]()
    for part, n in (("train", 7), ("test", 5)):
        folders = [name.replace("/", "-") for name in CARS]
        parts.append([(f"{below}{part}/{folders[i % 3]}/{i:05}.jpg", CARS[i % 3]) for i in range(n)])
        for name, _ in parts[-1]:
            put(at / name)
        rows = [[f"{i:05}.jpg", "1", "2", "3", "4", str(i % 3 + 1)] for i in range(n)]
        if part == "test":
            rows[0][0], rows[0][5] = first or rows[0][0], rows[0][5] if label is None else str(label)
        (at / f"anno_{part}.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    (at / "names.csv").write_text("\n".join(CARS) + "\n")
    files = ["anno_train.csv", "anno_test.csv", "names.csv"]
    return Miniature(CARS, *parts, files, files[:2])


def cars_csv(
    at: Path,
    label: str | None = None,
    first: str | None = None,
    columns: tuple[str, str] = ("image", "class"),
    below: str = "cars_{}/",
    numbers: bool = False,
) -> Miniature:
    classes: list[str | int] = [2, 10, 100] if numbers else CARS  # by number, not by letter
    parts = list[Files]()
    for part, n in (("train", 7), ("test", 5)):
        parts.append([(f"{below.format(part)}{i}.jpg", classes[i % 3]) for i in range(n)])
        rows = [[f"{i}.jpg", str(classes[i % 3])] for i in range(n)]
        if part == "test":
            rows[0][0], rows[0][1] = first or rows[0][0], label or rows[0][1]
        with put(at / f"{part}.csv").open("w", newline="") as f:
            csv.writer(f).writerows([["x1", *columns], *(["0", *row] for row in rows)])
        for name, _ in parts[-1]:
            put(at / name)
    return Miniature(classes, *parts, ["train.csv", "test.csv"], ["train.csv", "test.csv"])


def herbarium(at: Path, **_: Any) -> Miniature:
    classes: list[str | int] = [0, 10, 100, 2]  # sorted as text
    parts: list[Files] = [
        [(f"{part}/{k}/{i:05}.jpg", k) for k in classes for i in range(n)]  # the same names in every class
        for part, n in (("small-train", 3), ("small-validation", 1))
    ]
    for name, _k in parts[0] + parts[1]:
        put(at / name)
    put(at / "small-train/.DS_Store")
    return Miniature(classes, *parts, ["small-train", "small-validation"])


def herbarium_json(
    at: Path, label: int | None = None, first: str | None = None, below: str = "images/"
) -> Miniature:
    classes: list[str | int] = [10, 100, 2]
    parts = list[Files]()
    for file, folder, n in (("train", "small-train", 7), ("val", "small-val", 4)):
        names = [f"{below}{i:04}.jpg" for i in range(n)]
        parts.append([(f"{folder}/{name}", classes[i % 3]) for i, name in enumerate(names)])
        for name, _ in parts[-1]:
            put(at / name)
        images = [{"id": 1000 + i, "file_name": name, "width": 1} for i, name in enumerate(names)]
        notes = [{"id": i, "image_id": 1000 + i, "category_id": classes[i % 3]} for i in range(n)]
        if file == "val":
            images[0]["file_name"] = first or images[0]["file_name"]
            notes[0]["category_id"] = notes[0]["category_id"] if label is None else label
        categories = [{"id": k, "name": f"species {k}"} for k in classes]
        text = json.dumps({"images": images[::-1], "annotations": notes, "categories": categories})
        put(at / f"{file}.json", text)
    return Miniature(classes, *parts, ["train.json", "val.json"], ["train.json", "val.json"])


def class_folders_of(at: Path, n: int, **_: Any) -> Miniature:
    classes: list[str | int] = [f"{k:03}.kind" for k in range(n)]
    train, test = ([(f"{part}/{name}/{part}.jpg", name) for name in classes] for part in ("train", "test"))
    for name, _label in train + test:
        put(at / name)
    needs = [f"train/{classes[0]}", f"test/{classes[-1]}", "train"]
    return Miniature(classes, train, test, needs, [])


MINIATURES: dict[str, Callable[..., Miniature]] = {
    "cifar10": cifar10,
    "cifar10 python": cifar10_python,
    "cifar10 python, by column": lambda at, **k: cifar10_python(at, order="F", **k),
    "cifar10 python 3": lambda at, **k: cifar10_python(at, write=python3, **k),
    "cifar100": cifar100,
    "cifar100 python": cifar100_python,
    "svhn": svhn_,
    "svhn compressed": svhn_compressed,
    "mnist": mnist,
    "mnist plain": lambda at, **k: mnist(at, end="", **k),
    "mnist dotted": lambda at, **k: mnist(at, mark=".", end="", **k),
    "mnist dotted and gzipped": lambda at, **k: mnist(at, mark=".", **k),
    "fashion-mnist": lambda at, **k: mnist(at, classes=FASHION, **k),
    "tiny-imagenet": tiny_imagenet,
    "oxford-pets": oxford_pets,
    "imagenet-100": imagenet,
    "imagenet-100 of Kaggle": imagenet_kaggle,
    "imagenet-100 of Kaggle, sorted": lambda at, **k: imagenet(at, "ILSVRC/Data/CLS-LOC/", **k),
    "fgvc-aircraft": fgvc_aircraft,
    "cub": lambda at, **k: class_folders_of(at, 200, **k),
    "stanford-cars, folders": lambda at, **k: class_folders_of(at, 196, **k),
    "stanford-cars": cars_devkit,
    "stanford-cars, labels beside": lambda at, **k: cars_devkit(at, beside=True, **k),
    "stanford-cars, nested": lambda at, **k: cars_devkit(at, nested=True, **k),
    "stanford-cars older": cars_older,
    "stanford-cars anno": cars_anno,
    "stanford-cars anno, below train": lambda at, **k: cars_anno(at, below="", **k),
    "stanford-cars csv": cars_csv,
    "stanford-cars csv by number": lambda at, **k: cars_csv(
        at, columns=("fname", "label"), below="{}/", numbers=True, **k
    ),
    "herbarium19": herbarium,
    "herbarium19 json": herbarium_json,
    "herbarium19 json, no folder": lambda at, **k: herbarium_json(at, below="", **k),
}
each = pytest.mark.parametrize("form", MINIATURES)


def name_of(form: str) -> str:
    return form.split()[0].rstrip(",")


def write(form: str, tmp_path: Path, **spoilt: Any) -> tuple[Path, Miniature]:
    at = tmp_path / name_of(form)
    return at, MINIATURES[form](at, **spoilt)


def as_pairs(whole: Benchmark, part: str) -> list[tuple[Any, str | int]]:
    listing = whole.train if part == "train" else whole.test
    keys: list[Any] = [*listing.names]
    if listing.files is None:
        images: Any = listing.pixels
        assert images.shape[1] in (1, 3)
        keys = [image.numpy().tobytes() for image in images]
    return [(key, whole.classes[k]) for key, k in zip(keys, listing.labels.tolist(), strict=True)]


def refusal(form: str, tmp_path: Path) -> str:
    with pytest.raises(UserError) as e:
        sources.read_named(name_of(form), tmp_path)
    assert "\n" not in str(e.value)
    assert "; " in str(e.value)  # what is wrong; what to do
    return str(e.value)


# ---------------------------------------------------------------------------- what every reader keeps


def test_every_named_set_has_a_miniature() -> None:
    assert {name_of(form) for form in MINIATURES} | {"digits"} == set(sources.NAMED)


@each
def test_all_that_was_written_is_read(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    whole = sources.read_named(name_of(form), tmp_path)
    assert whole.name == name_of(form)
    assert [*whole.classes] == written.classes
    assert {type(k) for k in whole.classes} == {type(written.classes[0])}
    order = (lambda part: part) if whole.train.files is None else sorted
    assert order(as_pairs(whole, "train")) == order(written.train)
    assert order(as_pairs(whole, "test")) == order(written.test)
    assert whole.flip is (name_of(form) not in ("svhn", "mnist"))
    assert whole.size == sources.NAMED[name_of(form)].size
    for listing in (whole.train, whole.test):
        if listing.files is not None:
            assert listing.root == str(at)
            assert listing.files == tuple(str(at / name) for name in listing.names)
            assert all(Path(file).is_file() for file in listing.files)


@each
def test_contract(form: str, tmp_path: Path) -> None:
    """Labels in range, one a piece, parts disjoint, and the same on every reading."""
    write(form, tmp_path)
    whole, again = (sources.read_named(name_of(form), tmp_path) for _ in range(2))
    for labels, part in ((whole.train.labels, "train"), (whole.test.labels, "test")):
        assert labels.dtype == np.int64
        assert len(labels) > 0
        assert labels.min() >= 0
        assert labels.max() < len(whole.classes)
        assert as_pairs(whole, part) == as_pairs(again, part)
    train, test = ({key for key, _ in as_pairs(whole, part)} for part in ("train", "test"))
    assert not train & test
    assert len(set(whole.classes)) == len(whole.classes)


@each
def test_present_only_when_whole(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    name = name_of(form)
    reader = sources.NAMED[name].reader
    assert reader.missing(at) is None
    for need in written.needs:
        (at / need).rename(tmp_path / "away")
        assert reader.missing(at) is not None
        assert sources.find(name, tmp_path) is None
        message = refusal(form, tmp_path)
        for said in (name, str(at), "--data-dir", sources.NAMED[name].how_to_get):
            assert said in message
        assert (f"openldn datasets --get {name}" in message) is sources.NAMED[name].offered
        (tmp_path / "away").rename(at / need)
    assert sources.find(name, tmp_path) == at
    assert reader.missing(tmp_path / "nowhere") is not None


@each
@pytest.mark.parametrize("damage", ["empty", "garbage", "folder"])
def test_files_that_hold_something_else(form: str, tmp_path: Path, damage: str) -> None:
    at, written = write(form, tmp_path)
    for file in written.lists:
        content = (at / file).read_bytes()
        (at / file).unlink()
        if damage == "folder":
            (at / file).mkdir()
        else:
            (at / file).write_bytes(b"" if damage == "empty" else noise(997).tobytes())
        message = refusal(form, tmp_path)
        if not file.endswith("s.txt") and damage != "folder":  # an empty list of classes shows elsewhere
            assert Path(file).name in message
        shutil.rmtree(at / file) if damage == "folder" else (at / file).unlink()
        (at / file).write_bytes(content)
    sources.read_named(name_of(form), tmp_path)


BINARY = [form for form in MINIATURES if form.startswith(("cifar", "svhn", "mnist", "fashion", "stanford"))]
BINARY = [form for form in BINARY if not any(word in form for word in ("csv", "anno", "folders"))] + [
    "herbarium19 json"
]


@pytest.mark.parametrize("form", BINARY)
def test_files_that_are_cut_off(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    for file in written.lists:
        if file.endswith(".txt"):
            continue
        content = (at / file).read_bytes()
        for end in (1, len(content) // 3 + 1, len(content) // 2 + 1, len(content) - 9):
            (at / file).write_bytes(content[:end])
            assert Path(file).name in refusal(form, tmp_path)
        (at / file).write_bytes(content)


@pytest.mark.parametrize("form", BINARY)
def test_damage_is_an_error_or_goes_unnoticed_but_nothing_else(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    rng = np.random.default_rng(0)
    for file in written.lists:
        content = (at / file).read_bytes()
        for _ in range(12):
            spoilt = bytearray(content)
            for place in rng.integers(0, min(len(content), 400), 3):
                spoilt[place] = rng.integers(256)
            (at / file).write_bytes(spoilt)
            try:
                whole = sources.read_named(name_of(form), tmp_path)
            except UserError:
                continue
            assert whole.test.labels.max() < len(whole.classes)
        (at / file).write_bytes(content)


# --------------------------------------------------------------------------------- lists that are wrong

LISTING = ["tiny-imagenet", "oxford-pets", "imagenet-100 of Kaggle", "fgvc-aircraft", "stanford-cars"]
LISTING += ["stanford-cars older", "stanford-cars anno", "stanford-cars csv", "herbarium19 json"]


@pytest.mark.parametrize("form", LISTING)
@pytest.mark.parametrize(
    "first", ["nosuch", "../../../../../../etc/passwd", "/etc/passwd", "..", "images/../../x", "..\\x", "C:x"]
)
def test_a_list_that_names_what_is_not_there_or_outside(form: str, first: str, tmp_path: Path) -> None:
    put(tmp_path / "x.jpg")
    _, written = write(form, tmp_path, first=first)
    message = refusal(form, tmp_path)
    assert repr(first.split("/")[-1])[1:-1] in message
    assert any(Path(file).name in message for file in written.lists)


@pytest.mark.parametrize("form", LISTING)
def test_an_image_of_either_part_that_is_missing(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    parts = [written.test] if form.startswith(("tiny", "imagenet")) else [written.train, written.test]
    for part in parts:
        name, _ = part[-1]
        (at / name).unlink()
        assert str(at / name) in refusal(form, tmp_path)
        put(at / name)


@pytest.mark.parametrize(
    ("form", "label"),
    [
        ("cifar10", 10),
        ("cifar10 python", 10),
        ("cifar10 python", -1),
        ("cifar100", 100),
        ("cifar100 python", 100),
        ("svhn", 0),
        ("svhn", 11),
        ("mnist", 10),
        ("fashion-mnist", 255),
        ("tiny-imagenet", "n4"),
        ("oxford-pets", "7"),
        ("oxford-pets", "0"),
        ("oxford-pets", "-1"),
        ("oxford-pets", "pug"),
        ("fgvc-aircraft", "Cessna 173"),
        ("stanford-cars", 0),
        ("stanford-cars", 4),
        ("stanford-cars older", 4),
        ("stanford-cars anno", 4),
        ("stanford-cars csv", "AM"),
        ("stanford-cars csv by number", "3"),
        ("herbarium19 json", 3),
    ],
)
def test_a_label_that_is_none(form: str, label: Any, tmp_path: Path) -> None:
    write(form, tmp_path, label=label)
    message = refusal(form, tmp_path)
    assert str(label) in message


@pytest.mark.parametrize("form", ["tiny-imagenet", "imagenet-100", "herbarium19"])
def test_a_class_folder_that_is_missing_or_empty(form: str, tmp_path: Path) -> None:
    at, written = write(form, tmp_path)
    folder = (at / written.train[0][0]).parent
    for image in folder.iterdir():
        image.unlink()
    assert str(folder) in refusal(form, tmp_path)
    folder.rmdir()
    assert str(written.train[0][1]) in refusal(form, tmp_path)


def test_class_folders_of_training_and_test_images(tmp_path: Path) -> None:
    for part, images in (("train", ("b/2.jpg", "a/1.jpg", "b/1.png")), ("test", ("a/9.jpg", "b/9.jpg"))):
        for image in images:
            put(tmp_path / part / image)
    put(tmp_path / "train" / "b" / "notes.txt")
    reader = class_folders.ClassFolders("birds", 2)
    assert reader.missing(tmp_path) is None
    found = reader.read(tmp_path)
    assert found.classes == ("a", "b")
    assert found.train.names == ("train/a/1.jpg", "train/b/1.png", "train/b/2.jpg")
    assert found.train.labels.tolist() == [0, 1, 1]
    assert found.test.names == ("test/a/9.jpg", "test/b/9.jpg")
    shutil.rmtree(tmp_path / "test" / "a")
    assert reader.missing(tmp_path) == f"{tmp_path / 'test'} has 1 class folders instead of 2"
    with pytest.raises(UserError, match="a is missing or holds no image; put a folder for each of 2 classes"):
        reader.read(tmp_path)


def test_an_image_that_is_named_twice(tmp_path: Path) -> None:
    at, _ = write("fgvc-aircraft", tmp_path)
    with (at / "fgvc-aircraft-2013b/data/images_variant_test.txt").open("a") as f:
        f.write("0000000 Cessna 172\n")
    message = refusal("fgvc-aircraft", tmp_path)
    assert "0000000.jpg is named 2 times" in message


def test_a_line_that_is_too_short(tmp_path: Path) -> None:
    at, _ = write("oxford-pets", tmp_path)
    with (at / "annotations/trainval.txt").open("a") as f:
        f.write("pug_100 4\n")
    assert "entry 13" in refusal("oxford-pets", tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"images": 1, "annotations": []}', "[" * 100_000, '"x"', "NaN"]
)
def test_json_of_another_form(text: str, tmp_path: Path) -> None:
    at, _ = write("herbarium19 json", tmp_path)
    (at / "train.json").write_text(text)
    assert "train.json" in refusal("herbarium19", tmp_path)


def test_csv_without_the_columns(tmp_path: Path) -> None:
    write("stanford-cars csv", tmp_path)
    for header, lacking in (("x,class", "image or"), ("fname,y", "class or label")):
        (tmp_path / "stanford-cars/train.csv").write_text(f"{header}\n1.jpg,1\n")
        assert lacking in refusal("stanford-cars csv", tmp_path)


# --------------------------------------------------------------------------------------------- pickles


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["alone", "value", "key", "labels"])
def test_a_pickle_runs_nothing(tmp_path: Path, protocol: int, place: str) -> None:
    at, _ = write("cifar10 python", tmp_path)
    trap = Evil(os.system, f"touch {tmp_path}/was-here")
    value = {"alone": trap, "value": {"data": trap}, "key": {trap: 1}, "labels": {"labels": [trap]}}[place]
    (at / "cifar-10-batches-py/data_batch_2").write_bytes(pickle.dumps(value, protocol=protocol))
    message = refusal("cifar10 python", tmp_path)
    assert "data_batch_2 holds something other than arrays (posix.system)" in message
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    "call",
    [
        (eval, "1"),
        (getattr, 1, "real"),
        (np.zeros, 10**12),
        (np.load, "/etc/passwd"),
        (np.memmap, "/etc/passwd"),
        (np.fromfile, "/etc/passwd"),
        (np.frombuffer, b"x"),
        (bytearray, 10**12),
        (__import__, "os"),
    ],
    ids=lambda call: call[0].__name__,
)
def test_a_pickle_finds_no_other_function(tmp_path: Path, call: Any) -> None:
    path = put(tmp_path / "p", pickle.dumps({"data": Evil(*call)}, protocol=2))
    with pytest.raises(UserError, match="something other than arrays"):
        pickled.read(path, "unpack it again")


HUGE = struct.pack("<I", 2**31 - 1)
BOMBS = {
    "memory of the unpickler": b"\x80\x02}r" + HUGE + b".",
    "string": b"\x80\x02}(T" + HUGE + b"x",
    "bytes": b"\x80\x04}(\x8e" + struct.pack("<Q", 2**40) + b"x",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"}.",
    "shape": python2({"data": np.zeros((1, 1), np.uint8)}).replace(
        b"J\x01\0\0\0J\x01\0\0\0t", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft"
    ),
    "array made at once": b"\x80\x02}(U\x04datacnumpy\nndarray\n(J" + HUGE + b"tRu.",
    "reconstruct": b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nJ"
    + HUGE
    + b"U\x01btRu.",
    "type": b"\x80\x02}(U\x04datacnumpy\ndtype\n(U\x06V99999tRu.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_takes_no_memory_by_a_number_alone(tmp_path: Path, bomb: str) -> None:
    path = put(tmp_path / "p", BOMBS[bomb])
    found: dict[str, Any] = {}
    tracemalloc.start()
    with suppress(UserError):
        found = pickled.read(path, "unpack it again")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not any(isinstance(value, np.ndarray) for value in found.values())
    assert peak < 2**20


@pytest.mark.parametrize(
    "value",
    [
        {"data": noise(2, 3071), "labels": [0, 1]},
        {"data": noise(2 * 3072), "labels": [0, 1]},
        {"data": noise(0, 3072), "labels": []},
        {"data": noise(2, 3072), "labels": [0]},
        {"data": noise(2, 3072), "labels": [0, "1"]},
        {"data": noise(2, 3072), "labels": [0, True]},
        {"data": noise(2, 3072), "labels": [0, 2**70]},
        {"data": noise(2, 3072).astype(np.int16), "labels": [0, 1]},
        {"data": noise(2, 3072).astype(object), "labels": [0, 1]},
        {"data": [[0] * 3072] * 2, "labels": [0, 1]},
        {"labels": [0, 1]},
        {"data": noise(2, 3072)},
        [1, 2],
    ],
    ids=range(13),
)
def test_a_pickle_of_something_else(tmp_path: Path, value: Any) -> None:
    at, _ = write("cifar10 python", tmp_path)
    (at / "cifar-10-batches-py/test_batch").write_bytes(python3(value))
    message = refusal("cifar10 python", tmp_path)
    assert "test_batch" in message
    assert "unpack cifar-10-python.tar.gz again" in message


def test_the_binary_version_comes_first(tmp_path: Path) -> None:
    at, _ = write("cifar10 python", tmp_path)
    (at / "cifar-10-batches-py/test_batch").write_bytes(b"not read")
    write("cifar10", tmp_path)
    sources.read_named("cifar10", tmp_path)


# ----------------------------------------------------------------------------------------- idx and mat

LABELS = "train-labels-idx1-ubyte"


@pytest.mark.parametrize("end", ["", ".gz"])
def test_an_idx_file_that_unpacks_to_far_more_than_it_says(tmp_path: Path, end: str) -> None:
    at, _ = write("mnist" if end else "mnist plain", tmp_path)
    bomb = idx(np.zeros(20, np.uint8)) + bytes(2**26)
    put(at / f"{LABELS}{end}", gzip.compress(bomb) if end else bomb)
    del bomb
    tracemalloc.start()
    try:
        message = refusal("mnist", tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{LABELS}{end} is longer than the 20 bytes that its header says" in message
    assert peak < 2**22


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (LABELS, struct.pack(">II", 2049, 2**32 - 1) + bytes(9), "4294967295 entries"),
        (LABELS, struct.pack(">II", 2049, 0), "0 entries"),
        (LABELS, struct.pack(">II", 2051, 20) + bytes(20), "2051, not 2049"),
        (LABELS, struct.pack(">II", 2049, 19) + bytes(19), "20 train images but 19 labels"),
        ("t10k-images-idx3-ubyte", struct.pack(">IIII", 2051, 10, 2**31, 2**31), "2147483648 x 2147483648"),
        ("t10k-images-idx3-ubyte", struct.pack(">IIII", 2051, 10, 28, 28) + bytes(9), "shorter"),
    ],
)
def test_an_idx_file_with_another_header(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    at, _ = write("mnist", tmp_path)
    put(at / f"{file}.gz", gzip.compress(content))
    assert said in refusal("mnist", tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    """Their files have the same names, and both may be sought in the same folder."""
    mnist(tmp_path)
    labels = np.array([5, 0, 4, 1, 9, 2, 1, 3, *range(10), 0, 0], np.uint8)
    put(tmp_path / f"{LABELS}.gz", gzip.compress(idx(labels)))
    assert f"({tmp_path} holds another set)" in refusal("fashion-mnist", tmp_path)
    assert sources.find("fashion-mnist", tmp_path) is None
    assert sources.read_named("mnist", tmp_path).train.labels.tolist() == labels.tolist()


@pytest.mark.parametrize(
    "variables",
    [
        {"X": noise(32, 32, 3, 5)},
        {"y": np.ones((5, 1))},
        {"X": noise(32, 32, 5), "y": np.ones((5, 1))},
        {"X": noise(5, 32, 32, 3), "y": np.ones((5, 1))},
        {"X": noise(32, 32, 3, 5).astype(float), "y": np.ones((5, 1))},
        {"X": noise(32, 32, 3, 5), "y": np.ones((4, 1))},
        {"X": noise(32, 32, 3, 5), "y": np.full((5, 1), np.nan)},
        {"X": noise(32, 32, 3, 5), "y": np.full((5, 1), 1.5)},
        {"X": noise(32, 32, 3, 5), "y": "12345"},
        {"X": "house", "y": "12345"},
        {"X": {"a": 1}, "y": {"a": 1}},
    ],
    ids=range(11),
)
def test_a_matlab_file_of_something_else(tmp_path: Path, variables: dict[str, Any]) -> None:
    at, _ = write("svhn", tmp_path)
    savemat(at / "test_32x32.mat", variables)
    assert "test_32x32.mat" in refusal("svhn", tmp_path)


def element(order: str, kind: int, content: bytes) -> bytes:
    """As MATLAB writes it: short content lies within the tag."""
    if 0 < len(content) <= 4:
        return struct.pack(order + "I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    return struct.pack(order + "II", kind, len(content)) + content + bytes(-len(content) % 8)


def variable(order: str, name: str, kind: int, shape: tuple[int, ...], *content: bytes) -> bytes:
    flags = element(order, 6, struct.pack(order + "II", kind, 0))
    dims = element(order, 5, struct.pack(order + "i" * len(shape), *shape))
    return element(order, 14, flags + dims + element(order, 1, name.encode()) + b"".join(content))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_as_matlab_writes_it(tmp_path: Path, order: str, compressed: bool) -> None:
    """Doubles in single bytes, words in two bytes a letter, either byte order; scipy reads the same."""
    word = "Auto".encode("utf-16-le" if order == "<" else "utf-16-be")
    inner = [
        variable(order, "", 4, (1, 4), element(order, 4, word)),
        variable(order, "", 6, (1, 1), element(order, 2, bytes([7]))),
    ]
    names = element(order, 1, b"fname".ljust(8, b"\0") + b"class".ljust(8, b"\0"))
    variables = [
        variable(order, "y", 6, (2, 3), element(order, 2, bytes(range(6)))),
        variable(order, "z", 12, (1, 2), element(order, 3, struct.pack(order + "hh", -1, 300))),
        variable(order, "s", 2, (1, 2), element(order, 5, struct.pack(order + "i", 8)), names, *inner * 2),
        variable(order, "c", 1, (1, 2), *inner),
    ]
    if compressed:
        packed = [zlib.compress(v) for v in variables]
        variables = [struct.pack(order + "II", 15, len(p)) + p for p in packed]
    header = b"MATLAB 5.0".ljust(124) + struct.pack(order + "H", 0x0100) + (b"IM" if order == "<" else b"MI")
    path = put(tmp_path / "x.mat", header + b"".join(variables))
    y, z, s, c = matlab.read(path, "y", "z", "s", "c", remedy="fetch it")
    assert y.tolist() == [[0, 2, 4], [1, 3, 5]] == loadmat(path)["y"].tolist()
    assert (y.dtype, z.dtype) == (np.float64, np.int32)
    assert z.tolist() == [[-1, 300]] == loadmat(path)["z"].tolist()
    assert matlab.fields(path, s, "class", "fname", remedy="") == [[7, 7], ["Auto", "Auto"]]
    assert [record["fname"] for record in loadmat(path, squeeze_me=True)["s"]] == ["Auto", "Auto"]
    assert (c[0], c[1].tolist()) == ("Auto", [[7]])


def test_matlab_variables_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savemat(tmp_path / "x.mat", {"X": np.zeros(2**20)}, do_compression=True)
    assert len(matlab.read(tmp_path / "x.mat", "X", remedy="")[0][0]) == 2**20
    monkeypatch.setattr(matlab, "MOST", 2**16)
    with pytest.raises(UserError, match=r"x\.mat"):
        matlab.read(tmp_path / "x.mat", "X", remedy="fetch it")


def test_cars_of_another_structure(tmp_path: Path) -> None:
    at, _ = write("stanford-cars", tmp_path)
    odd = records(**{"fname": ["1.jpg"], "class": [np.arange(3)]})
    for annotations in (np.arange(3), records(fname=["1.jpg"]), "text", odd):
        savemat(at / "devkit/cars_train_annos.mat", {"annotations": annotations})
        assert "cars_train_annos.mat" in refusal("stanford-cars", tmp_path)


# -------------------------------------------------------------------------------------------- the table


def test_a_set_is_sought_as_unpacked_then_by_name_then_at_home(tmp_path: Path) -> None:
    home = {"home": tmp_path, "name": tmp_path / "svhn", "unpacked": tmp_path / "svhn" / "unpacked"}
    assert sources.find("svhn", tmp_path) is None
    for at in home.values():
        svhn_(at)
        assert sources.find("svhn", tmp_path) == at
    (home["unpacked"] / "test_32x32.mat").unlink()  # half of it does not count
    assert sources.find("svhn", tmp_path) == home["name"]


def test_digits_are_always_there(tmp_path: Path) -> None:
    assert sources.find("digits", tmp_path) is not None
    assert sources.NAMED["digits"].reader.missing(tmp_path) is None


def test_the_table() -> None:
    for name, named in sources.NAMED.items():
        assert named.classes >= 10
        assert named.images > named.classes
        assert named.licence
        assert named.how_to_get
        assert not named.how_to_get.endswith(".")
        assert len({archive.file for archive in named.archives}) == len(named.archives)
        for archive in named.archives:
            assert archive.url is None or archive.url.startswith(("http://", "https://"))
            assert archive.url is None or archive.url.endswith("/" + archive.file)
            assert archive.checksum is not None
            kind, _, digits = archive.checksum.partition(":")
            assert (kind, len(digits), set(digits) <= set("0123456789abcdef")) == ("md5", 32, True)
            assert archive.size > 1000
        assert named.offered is (name not in ("digits", "imagenet-100", "stanford-cars", "cub"))


def test_the_hundred_classes_of_imagenet_100() -> None:
    wnids = imagenet100.wnids()
    assert len(set(wnids)) == 100
    assert wnids == sorted(wnids)
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdecimal() for wnid in wnids)

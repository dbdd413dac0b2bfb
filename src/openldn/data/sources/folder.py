"""A folder of images: labelled by class folders, or by a CSV file."""

import csv
from pathlib import Path

from openldn.data import images
from openldn.data.problem import Problem, encode
from openldn.errors import UserError

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")


def read(
    folder: Path,
    labels: Path | None,
    *,
    n_novel: int,
    flip: bool = True,
    size: int | None = None,
    largest: int = 224,
) -> Problem:
    """`folder`/<class>/* are labelled and `folder`/unlabelled/* not; or `labels` says which are."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give a folder of images or a data set's name")
    if size is not None:
        images.check_size(size)
    paths = images.find(folder)
    if not paths:
        raise UserError(
            f"there are no images in {folder}; it takes {', '.join(s[1:] for s in images.SUFFIXES)}"
        )
    names = [path.relative_to(folder).as_posix() for path in paths]
    given = _from_folders(folder, names) if labels is None else from_csv(labels, names)
    ids, classes = encode(given)
    chosen, channels = images.choose_size(paths, largest)
    pixels = images.read(paths, chosen if size is None else size, channels)
    return Problem(pixels, ids, tuple(names), classes, n_novel, flip)


def _from_folders(folder: Path, names: list[str]) -> list[str]:
    """The first folder of each name is its class."""
    loose = [name for name in names if "/" not in name]
    if loose:
        raise UserError(
            f"{len(loose)} images lie directly in {folder} (such as {loose[0]}); put them into class folders "
            f"and '{UNLABELLED_FOLDERS[0]}', or say what they are with --labels FILE.csv"
        )
    tops = [name.split("/")[0] for name in names]
    return ["" if top.lower() in UNLABELLED_FOLDERS else top for top in tops]


def from_csv(path: Path, names: list[str]) -> list[str]:
    """The label of each name, "" where the file has none."""
    given = read_labels(path)
    missing = sorted(set(given) - set(names))
    if missing:
        raise UserError(
            f"{path} names {len(missing)} images that are not in the folder (such as {missing[0]!r}); "
            "give paths relative to the folder"
        )
    return [given.get(name, "") for name in names]


def read_labels(path: Path) -> dict[str, str]:
    """A CSV file of `image,label`, as a dictionary."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            reader = csv.DictReader(f)
            columns = [c.strip().lower() for c in reader.fieldnames or ()]
            lacking = [c for c in ("image", "label") if c not in columns]
            if lacking:
                raise UserError(
                    f"{path} has no column {lacking[0]!r} (it has {', '.join(columns) or 'none'}); "
                    "its first line must be: image,label"
                )
            reader.fieldnames = columns
            given: dict[str, str] = {}
            for row in reader:
                if any(row.get(None) or ()):
                    raise UserError(
                        f"line {reader.line_num} of {path} has more fields than its first line; "
                        "put names with commas between double quotes"
                    )
                image, label = (row["image"] or "").strip(), (row["label"] or "").strip()
                image = image.removeprefix("./")
                label = "" if label == "-1" else label  # as in arrays
                if not image and not label:  # a spreadsheet's empty row
                    continue
                if given.setdefault(image, label) != label:
                    raise UserError(
                        f"{path} says of {image!r} once {given[image]!r} and once {label!r}; keep one"
                    )
    except FileNotFoundError:
        raise UserError(f"there is no label file {path}; check the path") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror}); give a CSV file of image,label") from None
    except (UnicodeDecodeError, csv.Error) as e:
        raise UserError(f"{path} is not a readable CSV file ({e}); save it as UTF-8 CSV") from None
    return given

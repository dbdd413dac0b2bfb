"""Oxford-IIIT Pets: 7,349 photographs of cats and dogs of 37 breeds."""

from pathlib import Path

from openldn.data.problem import Listing
from openldn.data.sources import listed
from openldn.errors import UserError

TRAIN, TEST = "annotations/trainval.txt", "annotations/test.txt"
REMEDY = "unpack images.tar.gz and annotations.tar.gz again"


def read(folder: Path) -> Listing:
    """The publisher's parts; classes in the order of the ids that its lists give, 1 to 37.

    Cat breeds are spelt with a capital and dog breeds without, so sorting their names, as a reader of class
    folders would, puts all cats first; the ids go through both kinds by letter.
    """
    train, test = _part(folder, TRAIN), _part(folder, TEST)
    breeds = {
        label: name.removeprefix("images/").rpartition("_")[0]
        for name, label in zip(train.names, train.labels, strict=True)
    }
    keys = [str(i + 1) for i in range(len(breeds))]
    if set(breeds) != set(keys):
        raise UserError(f"the classes in {folder / TRAIN} are not numbered 1 to {len(breeds)}; {REMEDY}")
    classes = [breeds[key] for key in keys]
    return listed.listing("oxford-pets", folder, train, test, classes, keys=keys, remedy=REMEDY)


def missing(folder: Path) -> Path | None:
    """What is needed but not there, if anything; single images are not looked for."""
    return listed.missing(folder, TRAIN, TEST, "images/")


def present(folder: Path) -> bool:
    """Whether its lists and the folder of images are there."""
    return missing(folder) is None


def _part(folder: Path, file: str) -> listed.Part:
    rows = listed.rows(folder / file, 4, REMEDY)  # image, class, species, breed within the species
    return listed.Part(folder / file, [f"images/{row[0]}.jpg" for row in rows], [row[1] for row in rows])

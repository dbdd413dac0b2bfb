"""Variables of MATLAB files."""

import warnings
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from scipy.io import loadmat

from openldn.errors import UserError


def read(path: Path, *names: str, remedy: str) -> list[NDArray[Any]]:
    """The variables of these names; axes of length 1 are left out."""
    try:
        with path.open("rb") as f, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = loadmat(f, variable_names=names, squeeze_me=True)
    except Exception as e:  # a damaged file can make scipy raise anything
        reason = getattr(e, "strerror", None) or "damaged or cut off"
        raise UserError(f"{path} cannot be read ({reason}); {remedy}") from None
    lacking = [name for name in names if name not in found]
    if lacking:
        raise UserError(f"{path} has no variable {lacking[0]!r}; {remedy}")
    return [found[name] for name in names]


def fields(path: Path, records: NDArray[Any], *names: str, remedy: str) -> list[list[Any]]:
    """The values of these fields in an array of structures, each as a list."""
    lacking = [name for name in names if name not in (records.dtype.names or ())]
    if lacking:
        raise UserError(f"{path} says nothing of {lacking[0]!r}; {remedy}")
    return [records[name].reshape(-1).tolist() for name in names]

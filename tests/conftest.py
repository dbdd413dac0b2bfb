"""Before torch is loaded: threads that wait soon sleep, so that tests are quick on a busy machine too."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test leaves anything in the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("OPENLDN_CACHE")
    os.environ["OPENLDN_CACHE"] = str(folder)
    yield folder
    os.environ.pop("OPENLDN_CACHE")
    if before is not None:
        os.environ["OPENLDN_CACHE"] = before

"""Before torch is loaded: one thread each, since networks are tiny and tests run side by side."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for whoever sets more: threads that wait soon sleep


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


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of a test's own."""
    monkeypatch.setenv("OPENLDN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"

"""The user's cache folder."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def folder(variable: str, below: str = "") -> Path:
    """The folder that an environment variable names, or else `below` in openldn's own cache."""
    named = os.environ.get(variable)
    return Path(named) if named else user_cache_path("openldn", appauthor=False) / below

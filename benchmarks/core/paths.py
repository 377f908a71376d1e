"""Paths of the project, its runs, files that can be rebuilt, and the user's cache. Imports no torch."""

import os
from pathlib import Path

from resireduce.errors import ConfigError

ROOT = Path(__file__).parents[2]
"""The source tree."""
RUNS = Path("results/runs")
CACHE = Path("results/cache")
IMAGES = CACHE / "images"
"""Entries of images that the workflow built, and their SIFs."""


def cache_folder() -> Path:
    """Return the user's folder for files that can be fetched again: $XDG_CACHE_HOME/resireduce or ~/.cache/resireduce.

    Raises ConfigError for a user without a home.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):  # the XDG base directory specification says to ignore relative paths
        return Path(home) / "resireduce"
    try:
        return Path.home() / ".cache/resireduce"
    except RuntimeError:
        raise ConfigError("HOME: this user has none; set it, or XDG_CACHE_HOME, to a folder of yours") from None

"""Where things lie: the project, its runs, what can be made again, the user's cache. Imports no torch."""

import os
from pathlib import Path

from resireduce.errors import ConfigError

ROOT = Path(__file__).parents[2]
"""The source tree."""
RUNS = Path("results/runs")
CACHE = Path("results/cache")
IMAGES = CACHE / "images"
"""Entries of images that the workflow built, their SIFs, and weights that were made in them."""


def cache_folder() -> Path:
    """Return the user's folder for what can be had again: $XDG_CACHE_HOME/resireduce, else ~/.cache/resireduce.

    Raises ConfigError for a user without a home.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):  # others are to be ignored, says the XDG base directory specification
        return Path(home) / "resireduce"
    try:
        return Path.home() / ".cache/resireduce"
    except RuntimeError:
        raise ConfigError("HOME: this user has none; set it, or XDG_CACHE_HOME, to a folder of yours") from None

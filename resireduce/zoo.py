"""Models by name, for planning: from installed packages, or any `module:callable`."""

from collections.abc import Callable
from importlib.metadata import entry_points

from torch import nn

from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

GROUP = "resireduce.models"
"""Entry points of this group name dictionaries: model name -> "module:callable"."""


def known_models() -> dict[str, str]:
    """All models that installed packages offer, as name -> "module:callable"."""
    found: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        found |= entry.load()
    return found


def find_builder(name: str) -> Callable[[], nn.Module]:
    """The function that builds model `name`. ConfigError if there is none."""
    target = name
    if ":" not in name:
        models = known_models()
        target = models[choose("model", name, models)]
    try:
        return load(target)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model: {name!r} cannot be loaded: {error}; give a known name or module:callable") from error

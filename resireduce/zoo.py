"""Models by name, for planning: from installed packages, or any `module:callable`."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

GROUP = "resireduce.models"
"""Entry points of this group name dictionaries: model name -> "module:callable"."""
CURE = "give a known name, or module:callable that needs no arguments and returns the model"
"""What to do about a model that cannot be used, for messages."""


def known_models() -> dict[str, str]:
    """All models that installed packages offer, as name -> "module:callable"."""
    found: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        found |= entry.load()
    return found


def find_builder(name: str) -> Callable[[], nn.Module]:
    """The function that builds model `name`, a known one or "module:callable".

    ConfigError if there is none, and from the function if it builds none.
    """
    target = name
    if ":" not in name:
        models = known_models()
        target = models[choose("model", name, models)]
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ConfigError(f"model: {name!r} is not allowed; {CURE}")
    build = _attempt(name, "cannot be loaded", lambda: load(target))
    if not callable(build):
        raise ConfigError(f"model: {name!r} is of type {type(build).__name__} and cannot be called; {CURE}")
    return lambda: _built(name, build)


def _built(name: str, build: Callable[[], Any]) -> nn.Module:
    model = _attempt(name, "cannot be built", build)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model: {name!r} returns an object of type {type(model).__name__}, no torch.nn.Module; {CURE}"
        )
    return model


def _attempt(name: str, what_failed: str, act: Callable[[], Any]) -> Any:
    """What `act` returns. The code is the user's and can raise anything; its message is cut to one line."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        said = next(iter(str(error).strip().splitlines()), "no message")
        raise ConfigError(f"model: {name!r} {what_failed}: {type(error).__name__}: {said}; {CURE}") from error

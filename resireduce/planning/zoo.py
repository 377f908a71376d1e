"""Models by name, for planning: of installed packages, any `module:callable`, or a Hugging Face configuration file."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torch import nn

from resireduce.errors import ConfigError, choose
from resireduce.planning.hugging_face import build_from_config
from resireduce.planning.import_paths import attempt, check_arguments, find_named, first_line, shown

GROUP = "resireduce.models"
"""Entry points of this group name dictionaries: model name -> "module:callable"."""
CURE = (
    "give a known name, module:callable that returns the model (what it must be given: --arg NAME=VALUE), "
    "or the file config.json of a Hugging Face model"
)
"""What to do about a model that cannot be used, for messages."""
INSTANCE = (
    "is a model itself, with all its memory; give a function or a class that returns one, "
    "such as: def build(): return {}(...)"
)
"""What is wrong with a module where something that builds one is needed, and the cure; {} is its type."""
VALUES = (
    "it reads values of tensors while it is built, and here they have none: give a function that builds it where they "
    'have, such as: def build(): with torch.device("cpu"): return Model()'
)
"""What to do about a model that cannot be built on device meta, for messages."""


def offered_models() -> tuple[dict[str, str], list[str]]:
    """Return all models that installed packages offer, as name -> "module:callable"; and what offers none, and why."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for entry in entry_points(group=GROUP):
        try:
            found |= _models_of(entry)
        except (Exception, SystemExit) as error:
            problems.append(f"{entry.name!r} ({entry.value}): {first_line(error)}")
    return found, problems


def _models_of(entry: EntryPoint) -> dict[str, str]:
    """Return the models of one entry point. Its code is not the library's, and can raise anything."""
    models = entry.load()
    if not isinstance(models, dict) or not all(isinstance(it, str) for pair in models.items() for it in pair):
        raise TypeError('it is no dict of names to "module:callable"')
    return models


def is_config_file(name: str) -> bool:
    """Whether a model of that name is a Hugging Face configuration: a path, or a file *.json."""
    return os.sep in name or name.lower().endswith(".json")


def find_builder(name: str, arguments: Mapping[str, object] | None = None) -> Callable[[], nn.Module]:
    """Return the function that builds model `name`, given `arguments`: see CURE for what `name` may be.

    To a configuration file, arguments are values in place of its own. Raises ConfigError if there is no such model, or
    if it takes no such argument; so does the function if it builds none.
    """
    given = dict(arguments or {})
    if is_config_file(name):
        return partial(_built, name, given, partial(build_from_config, name))
    make = find_named("model", name, name if ":" in name else _target(name), CURE)
    if isinstance(make, nn.Module):
        raise ConfigError(f"model: {name!r} {INSTANCE.format(type(make).__name__)}")
    if not callable(make):
        raise ConfigError(f"model: {name!r} is of type {type(make).__name__} and cannot be called; {CURE}")
    return partial(_built, name, given, check_arguments("arg", name, make, given))


def _target(name: str) -> str:
    """Return the "module:callable" of a known name."""
    models, problems = offered_models()
    if not models and not problems:
        raise ConfigError(f"model: {name!r} is not known: no installed package lists models by name; {CURE}")
    try:
        return models[choose("model", name, models)]
    except ConfigError as error:
        missing = f"; models that are listed but cannot be loaded: {'; '.join(problems)}" if problems else ""
        raise ConfigError(f"{error}{missing}; {CURE}") from None


def _built(name: str, arguments: Mapping[str, object], make: Callable[..., Any]) -> nn.Module:
    what_failed = f"model: {name!r} cannot be built{shown(arguments)}"

    def with_values_named() -> Any:
        try:
            return make(**arguments)
        except (RuntimeError, TypeError) as error:
            if not re.search("meta (tensor|device)", str(error)):
                raise
            raise ConfigError(f"{what_failed}: {first_line(error)}; {VALUES}") from error

    model = attempt(what_failed, with_values_named, CURE)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model: {name!r} returns an object of type {type(model).__name__}, no torch.nn.Module; {CURE}"
        )
    return model

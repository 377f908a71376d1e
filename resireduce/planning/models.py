"""The model that a command line names: found, built, and brought to tensors without storage."""

import copy
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

# --- Objects that a user names by "module:name": found, checked and called; errors become one line ---


def find_named(field: str, name: str, target: str, cure: str) -> Any:
    """Return the object that `target`, "module:name", names.

    Raises ConfigError of `field` if there is none, with `name`, as the user gave it, and `cure`.
    """
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ConfigError(f"{field}: {name!r} is not allowed; {cure}")
    return attempt(f"{field}: {name!r} cannot be loaded", lambda: load(target), cure)


def attempt(what_failed: str, act: Callable[[], Any], cure: str) -> Any:
    """Return what `act` returns; an error becomes a ConfigError of one line: `what_failed`, its message, and `cure`.

    It calls code that is not the library's and can raise anything. A ConfigError is passed on as it is.
    """
    try:
        return act()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what_failed}: {first_line(error)}; {cure}") from error


def first_line(error: BaseException) -> str:
    """Return type and message of `error`, cut to one line: the first, and the second if the first announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {' '.join(lines[: 1 + lines[0].endswith(':')])}"


def check_arguments(
    field: str, name: str, make: Callable[..., Any], arguments: Iterable[str], own: int = 0
) -> Callable[..., Any]:
    """Return `make`, called `name`, if it takes `arguments` by name, as far as its signature tells, beside the first
    `own`, which the library gives. Otherwise raise a ConfigError of `field`, with what it takes."""
    try:
        parameters = list(signature(make).parameters.values())[own:]
    except (TypeError, ValueError):  # some that are written in C tell nothing
        return make
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        allowed = [parameter.name for parameter in parameters if parameter.kind in by_name]
        for argument in arguments:
            choose(f"{field} of {name!r}", argument, allowed)
    return make


def shown(arguments: Mapping[str, object]) -> str:
    """Return `arguments` as text for a message: " with layers=12, width='a'"; nothing without any."""
    return f" with {', '.join(f'{key}={value!r}' for key, value in arguments.items())}" if arguments else ""


# --- Models of a Hugging Face configuration: config.json, which says what a model is made of, not its weights ---


WANTED = 'give the config.json of a Hugging Face model, a JSON object with "model_type" or "architectures"'
"""What to do about a file that is no such configuration, for messages."""
BY_HAND = "give module:callable that returns the model"
"""What to do about a configuration that cannot be used."""


def build_from_config(path: str, /, **values: object) -> nn.Module:
    """Return the model that a file describes, or config.json in a folder, on the default device; nothing is downloaded.

    It is the first of the file's "architectures", or without one what transformers' AutoModel makes of its
    "model_type"; in the precision that its "dtype" names. `values` take the place of the file's own. Raises ConfigError
    if transformers is missing, and if the file is no configuration of one of its models.
    """
    content = _read(path)
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"model: {path!r} needs the package transformers, which cannot be imported ({error}): "
            f"pip install transformers, or {BY_HAND}"
        ) from error
    names = content.get("architectures") or [None]
    name, version = names[0] if isinstance(names, list) else names, transformers.__version__
    architecture = getattr(transformers, name, None) if isinstance(name, str) else None
    is_model = isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)
    if name is not None and not is_model:
        raise ConfigError(
            f"model: {path!r}: the architecture {name!r} is no model of transformers {version}: install the version "
            f"that has it, or, if its code comes with the weights, {BY_HAND}"
        )
    model_type = content.get("model_type")
    if model_type and model_type not in list(transformers.CONFIG_MAPPING):
        raise ConfigError(
            f"model: {path!r}: the model_type {model_type!r} is not known to transformers {version}: install the "
            f"version that has it, or {BY_HAND}"
        )
    kind = transformers.CONFIG_MAPPING[model_type] if model_type else architecture.config_class  # type: ignore[union-attr]
    known = {**kind().to_dict(), **content}
    for value in values:
        choose(f"arg of {path!r}", value, known)
    config = kind.from_dict(content | values)
    # What AutoModel.from_config calls, too: unlike the class itself, it has the precision that the file names.
    model: nn.Module = (
        transformers.AutoModel.from_config(config) if architecture is None else architecture._from_config(config)
    )
    return model


def _read(path: str) -> dict[str, Any]:
    file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"model: {path!r} cannot be read: {error.strerror}; {WANTED}") from error
    except ValueError as error:
        raise ConfigError(f"model: {path!r} is not JSON: {error}; {WANTED}") from error
    if not isinstance(content, dict) or not (content.get("model_type") or content.get("architectures")):
        raise ConfigError(f"model: {path!r} is no configuration of a Hugging Face model; {WANTED}")
    if content.get("quantization_config"):
        raise ConfigError(
            f"model: {path!r} has a quantization_config: how its weights are stored is not planned; "
            f"take it out to plan unquantised weights, or {BY_HAND}"
        )
    return content


# --- Models by name: of installed packages, any `module:callable`, or a Hugging Face configuration file ---


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
            models = entry.load()
            if not isinstance(models, dict) or not all(isinstance(it, str) for pair in models.items() for it in pair):
                problems.append(f'{entry.name!r} ({entry.value}): it is no dict of names to "module:callable"')
                continue
            found |= models
        except (Exception, SystemExit) as error:  # its code is not the library's, and can raise anything
            problems.append(f"{entry.name!r} ({entry.value}): {first_line(error)}")
    return found, problems


def is_config_file(name: str) -> bool:
    """Whether a model of that name is a Hugging Face configuration: a path, or a file *.json."""
    return os.sep in name or name.lower().endswith(".json")


def find_builder(name: str, arguments: Mapping[str, object] | None = None) -> Callable[[], nn.Module]:
    """Return the function that builds model `name`, given `arguments`, with the attribute `inputs` of what was named.

    See CURE for what `name` may be. To a configuration file, arguments are values in place of its own. Raises
    ConfigError if there is no such model or argument; so does the function if it builds none.
    """
    given = dict(arguments or {})
    if is_config_file(name):
        return partial(_built, name, given, partial(build_from_config, name))
    make = find_named("model", name, name if ":" in name else _target(name), CURE)
    if isinstance(make, nn.Module):
        raise ConfigError(f"model: {name!r} {INSTANCE.format(type(make).__name__)}")
    if not callable(make):
        raise ConfigError(f"model: {name!r} is of type {type(make).__name__} and cannot be called; {CURE}")
    built = partial(_built, name, given, check_arguments("arg", name, make, given))
    vars(built)["inputs"] = getattr(make, "inputs", None)
    return built


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


# --- A model that was built where tensors have values is planned as one that was built on device meta ---


PLAIN = (nn.Parameter, Tensor)
"""Types of what is put into another device; what wraps others, as quantized weights do, stays where it is."""


def to_meta(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with all parameters and buffers on device meta; `model` itself if they all are there.

    The fullest moment of a step is counted by what is made in it, and code for tensors with values makes other things.
    A script's own model is left as it is, unless it cannot be copied: then its tensors are replaced.
    """
    made = {id(one): _like(one) for _, _, one in _held(model)}
    if not made:
        return model
    try:
        return copy.deepcopy(model, dict(made))
    except Exception:  # as of a module with a tensor that was computed, or with a lock
        for held, name, one in list(_held(model)):
            held[name] = made[id(one)]
        return model


def _held(model: nn.Module) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Yield the parameters and buffers of `model` that have values, each after its dictionary and name there."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for held in (module._parameters, module._buffers):
            for name, one in held.items():
                if one is not None and type(one) in PLAIN and one.layout == torch.strided and not one.is_meta:
                    yield held, name, one  # type: ignore[misc]


def _like(one: Tensor) -> Tensor:
    """Return a tensor like `one`, with its attributes, on device meta."""
    empty = torch.empty_like(one, device="meta").detach()
    if isinstance(one, nn.Parameter):
        empty = nn.Parameter(empty, one.requires_grad)
        vars(empty).update(vars(one))
    return empty

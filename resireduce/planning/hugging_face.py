"""Models of a Hugging Face configuration: the file config.json, which says what a model is made of, not its weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from resireduce.errors import ConfigError, choose

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
    architecture = _architecture(transformers, path, content)
    kind = _kind(transformers, path, content, architecture)
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
    """Return the content of the file. Raises ConfigError if it is no configuration, or one of weights in a form of
    their own."""
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


def _architecture(transformers: Any, path: str, content: Mapping[str, Any]) -> Any:
    """Return the class of the first architecture, None if the file names none."""
    names = content.get("architectures") or [None]
    name = names[0] if isinstance(names, list) else names
    if name is None:
        return None
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ConfigError(
            f"model: {path!r}: the architecture {name!r} is no model of transformers {transformers.__version__}: "
            f"install the version that has it, or, if its code comes with the weights, {BY_HAND}"
        )
    return found


def _kind(transformers: Any, path: str, content: Mapping[str, Any], architecture: Any) -> Any:
    """Return the class of the configuration."""
    if not content.get("model_type"):
        return architecture.config_class
    if content["model_type"] not in list(transformers.CONFIG_MAPPING):
        raise ConfigError(
            f"model: {path!r}: the model_type {content['model_type']!r} is not known to transformers "
            f"{transformers.__version__}: install the version that has it, or {BY_HAND}"
        )
    return transformers.CONFIG_MAPPING[content["model_type"]]

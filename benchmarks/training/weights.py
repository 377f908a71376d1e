"""Pretrained weights that a model starts from: prepared files in safetensors format, read tensor by tensor, or .pt."""

from pathlib import Path

import torch
from torch import nn

from benchmarks.data.prepared import open_prepared
from resireduce.errors import ConfigError


def load_given(model: nn.Module, path: Path) -> None:
    """Load a state dict that `torch.save` wrote. Raises ConfigError, one line, if it is not one of this model."""
    cure = "make them with: python -m benchmarks pretrain"
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(values)
    except Exception as error:  # readers of archives and pickles raise what they like
        lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
        reason = f"{lines[0]} {lines[1] if len(lines) > 1 else ''}"[:200].strip()
        raise ConfigError(f"weights: {path} does not fit: {reason}; {cure}") from None


def load_prepared(model: nn.Module, name: str, root: Path) -> None:
    """Overwrite the model's parameters with the prepared weights `name`; those they are known to lack stay as they are.

    Raises ConfigError, one line, if the file has other tensors than the model, or of another shape.
    """
    from safetensors import safe_open

    prepared = open_prepared(name, root)
    own = dict(model.named_parameters())
    with safe_open(prepared.folder / "model.safetensors", framework="pt") as file, torch.no_grad():
        _same_names(set(own), set(file.keys()), set(prepared.manifest.get("missing", ())), name)
        for key in file.keys():  # noqa: SIM118  (no mapping)
            shape = tuple(file.get_slice(key).get_shape())
            if shape != tuple(own[key].shape):
                raise ConfigError(
                    f"weights: {key} of {name!r} is {shape}, allowed is {tuple(own[key].shape)}; prepare them again"
                )
            own[key].copy_(file.get_tensor(key))


def _same_names(own: set[str], found: set[str], missing: set[str], name: str) -> None:
    for key in sorted(found ^ (own - missing)):
        what = "has no parameter" if key in own else "has a parameter that the model does not,"
        raise ConfigError(f"weights: {name!r} {what} {key}; prepare them again, from the model of that name")

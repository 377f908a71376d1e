"""What `resireduce.distribute` is given, checked before anything is changed."""

import math
from inspect import Parameter, signature

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, is_count, is_number
from resireduce.grad_scaler import GradScaler
from resireduce.optimizer import DISTRIBUTED


def check_types(model: object, optimizer: object) -> None:
    """Raise ConfigError unless `model` and `optimizer` are what torch calls so, and nobody else averages gradients."""
    for field, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind):
            raise ConfigError(
                f"{field}: an object of type {type(value).__name__} is not allowed; give a {kind.__name__}"
            )
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "model: a DistributedDataParallel is not allowed, since it averages gradients too; give the model within, "
            "and train that without the wrapper, or use resireduce.compress_ddp(...)"
        )


def check_passes(backward_passes_per_step: object) -> None:
    """Raise ConfigError unless `backward_passes_per_step` is a whole number, 1 or more."""
    if not is_count(backward_passes_per_step) or backward_passes_per_step < 1:  # type: ignore[operator]
        raise ConfigError(f"backward_passes_per_step: {backward_passes_per_step!r} is not allowed; give a number >= 1")


def check_norms(max_grad_norm: float | None, max_local_grad_norm: float | None, gradients: str) -> None:
    """Raise ConfigError unless `max_grad_norm` and `max_local_grad_norm` can be clipped to with these `gradients`."""
    for field, value in (("max_grad_norm", max_grad_norm), ("max_local_grad_norm", max_local_grad_norm)):
        if value is not None and not (is_number(value) and 0 < value < math.inf):
            raise ConfigError(f"{field}: {value!r} is not allowed; give a number greater than 0, or None")
    if max_local_grad_norm is not None and gradients == "streamed":
        raise ConfigError(
            f"max_local_grad_norm: {max_local_grad_norm} is not allowed with gradients='streamed', which are sent "
            "before the norm of all is known; give max_grad_norm, which clips the averages, or gradients='kept'"
        )


def check_scaler(scaler: object, model: nn.Module) -> None:
    """Raise ConfigError unless `scaler` is None, or the library's own and no parameter of `model` is float16."""
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise ConfigError(
            f"grad_scaler: an object of type {type(scaler).__module__}.{type(scaler).__name__} is not allowed; give a "
            "resireduce.GradScaler"
        )
    half = next((name for name, p in model.named_parameters() if p.dtype == torch.float16), None)
    if scaler is not None and half is not None:
        raise ConfigError(
            f"grad_scaler: it is not allowed with parameters in float16 ({half!r}), whose gradients are lost when they "
            "are unscaled; keep parameters in float32 and use torch.autocast"
        )


def check_momentum(compressor: Compressor, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if `compressor` corrects momentum and `optimizer` has some too."""
    own = next((key for g in optimizer.param_groups for key in ("momentum", "betas") if g.get(key)), None)
    if compressor.momentum is not None and own is not None:
        raise ConfigError(
            f"compressor: {type(compressor).__name__} corrects momentum and is not allowed with the {own} of "
            f"{type(optimizer).__name__}; give SGD with momentum=0, or compressor='dgc', which leaves momentum to it"
        )


def optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The trainable parameters that `optimizer` holds, by name, in the order of `model`.

    Raises ConfigError if it holds others, or none, or needs several gradients a step.
    """
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} computes gradients several times a step, which are under way after "
            "the first; use one that takes a step from one gradient (SGD, Adam, ...)"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters = {name: p for name, p in model.named_parameters() if id(p) in held}
    if len(parameters) < len(held):
        raise ConfigError("optimizer: it holds parameters that are not the model's; give distribute() the whole model")
    twice = next((name for name, p in parameters.items() if hasattr(p, DISTRIBUTED)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already; use the optimizer of that call, or build the model anew"
        )
    if not parameters:
        raise ConfigError("optimizer: it holds no trainable parameter of the model")
    return parameters

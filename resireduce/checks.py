"""What `resireduce.distribute` is given, checked before anything is changed."""

import math
import sys
from collections.abc import Mapping
from inspect import Parameter, signature

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resireduce.attach import is_distributed
from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, choose, is_count, is_number
from resireduce.grad_scaler import GradScaler
from resireduce.momentum import own_momentum
from resireduce.scheme import UPDATES
from resireduce.wrapped_step import WrappedStep


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
    sharded = next((name for name, p in model.named_parameters() if hasattr(p, "placements")), None)  # type: ignore[attr-defined]
    wrapper = next((m for m in model.modules() if type(m).__name__ == "FullyShardedDataParallel"), None)  # type: ignore[attr-defined]
    if sharded is not None or wrapper is not None:
        what = "the model" if sharded is None else repr(sharded)
        raise ConfigError(
            f"model: {what} is sharded (FSDP or DTensor), and gradients of shards are reduced by that; give a model "
            "whose parameters are whole on every rank"
        )


def check_passes(backward_passes_per_step: object) -> None:
    """Raise ConfigError unless `backward_passes_per_step` is a whole number, 1 or more."""
    if not is_count(backward_passes_per_step) or backward_passes_per_step < 1:  # type: ignore[operator]
        raise ConfigError(f"backward_passes_per_step: {backward_passes_per_step!r} is not allowed; give a number >= 1")


def check_steps(field: str, value: object) -> None:
    """Raise ConfigError unless `value` of `field` is a whole number, 0 or more."""
    if not is_count(value):
        raise ConfigError(f"{field}: {value!r} is not allowed; give a number of steps, 0 or more")


def check_overlap(
    overlap: object, gradients: str, max_local_grad_norm: float | None, grad_scaler: object | None
) -> bool:
    """Whether gradients go out during the backward pass.

    Raises ConfigError for an `overlap` that `gradients`, `max_local_grad_norm` or `grad_scaler` do not allow.
    """
    if overlap not in (None, True, False):
        raise ConfigError(f"overlap: {overlap!r} is not allowed; give True, False or None")
    if overlap is False and gradients == "streamed":
        raise ConfigError("overlap: False is not allowed with gradients='streamed'; give gradients='kept'")
    needs_all = {"max_local_grad_norm": max_local_grad_norm, "grad_scaler": grad_scaler}
    field = next((field for field, value in needs_all.items() if value is not None), None)
    if overlap and gradients == "kept" and field is not None:
        raise ConfigError(
            f"overlap: True is not allowed with {field} and kept gradients, which needs the whole gradient before "
            "anything is sent; leave overlap out"
        )
    return gradients == "streamed" or bool(overlap)


def check_update(update: str, optimizer: torch.optim.Optimizer, settings: Mapping[str, object]) -> bool:
    """Whether `update` asks for parameters that change during the backward pass.

    Raises ConfigError where that cannot be right: for other `settings` of `distribute` than those that allow it, and
    for an `optimizer` that is not known to update each parameter by itself.
    """
    if choose("update", update, UPDATES) == "in_step":
        return False
    right = {"compressor": "none", "gradients": "streamed", "max_grad_norm": None, "grad_scaler": None}
    for field, allowed in (right | {"backward_passes_per_step": 1}).items():
        if settings[field] != allowed:
            raise ConfigError(
                f"update: 'in_backward' is not allowed with {field}={settings[field]!r}, only with {allowed!r}: "
                "parameters change before all gradients are known; give update='in_step'"
            )
    if not WrappedStep(optimizer, streamed=True).is_sliced:
        raise ConfigError(
            f"update: 'in_backward' is not allowed with {type(optimizer).__name__}, which has a hook before its step "
            "or is not known to update each parameter by itself (a class says so by step_is_separable = True); give "
            "update='in_step'"
        )
    return True


def check_norms(max_grad_norm: float | None, max_local_grad_norm: float | None, gradients: str) -> None:
    """Raise ConfigError unless `max_grad_norm` and `max_local_grad_norm` can be clipped to with these `gradients`."""
    local = ("max_local_grad_norm", max_local_grad_norm, sys.float_info.max)
    for field, value, largest in (("max_grad_norm", max_grad_norm, math.inf), local):
        if value is not None and not (is_number(value) and 0 < value <= largest):
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
    own = own_momentum(optimizer)
    if compressor.momentum is not None and own is not None:
        raise ConfigError(
            f"compressor: {type(compressor).__name__} corrects momentum and is not allowed with the {own} of "
            f"{type(optimizer).__name__}; give SGD with momentum=0, resireduce.optim.DGCSGD, or compressor='dgc', "
            "which leaves momentum to it"
        )


def check_skips(compressor: Compressor, gradients: str, grad_scaler: GradScaler | None) -> None:
    """Raise ConfigError if a step that `grad_scaler` skips could not be undone with `compressor` and `gradients`."""
    if compressor.momentum is not None and gradients == "streamed" and grad_scaler is not None:
        raise ConfigError(
            f"grad_scaler: it is not allowed with {type(compressor).__name__} and gradients='streamed': velocities of "
            "a step that is skipped have gone on by then; give gradients='kept', or bfloat16, which needs no scaling"
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
    twice = next((name for name, p in parameters.items() if is_distributed(p)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already; use the optimizer of that call, or close() it before"
        )
    if not parameters:
        raise ConfigError("optimizer: it holds no trainable parameter of the model")
    return parameters

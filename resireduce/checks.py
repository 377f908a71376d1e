"""The settings of `resireduce.distribute`, checked before anything is changed."""

import math
import sys

import torch
from torch import nn

from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, check_count, choose, is_count, is_number
from resireduce.grad_scaler import GradScaler
from resireduce.momentum import own_momentum
from resireduce.scheme import GRADIENTS, HIERARCHIES, UPDATES
from resireduce.settings import Settings
from resireduce.shared_eps import CURE, shares_eps
from resireduce.wrapped_step import WrappedStep


def check_settings(settings: Settings, model: nn.Module) -> None:
    """Raise ConfigError for `settings` that cannot be used with `model`, whatever compressor and optimizer it has."""
    choose("gradients", settings.gradients, GRADIENTS)
    check_passes(settings.backward_passes_per_step)
    check_norms(settings)
    check_scaler(settings.grad_scaler, model)
    check_count("warm_up_steps", settings.warm_up_steps, of="steps")
    check_overlap(settings)
    check_hierarchy(settings)


def check_beside_optimizer(settings: Settings, compressor: Compressor, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if `compressor` and `optimizer` cannot be used together, or with `settings`."""
    check_momentum(compressor, optimizer)
    check_skips(settings, compressor)
    check_update(settings, compressor, optimizer)


def check_passes(backward_passes_per_step: object) -> None:
    """Raise ConfigError unless `backward_passes_per_step` is a whole number, 1 or more."""
    if not is_count(backward_passes_per_step) or backward_passes_per_step < 1:  # type: ignore[operator]
        raise ConfigError(f"backward_passes_per_step: {backward_passes_per_step!r} is not allowed; give a number >= 1")


def check_overlap(settings: Settings) -> None:
    """Raise ConfigError for an `overlap` that other `settings` do not allow."""
    overlap, gradients = settings.overlap, settings.gradients
    if overlap not in (None, True, False):
        raise ConfigError(f"overlap: {overlap!r} is not allowed; give True, False or None")
    if overlap is False and gradients == "streamed":
        raise ConfigError("overlap: False is not allowed with gradients='streamed'; give gradients='kept'")
    needs_all = {"max_local_grad_norm": settings.max_local_grad_norm, "grad_scaler": settings.grad_scaler}
    field = next((field for field, value in needs_all.items() if value is not None), None)
    if overlap and gradients == "kept" and field is not None:
        raise ConfigError(
            f"overlap: True is not allowed with {field} and kept gradients, which needs the whole gradient before "
            "anything is sent; leave overlap out"
        )


def check_hierarchy(settings: Settings) -> None:
    """Raise ConfigError for an unknown hierarchy, and for one that other `settings` do not allow."""
    if isinstance(settings.hierarchy, str) and choose("hierarchy", settings.hierarchy, HIERARCHIES) == "flat":
        return
    if settings.in_backward:
        raise ConfigError(
            "update: 'in_backward' is not allowed with a hierarchy of nodes, whose ranks gather averages together, in "
            "step(); give update='in_step', where slices wait, or hierarchy='flat'"
        )


def check_update(settings: Settings, compressor: Compressor, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if parameters are to change during the backward pass and this would train wrongly.

    It is correct only with few `settings`, a lossless `compressor`, and an `optimizer` that is known to update each
    parameter by itself.
    """
    if choose("update", settings.update, UPDATES) == "in_step":
        return
    right = {"compressor": "none", "gradients": "streamed", "max_grad_norm": None, "grad_scaler": None}
    for field, allowed in (right | {"backward_passes_per_step": 1}).items():
        given = getattr(settings, field)
        if field == "compressor":
            given = "none" if compressor.lossless else given if isinstance(given, str) else type(compressor).__name__
        if given != allowed:
            raise ConfigError(
                f"update: 'in_backward' is not allowed with {field}={given!r}, only with {allowed!r}: "
                "parameters change before all gradients are known; give update='in_step'"
            )
    if not WrappedStep(optimizer, streamed=True).is_sliced:
        unknown = "is not known to update each parameter by itself (a class says so by step_is_separable = True)"
        shared = f"takes one eps for parameters of several dtypes ({CURE})"
        raise ConfigError(
            f"update: 'in_backward' is not allowed with {type(optimizer).__name__}, which has a hook before its step "
            f"or {shared if shares_eps(optimizer) else unknown}; give update='in_step'"
        )


def check_norms(settings: Settings) -> None:
    """Raise ConfigError unless gradients can be clipped to the norms that `settings` ask for."""
    for field, largest in (("max_grad_norm", math.inf), ("max_local_grad_norm", sys.float_info.max)):
        value = getattr(settings, field)
        if value is not None and not (is_number(value) and 0 < value <= largest):
            raise ConfigError(f"{field}: {value!r} is not allowed; give a number greater than 0, or None")
    local = settings.max_local_grad_norm
    if local is not None and settings.streamed:
        raise ConfigError(
            f"max_local_grad_norm: {local} is not allowed with gradients='streamed', which are sent "
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


def check_skips(settings: Settings, compressor: Compressor) -> None:
    """Raise ConfigError if a step that is skipped for overflow could not be undone with `compressor` and `settings`."""
    if compressor.momentum is not None and settings.streamed and settings.grad_scaler is not None:
        raise ConfigError(
            f"grad_scaler: it is not allowed with {type(compressor).__name__} and gradients='streamed': velocities of "
            "a step that is skipped have gone on by then; give gradients='kept', or bfloat16, which needs no scaling"
        )

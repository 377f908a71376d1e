"""What is refused before anything is changed: settings, ways to merge, models and optimizers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from resireduce.compressors.base import Agreeing, Compressor
from resireduce.core.bucket import overlaps
from resireduce.core.update import has_hooks, separable
from resireduce.errors import ConfigError, check, choose, is_count, is_number
from resireduce.grad_scaler import GradScaler
from resireduce.scheme import GRADIENTS, HIERARCHIES, MERGES, TIMED_MERGES, UPDATES
from resireduce.settings import Settings
from resireduce.watchers import DISTRIBUTED


def check_settings(settings: Settings, compressor: Compressor, model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ConfigError for `settings` that cannot be used with one another, `compressor`, `model` or `optimizer`."""
    choose("gradients", settings.gradients, GRADIENTS)
    if not isinstance(settings.hierarchy, list | tuple):
        choose("hierarchy", settings.hierarchy, HIERARCHIES)
    for field in ("max_grad_norm", "max_local_grad_norm"):
        value = getattr(settings, field)
        check(field, value, value is None or (is_number(value) and value > 0), "a number greater than 0, or None")
    if settings.max_local_grad_norm is not None and settings.streamed:
        raise ConfigError(
            f"max_local_grad_norm: {settings.max_local_grad_norm} is not allowed with gradients='streamed', which are "
            "sent before the norm of all is known; give max_grad_norm, which clips the averages, or gradients='kept'"
        )
    scaler = settings.grad_scaler
    check("grad_scaler", scaler, scaler is None or isinstance(scaler, GradScaler), "a resireduce.GradScaler")
    half = next((name for name, p in model.named_parameters() if p.dtype == torch.float16), None)
    if scaler is not None and half is not None:
        raise ConfigError(
            f"grad_scaler: it is not allowed with parameters in float16 ({half!r}), whose gradients are lost when they "
            "are unscaled; keep parameters in float32 and use torch.autocast"
        )
    check_momentum(compressor, optimizer)
    if compressor.momentum is not None and settings.streamed and scaler is not None:
        raise ConfigError(
            f"grad_scaler: it is not allowed with {type(compressor).__name__} and gradients='streamed': velocities of "
            "a step that is skipped have gone on by then; give gradients='kept', or bfloat16, which needs no scaling"
        )


def check_momentum(compressor: Compressor, optimizer: Optimizer) -> None:
    """Raise ConfigError if `compressor` corrects momentum, and `optimizer` has its own now: it would count twice."""
    own = next((key for group in optimizer.param_groups for key in ("momentum", "betas") if group.get(key)), None)
    if compressor.momentum is not None and own is not None:
        raise ConfigError(
            f"compressor: {type(compressor).__name__} corrects momentum and is not allowed with the {own} of "
            f"{type(optimizer).__name__}; give SGD with momentum=0, resireduce.optim.DGCSGD, or compressor='dgc', "
            "which leaves momentum to it; load no state that has momentum, and give schedulers cycle_momentum=False"
        )


def check_update(
    settings: Settings, compressor: Compressor, optimizer: Optimizer, model: nn.Module, trained: Mapping[str, Tensor]
) -> None:
    """Raise ConfigError if `trained` parameters are to change during the backward pass and would train wrongly."""
    if choose("update", settings.update, UPDATES) == "in_step":
        return
    right = {"compressor": "none", "gradients": "streamed", "max_grad_norm": None, "grad_scaler": None}
    for field, allowed in (right | {"backward_passes_per_step": 1, "hierarchy": "flat"}).items():
        given = getattr(settings, field)
        if field == "compressor":
            given = "none" if compressor.lossless else given if isinstance(given, str) else type(compressor).__name__
        if given != allowed:
            raise ConfigError(
                f"update: 'in_backward' is not allowed with {field}={given!r}, only with {allowed!r}: "
                "parameters change before all gradients are known; give update='in_step'"
            )
    if has_hooks(optimizer) or not separable(optimizer)():
        raise ConfigError(
            f"update: 'in_backward' is not allowed with {type(optimizer).__name__}, which has a hook before its step "
            "or is not known to update each parameter by itself (a class says so by step_is_separable = True); give "
            "update='in_step'"
        )
    every = dict(model.named_parameters()) | dict(model.named_buffers())  # one that is frozen changes, too
    tied = next((pair for pair in overlaps(every.items()) if not trained.keys().isdisjoint(pair)), None)
    if tied is not None:
        raise ConfigError(
            f"update: 'in_backward' is not allowed with {tied[0]!r} and {tied[1]!r}, which lie in the same memory: an "
            "update of one would change the other before all of its uses; assign the parameter itself (layer.weight = "
            "other.weight) and not its .data, before the optimizer is made, or give update='in_step'"
        )


def check_merge(merge: Any, compressor: Compressor, parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a `merge` that cannot be used with `parameters`, given by name, or with `compressor`."""
    if merge is None:
        return
    if isinstance(merge, str):
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        are_lists = all(isinstance(names, list | tuple) and names for names in merge)
        check("merge", merge, are_lists, "a list of names of parameters for each message")
        for number, name in enumerate(named := [name for names in merge for name in names]):
            if choose("merge", name, parameters) in named[:number]:
                raise ConfigError(f"merge: {name!r} is in several messages, or twice in one; name each parameter once")
    else:
        wanted = "a name, as 'one' or 'mg-wfbp', a number of bytes, or lists of names of parameters"
        check("merge", merge, is_count(merge) and merge >= 1, wanted)
    if (merge != "none" and not compressor.merges) or (isinstance(compressor, Agreeing) and merge in TIMED_MERGES):
        raise ConfigError(
            f"merge: {merge!r} is not allowed with {type(compressor).__name__}, whose payloads ranks make together, in "
            "rounds of one tensor each, or in exchanges that no rule by time knows; leave merge out, or choose another "
            "compressor"
        )


def check_types(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ConfigError unless `model` and `optimizer` are torch's, and nothing else averages the gradients."""
    for field, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(value, kind):
            name = getattr(value, "__name__", type(value).__name__)
            raise ConfigError(f"{field}: {name} is not allowed; give an object of torch's {kind.__name__}")
    if hasattr(optimizer, "_allreduce_grad_async"):  # Horovod's, of either kind
        raise ConfigError(
            "optimizer: horovod.torch.DistributedOptimizer is not allowed, since it averages gradients too, while the "
            "backward pass goes on; leave it out, and give the optimizer that it was made of"
        )
    is_wrapped = any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules())
    if is_wrapped or any(hasattr(one, "placements") for one in model.parameters()):
        raise ConfigError(
            "model: it is sharded (FSDP or DTensor), and gradients of shards are reduced by that; give a model whose "
            "parameters are whole on every rank, or use resireduce.compress_fsdp(...)"
        )


def optimized(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters that `optimizer` trains, in the order of `model`. ConfigError if it has others or none."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters = {name: p for name, p in model.named_parameters() if id(p) in held}
    if len(parameters) < len(held):
        raise ConfigError(
            "optimizer: it holds parameters that are not the model's; give distribute() the whole model, and make the "
            "optimizer after whatever replaces parameters: a copy, a new head, load_state_dict(assign=True), to_empty()"
        )
    twice = next((name for name, p in parameters.items() if p in DISTRIBUTED), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already; use the optimizer of that call, or close() it before"
        )
    if not parameters:
        raise ConfigError(
            "optimizer: it holds no trainable parameter of the model; give it those to train, and set their "
            "requires_grad before distribute()"
        )
    return parameters

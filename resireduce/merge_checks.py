"""Checks of `merge`, which says which tensors travel in one message."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, choose, is_count, warn
from resireduce.scheme import MERGES
from resireduce.settings import Settings, dear_bytes
from resireduce.wrapped_step import WrappedStep, is_separable

CURE = "give a name, as 'one' or 'mg-wfbp', a number of bytes, or lists of names of parameters"


def check_merge(merge: Any, compressor: Compressor, parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a `merge` that cannot be used with `parameters`, given by name, or with `compressor`."""
    if merge is None:
        return
    if isinstance(merge, str) and dear_bytes(merge) is None:
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        _check_lists(merge, parameters)
    elif not isinstance(merge, str) and (not is_count(merge) or merge < 1):
        raise ConfigError(f"merge: {merge!r} is not allowed; {CURE}")
    if merge != "none" and compressor.has_rounds:
        raise ConfigError(
            f"merge: {merge!r} is not allowed with {type(compressor).__name__}, whose payloads ranks make together, in "
            "rounds of one tensor each; leave merge out, or choose another compressor"
        )


DEAR_NEEDS: tuple[tuple[str, object, str], ...] = (
    ("gradients", "kept", "a gradient waits for those of its group"),
    ("grad_scaler", None, "the whole gradient would have to be looked at before anything is sent"),
    ("max_local_grad_norm", None, "the whole gradient would have to be looked at before anything is sent"),
    ("hierarchy", "flat", "a reduce-scatter gives each rank a part of all ranks' sum"),
    ("warm_up_steps", 0, "everything is sent dense in every step"),
)
"""What `merge="dear"` needs of other settings, and why."""


def check_dear(
    settings: Settings,
    compressor: Compressor,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
) -> None:
    """Raise ConfigError if `settings` ask for DeAR where it would train wrongly.

    It needs a lossless `compressor`, a `model` whose modules Python calls, plain `parameters`, given by name, and an
    `optimizer` that updates each parameter by itself.
    """
    if not settings.in_halves:
        return
    where = f"merge: {settings.merge!r} is not allowed with"
    if not compressor.lossless:
        raise ConfigError(
            f"{where} {type(compressor).__name__}, whose payloads cannot be summed in parts; give compressor='none'"
        )
    for field, needed, reason in DEAR_NEEDS:
        if (given := settings.scaler if field == "grad_scaler" else getattr(settings, field)) != needed:
            told = type(given).__name__ if field == "grad_scaler" else repr(given)
            raise ConfigError(f"{where} {field}={told}, since {reason}; give {field}={needed!r}, or leave merge out")
    if settings.overlap is False:
        raise ConfigError(f"{where} overlap=False: it sends during the backward pass; leave overlap out")
    scripted = next(
        (name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)), None
    )
    if scripted is not None:
        raise ConfigError(
            f"{where} the torch.jit.ScriptModule {scripted or 'that the model is'!r}, of which nobody could tell when "
            "it uses a parameter; give the module that it was made of, or leave merge out"
        )
    _check_late_update(where, optimizer, parameters)


def warn_of_unmerged(merge: Any, messages: Iterable[Iterable[str]], compressed: Container[str]) -> None:
    """Warn if `merge` lists a tensor that is sent dense, whose message the lists do not change.

    messages: which tensors travel together; compressed: names of the tensors that lists merge.
    """
    made = [{*names} for names in messages]
    apart = [names for names in merge if {*names} not in made] if isinstance(merge, list | tuple) else []
    dense = next((name for names in apart for name in names if name not in compressed), None)
    if dense is not None:
        warn(
            f"merge: {dense!r} is sent without compression, in a message of its own or with other small tensors, which "
            "lists do not change: leave it out of them, or give merge='hybrid', which makes one message of all such"
        )


def _check_late_update(where: str, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `optimizer` can update `parameters` when they are used, a few at a time."""
    own = f"{type(optimizer).__module__}.".startswith("torch.optim.")
    if not (own and is_separable(optimizer)) or WrappedStep(optimizer, streamed=False).has_hooks_before:
        raise ConfigError(
            f"{where} {type(optimizer).__name__}, which has a hook before its step, or is none of torch.optim's that "
            "update each parameter by itself (all but LBFGS, SparseAdam, and Adafactor where it takes one eps for "
            "parameters of several dtypes); leave merge out"
        )
    strange = next((name for name, parameter in parameters.items() if type(parameter) is not nn.Parameter), None)
    if strange is not None:
        raise ConfigError(
            f"{where} {strange!r}, a {type(parameters[strange]).__name__} and no plain nn.Parameter, of which nobody "
            "could tell when it is used; leave merge out"
        )


def _check_lists(lists: Sequence[Any], parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `lists` name trained parameters once each, those of a message all of one kind."""
    if not all(isinstance(names, list | tuple) and names for names in lists):
        raise ConfigError(f"merge: {lists!r} is not allowed; give a list of names of parameters for each message")
    seen: set[object] = set()
    for name in (name for names in lists for name in names):
        choose("merge", name, parameters)
        if name in seen:
            raise ConfigError(f"merge: {name!r} is in several messages, or twice in one; name each parameter once")
        seen.add(name)
    for names in lists:
        kinds = {(parameters[name].dtype, parameters[name].device): name for name in names}
        if len(kinds) > 1:
            first, second, *_ = kinds.values()
            raise ConfigError(
                f"merge: {first!r} and {second!r} have different dtypes, or are on different devices, and cannot be in "
                "one message; put them into two"
            )

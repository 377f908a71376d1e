"""The agreement of ranks: all must have the same settings, model and optimizer, or an error is raised on all."""

import pickle
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError

STEP = "number of the step, as load_residual_state_dict() or start_at() has set it"
"""A field for `agree`: random choices that ranks share follow from it."""


def check_agreement(
    settings: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    communicator: Communicator,
    beside: Communicator | None = None,
) -> None:
    """Raise ConfigError on all ranks of `communicator` if any has other `settings`, or trains other `tensors`, than
    rank 0.

    beside: another communicator, on whose ranks the error is raised too.
    """
    if communicator.world_size == 1:
        return
    mine = {f"parameter {name}": _kind(tensor) for name, tensor in tensors.items()}
    agree(mine | {key: as_text(value) for key, value in settings.items()}, communicator, beside=beside)


def check_optimizer_agreement(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if optimizers, torch's options of them, or tensors or their order differ.

    Values of tensors may differ: `broadcast_start` overwrites them with rank 0's. Options may differ if this rank's
    optimizer has no state and rank 0's has one: then a checkpoint was loaded there, and not here. What torch's
    optimizers do not have, as the number of a rank, may differ too. Raises it also if a rank holds state of other
    parameters than rank 0, unless the optimizer says `state_differs_by_rank = True`.
    """
    if communicator.world_size == 1:
        return
    mine = {"class of the optimizer": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    options = {}
    for number, group in enumerate(optimizer.param_groups):
        for option in sorted(group.keys() & torchs_options()):
            options[f"option {option} of parameter group {number}"] = as_text(group[option])
        held = [names.get(id(parameter), "no parameter of the model") for parameter in group["params"]]
        mine[f"parameters of group {number}"] = ", ".join(held)
    mine["the optimizer's state_differs_by_rank"] = str(state_differs_by_rank(optimizer))
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for place, (name, tensor) in enumerate(tensors):
            mine[f"{kind} number {place}"] = f"{name} {_kind(tensor)}"
    is_shared = not state_differs_by_rank(optimizer)
    was_loaded = broadcast_object(bool(optimizer.state), communicator) and not optimizer.state and is_shared
    agree(mine | options, communicator, options if was_loaded else ())
    if is_shared:
        _check_state([names.get(id(one), "") for one in optimizer.state if isinstance(one, Tensor)], communicator)


def _check_state(held: Sequence[str], communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if one holds state of other parameters, named `held`, than rank 0; it may hold
    none, as where a checkpoint was loaded on rank 0 alone."""
    theirs = broadcast_object(list(held), communicator)
    different = set(held) ^ set(theirs) if held else set()
    count = torch.tensor([len(different)], device=communicator.control_device)
    communicator.all_reduce(count, "resireduce.start.state").wait()
    if int(count):
        here = f"only one of ranks 0 and {communicator.rank} has it of {min(different)!r}" if different else "not here"
        raise ConfigError(
            f"optimizer: ranks hold the state of different parameters ({here}), and all are given that of rank 0: "
            "load the same checkpoint on all ranks, or on rank 0 alone; or, if each rank is to hold the state of other "
            "parameters, set optimizer.state_differs_by_rank = True, so that each keeps its own"
        )


def state_differs_by_rank(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` says that each rank holds the state of other parameters, which must stay where it is."""
    return bool(getattr(optimizer, "state_differs_by_rank", False))


@cache
def torchs_options() -> frozenset[str]:
    """Return the names of the options of torch's own optimizers, and of what its schedulers add."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer]
    names = {name for kind in kinds for name in signature(kind).parameters} - {"params"}
    return frozenset(names | {"initial_lr", "min_lr", "max_lr", "swa_lr", "base_momentum", "max_momentum"})


def is_value(one: object) -> bool:
    """Whether `one` is a value, or made of values and tensors: other objects, as locks or process groups, refer to
    something of this process."""
    if isinstance(one, dict):
        return all(is_value(key) and is_value(value) for key, value in one.items())
    if isinstance(one, list | tuple | set | frozenset | deque):
        return all(map(is_value, one))
    return one is None or isinstance(one, Number | str | bytes | Tensor | torch.dtype)


def agree(
    mine: Mapping[str, str],
    communicator: Communicator,
    except_for: Iterable[str] = (),
    beside: Communicator | None = None,
) -> None:
    """Raise ConfigError on all ranks if any value that one has in `mine`, by field, differs from rank 0's.

    beside: another communicator of ranks that this one trains with, on which the error is raised too.
    """
    first = broadcast_object(dict(mine), communicator)
    different = [key for key in first | mine if mine.get(key) != first.get(key) and key not in except_for]
    count = torch.tensor([len(different)], device=communicator.control_device)
    for ranks in (communicator,) if beside is None else (communicator, beside):
        ranks.all_reduce(count, "resireduce.start.agreement").wait()
    if different:
        key = different[0]
        raise ConfigError(
            f"{key}: {mine.get(key)} on rank {communicator.rank}, {first.get(key)} on rank 0; give all ranks the same"
        )
    if int(count):
        raise ConfigError("settings or model differ between ranks: another rank says which; give all ranks the same")


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def as_text(value: object) -> str:
    """Return `value` as text that is equal in every process, without the address that a `repr` may contain."""
    if isinstance(value, Tensor):
        return f"{value.tolist()}" if value.numel() <= 16 else _kind(value)
    text = repr(value)
    return f"a {getattr(value, '__qualname__', type(value).__qualname__)}" if " at 0x" in text else text


def broadcast_object(value: Any, communicator: Communicator) -> Any:
    """Return rank 0's `value`, sent over `communicator` as a pickle: a rank trusts the others of its job."""
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(communicator.control_device)
    size = torch.tensor([data.numel()], device=communicator.control_device)
    communicator.broadcast_(size, "resireduce.start.size")
    if communicator.rank != 0:
        data = torch.empty(int(size), dtype=torch.uint8, device=communicator.control_device)
    communicator.broadcast_(data, "resireduce.start.layout")
    return value if communicator.rank == 0 else pickle.loads(data.cpu().numpy().tobytes())

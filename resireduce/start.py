"""What ranks agree on at the start, and what they are given by rank 0."""

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from resireduce.pieces import is_host

# --- The agreement of ranks: all must have the same settings, model and optimizer, or an error is raised on all ---


STEP = "number of the step, as load_residual_state_dict() or start_at() has set it"
"""A field for `agree`: random choices that ranks share follow from it."""
VALUES = (Number, str, bytes, set, frozenset, Tensor, torch.dtype, type(None))
"""What an optimizer's options and states may hold, also in dicts, lists and tuples, to be sent to other ranks."""


def check_agreement(
    settings: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    communicator: Communicator,
    beside: Communicator | None = None,
) -> None:
    """Raise ConfigError on all ranks, also those `beside`, if any has other `settings`, or trains other `tensors`, than
    rank 0."""
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
    module = type(optimizer).__module__.replace("__mp_main__", "__main__")  # the script, where multiprocessing runs it
    mine = {"class of the optimizer": f"{module}.{type(optimizer).__qualname__}"}
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
    return all(isinstance(leaf, VALUES) for leaf in private.tree_leaves(one))


def agree(
    mine: Mapping[str, str],
    communicator: Communicator,
    except_for: Iterable[str] = (),
    beside: Communicator | None = None,
) -> None:
    """Raise ConfigError on all ranks, also those `beside`, if any value that one has in `mine`, by field, differs from
    rank 0's."""
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
    """Return rank 0's `value`, sent over `communicator` as by torch.save: a rank trusts the others of its job."""
    file, is_first = io.BytesIO(), communicator.rank == 0
    if is_first:
        torch.save(value, file)
    size = torch.tensor([file.tell()], device=communicator.control_device)
    communicator.broadcast_(size, "resireduce.start.size")
    memory = file.getbuffer() if is_first else bytearray(int(size))
    data = torch.frombuffer(memory, dtype=torch.uint8).to(communicator.control_device)
    communicator.broadcast_(data, "resireduce.start.object")
    return value if is_first else torch.load(io.BytesIO(data.cpu().numpy().data), weights_only=False)


# --- What all ranks start from: rank 0's parameters, buffers and optimizer state ---


@torch.no_grad()
def broadcast_start(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite model and optimizer state with rank 0's, which may hold more (a loaded checkpoint)."""
    if communicator.world_size == 1:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _overwrite(tensor, f"resireduce.start.{name}", communicator)
    if not state_differs_by_rank(optimizer):
        _broadcast_optimizer(optimizer, communicator)


def _overwrite(tensor: Tensor, name: str, communicator: Communicator) -> None:
    """Overwrite `tensor` with rank 0's, as bytes of whatever dtype; if it wraps others, each of these."""
    if private.is_wrapper(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            _overwrite(getattr(tensor, inner), f"{name}.{inner}", communicator)
    elif tensor.layout != torch.strided or tensor.is_quantized:
        tensor.copy_(broadcast_object(tensor.cpu(), communicator).to(tensor.device))
    elif tensor.numel():
        own = tensor.detach()[tuple(slice(None) if stride else 0 for stride in tensor.stride())]  # each element once
        near = (own.to(communicator.control_device) if own.is_cpu else own).contiguous()
        communicator.broadcast_(near.view(-1).view(torch.uint8), name)
        if near is not own:
            own.copy_(near)


def _broadcast_optimizer(optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite the state, one parameter after the other, with rank 0's, and options where that alone has a state, as
    from a checkpoint."""
    groups, state = optimizer.param_groups, optimizer.state
    parameters = [parameter for group in groups for parameter in group["params"]]
    held = [number for number, parameter in enumerate(parameters) if parameter in state]
    held, others = broadcast_object((held, [key for key in state if not isinstance(key, Tensor)]), communicator)
    takes_options = (held or others) and not state
    for group in groups:
        options = {key: one for key, one in group.items() if key != "params"}
        theirs = _sent(options, torch.device("cpu"), communicator)
        if takes_options:
            group.update(_merged(options, theirs))
    for key in [*(parameters[number] for number in held), *others]:
        mine, device = state.get(key), (key if isinstance(key, Tensor) else parameters[0]).device
        theirs = _sent(mine, device, communicator)
        if communicator.rank != 0:
            state[key] = _merged(mine, theirs)


def _sent(mine: Any, device: torch.device, communicator: Communicator) -> Any:
    """Return rank 0's `mine`, of a dict only what is a value; tensors are on `device`, or on the host as there."""
    mine = mine if communicator.rank == 0 else None
    mine = {key: one for key, one in mine.items() if is_value(one)} if isinstance(mine, dict) else mine
    copies = private.tree_map(_on_host, mine)  # of a view the whole storage would be sent
    is_away = private.tree_map(lambda one: isinstance(one, Tensor) and not is_host(one), mine)
    copies, is_away = broadcast_object((copies, is_away), communicator)
    return private.tree_map(lambda one, away: one.to(device) if away else one, copies, is_away)


def _on_host(one: Any) -> Any:
    return one.detach().cpu().clone() if isinstance(one, Tensor) and not one.is_meta else one


def _merged(mine: Any, theirs: Any) -> Any:
    """Return `theirs`, in the memory of tensors of `mine` that are alike, beside what is no value in `mine`."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        own = {key: one for key, one in mine.items() if not is_value(one)}
        return own | {key: _merged(mine.get(key), one) for key, one in theirs.items()}
    are_tensors = isinstance(mine, Tensor) and isinstance(theirs, Tensor)
    return mine.copy_(theirs) if are_tensors and _kind(mine) == _kind(theirs) else theirs

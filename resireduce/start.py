"""What ranks agree on at the start, and what they are given by rank 0."""

import io
from collections.abc import Iterable, Mapping
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


HELD = (
    "optimizer: ranks hold the state of different parameters, and all are given that of rank 0 (load the same "
    "checkpoint on all ranks, or on rank 0 alone; or, if each rank is to hold the state of other parameters, set "
    "optimizer.state_differs_by_rank = True, so that each keeps its own); that of "
)
"""Begins a field for each parameter whose state is held."""
STAYS = "state_differs_by_rank"
"""The attribute by which an optimizer says that each rank holds the state of other parameters."""


def agree(table: Mapping[str, object], communicator: Communicator, beside: Communicator | None = None) -> None:
    """Raise ConfigError on all ranks, also those `beside`, if a value of any in `table`, by field, is not rank 0's."""
    mine = {field: as_text(value) for field, value in table.items()}
    first = broadcast_object(mine, communicator)
    different = [field for field in first | mine if mine.get(field) != first.get(field)]
    count = torch.tensor([len(different)], device=communicator.control_device)
    for ranks in (communicator,) if beside is None else (communicator, beside):
        ranks.all_reduce(count, "resireduce.start.agreement").wait()
    if different:
        here, there = (texts.get(different[0]) for texts in (mine, first))
        raise ConfigError(
            f"{different[0]}: {here} on rank {communicator.rank}, {there} on rank 0; give all ranks the same"
        )
    if int(count):
        raise ConfigError("settings or model differ between ranks: another rank says which; give all ranks the same")


def as_text(value: object) -> str:
    """Return `value` as text that is equal in every process, without addresses and devices that a `repr` may hold."""
    text = str(private.tree_map(lambda one: one.tolist() if isinstance(one, Tensor) else one, value))
    return f"a {getattr(value, '__qualname__', type(value).__qualname__)}" if " at 0x" in text else text


def kinds(tensors: Iterable[tuple[str, Tensor]], of: str = "parameter") -> dict[str, str]:
    """Return a table for `agree`: what each of the named `tensors` is, in their order."""
    texts = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    return {f"{of} number {number}": text for number, text in enumerate(texts)}


def check_optimizer_agreement(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if models or optimizers differ: in their tensors or the order of these, in torch's
    options, or in which parameters they hold the state of.

    Values of tensors may differ, and so may options and states where only rank 0 has a state, from a checkpoint; what
    torch's optimizers do not have, as the number of a rank; and states where the optimizer says so (STAYS).
    """
    module = type(optimizer).__module__.replace("__mp_main__", "__main__")  # the script, where multiprocessing runs it
    table: dict[str, object] = {"class of the optimizer": f"{module}.{type(optimizer).__qualname__}"}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    loaded: dict[str, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        for option in sorted(group.keys() & torchs_options()):
            loaded[f"option {option} of parameter group {number}"] = as_text(group[option])
        held = [names.get(id(parameter), "no parameter of the model") for parameter in group["params"]]
        table[f"parameters of group {number}"] = ", ".join(held)
    table["the optimizer's state_differs_by_rank"] = differs = getattr(optimizer, STAYS, False)
    for key in () if differs else optimizer.state:
        name = names.get(id(key), "no parameter of the model") if isinstance(key, Tensor) else as_text(key)
        loaded[HELD + name] = "there"
    theirs = broadcast_object(loaded if optimizer.state and not differs else None, communicator)
    if theirs is not None and not optimizer.state:
        loaded = theirs
    table |= kinds(model.named_parameters()) | kinds(model.named_buffers(), "buffer")
    agree(table | loaded, communicator)


@cache
def torchs_options() -> frozenset[str]:
    """Return the names of the options of torch's own optimizers, and of what its schedulers add."""
    classes = [one for one in vars(torch.optim).values() if isinstance(one, type)]
    optimizers = [one for one in classes if issubclass(one, torch.optim.Optimizer)]
    names = {name for one in optimizers for name in signature(one).parameters} - {"params", "defaults"}
    return frozenset(names | {"initial_lr", "min_lr", "max_lr", "swa_lr", "base_momentum", "max_momentum"})


def is_value(one: object) -> bool:
    """Whether `one` is a value, or made of values; other objects, as locks, refer to something of this process."""
    values = (Number, str, bytes, Tensor, torch.dtype, type(None))
    leaves = private.tree_leaves(one)
    return all(is_value([*leaf]) if isinstance(leaf, set | frozenset) else isinstance(leaf, values) for leaf in leaves)


def broadcast_object(value: Any, communicator: Communicator) -> Any:
    """Return rank 0's `value`, sent over `communicator` as by torch.save: a rank trusts the others of its job."""
    if communicator.world_size == 1:
        return value
    file = io.BytesIO()
    if communicator.rank == 0:
        torch.save(value, file)
    size = torch.tensor([file.tell()], device=communicator.control_device)
    communicator.broadcast_(size, "resireduce.start.size")
    file = file if communicator.rank == 0 else io.BytesIO(bytes(int(size)))
    memory = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    memory.copy_(communicator.broadcast_(memory.to(communicator.control_device), "resireduce.start.object"))
    return value if communicator.rank == 0 else torch.load(file, weights_only=False)


# --- What all ranks start from: rank 0's parameters, buffers and optimizer state ---


@torch.no_grad()
def broadcast_start(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite model and optimizer state with rank 0's, which may hold more (a loaded checkpoint)."""
    if communicator.world_size == 1:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _overwrite(tensor, f"resireduce.start.{name}", communicator)
    if not getattr(optimizer, STAYS, False):
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
    """Overwrite the state, one parameter after the other, with rank 0's, and options where that alone has a state."""
    groups, state = optimizer.param_groups, optimizer.state
    parameters = [parameter for group in groups for parameter in group["params"]]
    sent = {key for key, one in state.items() if isinstance(one, dict) or is_value(one)}  # the rest stays where it is
    held = [number for number, parameter in enumerate(parameters) if parameter in sent]
    others = [key for key in state if key in sent and not isinstance(key, Tensor) and is_value(key)]
    held, others = broadcast_object((held, others), communicator)
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
    copies = private.tree_map(  # of a view the whole storage would be sent
        lambda one: one.detach().cpu().clone() if isinstance(one, Tensor) and not one.is_meta else one, mine
    )
    is_away = private.tree_map(lambda one: isinstance(one, Tensor) and not is_host(one), mine)
    copies, is_away = broadcast_object((copies, is_away), communicator)
    return private.tree_map(lambda one, away: one.to(device) if away else one, copies, is_away)


def _merged(mine: Any, theirs: Any) -> Any:
    """Return `theirs`, in the memory of tensors of `mine` that are alike, beside what is no value in `mine`."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        own = {key: one for key, one in mine.items() if not is_value(one)}
        return own | {key: _merged(mine.get(key), one) for key, one in theirs.items()}
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and 0 not in mine.stride():  # else elements share memory
        return mine.copy_(theirs) if (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype) else theirs
    return theirs

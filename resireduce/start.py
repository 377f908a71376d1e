"""What ranks agree on at the start, and what they are given by rank 0."""

import pickle
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from numbers import Number
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError

# --- The agreement of ranks: all must have the same settings, model and optimizer, or an error is raised on all ---


STEP = "number of the step, as load_residual_state_dict() or start_at() has set it"
"""A field for `agree`: random choices that ranks share follow from it."""


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
    """Return rank 0's `value`, sent over `communicator` as a pickle: a rank trusts the others of its job."""
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(communicator.control_device)
    size = torch.tensor([data.numel()], device=communicator.control_device)
    communicator.broadcast_(size, "resireduce.start.size")
    if communicator.rank != 0:
        data = torch.empty(int(size), dtype=torch.uint8, device=communicator.control_device)
    communicator.broadcast_(data, "resireduce.start.layout")
    return value if communicator.rank == 0 else pickle.loads(data.cpu().numpy().tobytes())


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
    """Overwrite `tensor` with rank 0's, as bytes of whatever dtype, through a contiguous copy on a device that the
    communicator can reach if needed. A tensor that wraps others is overwritten one inner tensor after the other."""
    if private.is_wrapper(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            _overwrite(getattr(tensor, inner), f"{name}.{inner}", communicator)
        return
    if tensor.layout != torch.strided or tensor.is_quantized:
        theirs = broadcast_object(tensor.cpu(), communicator)
        tensor.copy_(theirs.to(tensor.device))
        return
    tensor = tensor.detach()
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:  # expanded: the same element, seen several times
            tensor = tensor.narrow(dim, 0, 1)
    reachable = tensor.to(communicator.control_device) if tensor.device.type == "cpu" else tensor
    if not reachable.is_contiguous() or 0 in reachable.stride():  # with one element, a stride of 0 counts as contiguous
        reachable = torch.empty(reachable.shape, dtype=reachable.dtype, device=reachable.device).copy_(reachable)
    if reachable.numel():
        communicator.broadcast_(reachable.view(-1).view(torch.uint8), name)
    if reachable.data_ptr() != tensor.data_ptr():
        tensor.copy_(reachable)


def _broadcast_optimizer(optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite the state, one parameter after the other, with rank 0's, and options where that alone has a state, as
    from a checkpoint.

    Only values and tensors are sent; other objects stay as they are.
    """
    groups, held = optimizer.param_groups, optimizer.state
    options = [
        {key: one.detach().cpu() if isinstance(one, Tensor) else one for key, one in group.items() if is_value(one)}
        for group in ({key: one for key, one in group.items() if key != "params"} for group in groups)
    ]
    beside = {key: one for key, one in held.items() if not isinstance(key, Tensor) and is_value([key, one])}
    parameters = [parameter for group in groups for parameter in group["params"]]
    is_there, options, beside = broadcast_object((bool(held), options, beside), communicator)
    for group, values in zip(groups, options, strict=True) if is_there and not held else ():
        for key, value in values.items():
            if isinstance(group.get(key), Tensor) and isinstance(value, Tensor):
                group[key].copy_(value)
            else:
                group[key] = value
    for parameter in parameters:
        mine = held.get(parameter, {})
        mine = mine if isinstance(mine, Mapping) else {None: mine}
        values = {key: one for key, one in mine.items() if is_value(one)}
        theirs = _sent(values, parameter.device, communicator) if is_there else {}
        if found := {key: one for key, one in mine.items() if key not in values} | theirs:
            held[parameter] = found.get(None, found)
        else:
            held.pop(parameter, None)
    for key in [key for key, one in held.items() if not isinstance(key, Tensor) and is_value([key, one])]:
        del held[key]
    held.update(beside)


def _sent(values: dict[Any, Any], device: torch.device, communicator: Communicator) -> dict[Any, Any]:
    """Return rank 0's `values`: plain tensors in the memory of those here that are like them, or in new memory on
    `device` or the host's, as there; the rest comes as objects."""
    plain = {key: _layout(one) for key, one in values.items() if _is_plain(one)}
    rest = {key: one for key, one in values.items() if key not in plain}
    moved = [key for key, one in rest.items() if isinstance(one, Tensor) and not one.is_cpu and not one.is_meta]
    cloned = private.tree_map(_on_host, rest)  # else the whole storage of a view would be sent
    order, plain, cloned, moved = broadcast_object(([*values], plain, cloned, moved), communicator)
    for key, layout in plain.items():
        held = values.get(key)
        if not _is_plain(held) or _layout(held) != layout:
            shape, stride, dtype, is_cpu = layout
            values[key] = torch.empty_strided(shape, stride, dtype=dtype, device="cpu" if is_cpu else device)
        _overwrite(values[key], f"resireduce.start.state.{key}", communicator)
    if communicator.rank != 0:
        values |= {key: one.to(device) if key in moved else one for key, one in cloned.items()}
    return {key: values[key] for key in order}


def _is_plain(one: object) -> TypeGuard[Tensor]:
    """Whether `one` is a tensor that is overwritten as bytes, whatever it holds."""
    is_strided = isinstance(one, Tensor) and one.layout == torch.strided and not (one.is_quantized or one.is_meta)
    return is_strided and not private.is_wrapper(one)


def _layout(one: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype, bool]:
    return one.shape, one.stride(), one.dtype, one.is_cpu


def _on_host(one: Any) -> Any:
    return one.detach().cpu().clone() if isinstance(one, Tensor) and not one.is_meta else one

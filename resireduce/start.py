"""What all ranks start from: rank 0's parameters, buffers and optimizer state."""

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError


def check_agreement(settings: Mapping[str, object], tensors: Mapping[str, Tensor], communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if any was given other settings, or other tensors to train, than rank 0."""
    if communicator.world_size == 1:
        return
    mine = {f"parameter {name}": _kind(tensor) for name, tensor in tensors.items()}
    agree(mine | {key: tell(value) for key, value in settings.items()}, communicator)


def check_optimizer_agreement(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if any has another optimizer, other options, other or otherwise ordered tensors.

    Values of tensors may differ: `broadcast_start` overwrites them with rank 0's. So may options of a rank whose
    optimizer has no state where rank 0's has one: there a checkpoint was loaded, and not here.
    """
    if communicator.world_size == 1:
        return
    mine = {"class of the optimizer": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    options = {}
    for number, group in enumerate(optimizer.param_groups):
        for option in sorted(group.keys() - {"params"}):
            options[f"option {option} of parameter group {number}"] = tell(group[option])
        held = [names.get(id(parameter), "no parameter of the model") for parameter in group["params"]]
        mine[f"parameters of group {number}"] = ", ".join(held)
    for name, value in vars(optimizer).items():
        if not name.startswith("_") and isinstance(value, int | float | str | bool):
            mine[f"the optimizer's {name}"] = repr(value)
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for place, (name, tensor) in enumerate(tensors):
            mine[f"{kind} number {place}"] = f"{name} {_kind(tensor)}"
    was_loaded = _broadcast_object(bool(optimizer.state), communicator) and not optimizer.state
    agree(mine | options, communicator, options if was_loaded else ())


def agree(mine: Mapping[str, str], communicator: Communicator, except_for: Iterable[str] = ()) -> None:
    """Raise ConfigError on all ranks if anything that one has in `mine`, by field, is not what rank 0 has there."""
    first = _broadcast_object(dict(mine), communicator)
    different = [key for key in first | mine if mine.get(key) != first.get(key) and key not in except_for]
    count = torch.tensor([len(different)], device=communicator.control_device)
    communicator.all_reduce(count, "resireduce.start.agreement").wait()
    if different:
        key = different[0]
        raise ConfigError(
            f"{key}: {mine.get(key)} on rank {communicator.rank}, {first.get(key)} on rank 0; give all ranks the same"
        )
    if int(count):
        raise ConfigError("settings or model differ between ranks: another rank says which; give all ranks the same")


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def tell(value: object) -> str:
    """`value` in words that are the same in every process: without the address that an object's `repr` may have."""
    if isinstance(value, Tensor):
        return f"{value.tolist()}" if value.numel() <= 16 else _kind(value)
    text = repr(value)
    return f"a {getattr(value, '__qualname__', type(value).__qualname__)}" if " at 0x" in text else text


@torch.no_grad()
def broadcast_start(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite everything that this rank would start from with rank 0's, which may hold more (a loaded checkpoint)."""
    if communicator.world_size == 1:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _overwrite(tensor, f"resireduce.start.{name}", communicator)
    _broadcast_optimizer(optimizer, communicator)


def _overwrite(tensor: Tensor, name: str, communicator: Communicator) -> None:
    """As bytes, whatever they stand for, by way of a contiguous copy on a device that the communicator can reach, where
    the tensor is not that itself. Of a tensor made of several, one after the other."""
    if is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            _overwrite(getattr(tensor, inner), f"{name}.{inner}", communicator)
        return
    if tensor.layout != torch.strided or tensor.is_quantized:
        theirs = _broadcast_object(tensor.cpu(), communicator)
        tensor.copy_(theirs.to(tensor.device))
        return
    tensor = tensor.detach()
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:  # expanded: the same element, seen several times
            tensor = tensor.narrow(dim, 0, 1)
    reachable = tensor.to(communicator.control_device) if tensor.device.type == "cpu" else tensor
    reachable = reachable.contiguous()
    if reachable.numel():
        communicator.broadcast_(reachable.view(-1).view(torch.uint8), name)
    if reachable.data_ptr() != tensor.data_ptr():
        tensor.copy_(reachable)


def _broadcast_optimizer(optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Options and state. Rank 0 says first what it has, since ranks may hold different kinds of state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    options, layout = _broadcast_object(_describe(optimizer, parameters), communicator)
    others = {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
    others = _broadcast_object(others, communicator)
    state: dict[Tensor, dict[str, Any]] = {}
    for index, key, value in layout:
        parameter = parameters[index]
        if isinstance(value, _Like):
            tensor = value.matching(optimizer.state[parameter].get(key), parameter.device)
            _overwrite(tensor, f"resireduce.start.state.{index}.{key}", communicator)
            state.setdefault(parameter, {})[key] = tensor
        else:
            state.setdefault(parameter, {})[key] = value
    optimizer.state.clear()
    optimizer.state.update(state)
    optimizer.state.update(others)
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].copy_(value)
            else:
                group[key] = value


class _Like:
    """A tensor's shape, dtype and whether it lies on the CPU, in place of its values."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype, self.on_cpu = tensor.shape, tensor.dtype, tensor.device.type == "cpu"

    def matching(self, held: object, device: torch.device) -> Tensor:
        """`held`, if it is such a tensor, else a new one."""
        if isinstance(held, Tensor) and vars(_Like(held)) == vars(self):
            return held
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.on_cpu else device)


def _describe(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> tuple[list[Any], list[Any]]:
    """The groups' options, and (parameter's index, key, value or what the tensor is like) of the state."""
    options = [
        {key: v.detach().cpu() if isinstance(v, Tensor) else v for key, v in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    options = [{key: v for key, v in group.items() if not callable(v)} for group in options]
    layout = [
        (index, key, _Like(value) if isinstance(value, Tensor) else value)
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
    ]
    return options, layout


def _broadcast_object(value: Any, communicator: Communicator) -> Any:
    """Rank 0's `value`, pickled; a rank trusts the others of its job."""
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(communicator.control_device)
    size = torch.tensor([data.numel()], device=communicator.control_device)
    communicator.broadcast_(size, "resireduce.start.size")
    if communicator.rank != 0:
        data = torch.empty(int(size), dtype=torch.uint8, device=communicator.control_device)
    communicator.broadcast_(data, "resireduce.start.layout")
    return value if communicator.rank == 0 else pickle.loads(data.cpu().numpy().tobytes())

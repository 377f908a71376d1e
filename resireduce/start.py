"""What all ranks start from: rank 0's parameters, buffers and optimizer state."""

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError


def check_agreement(settings: Mapping[str, object], tensors: Mapping[str, Tensor], communicator: Communicator) -> None:
    """Raise ConfigError on all ranks if any was given other settings, or other tensors to train, than rank 0."""
    if communicator.world_size == 1:
        return
    mine = {f"parameter {name}": f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
    mine |= {key: repr(value) for key, value in settings.items()}
    first = _broadcast_object(mine, communicator)
    different = [key for key in first | mine if mine.get(key) != first.get(key)]
    count = torch.tensor([len(different)], device=communicator.control_device)
    communicator.all_reduce(count, "resireduce.start.agreement").wait()
    if different:
        key = different[0]
        raise ConfigError(
            f"{key}: {mine.get(key)} on rank {communicator.rank}, {first.get(key)} on rank 0; give all ranks the same"
        )
    if int(count):
        raise ConfigError("settings or model differ between ranks: another rank says which; give all ranks the same")


@torch.no_grad()
def broadcast_start(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite everything that this rank would start from with rank 0's, which may hold more (a loaded checkpoint)."""
    if communicator.world_size == 1:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _overwrite(tensor, f"resireduce.start.{name}", communicator)
    _broadcast_optimizer(optimizer, communicator)


def _overwrite(tensor: Tensor, name: str, communicator: Communicator) -> None:
    """By way of a contiguous copy on a device that the communicator can reach, where the tensor is not that itself."""
    reachable = tensor.detach()
    if tensor.device.type == "cpu":
        reachable = reachable.to(communicator.control_device)
    reachable = reachable.contiguous()
    communicator.broadcast_(reachable, name)
    if reachable.data_ptr() != tensor.data_ptr():
        tensor.copy_(reachable)


def _broadcast_optimizer(optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Hyperparameters and state. Rank 0 says first what it has, since ranks may hold different kinds of state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    options, layout = _broadcast_object(_describe(optimizer, parameters), communicator)
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
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update(values)


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
    """The groups' hyperparameters, and (parameter's index, key, value or what the tensor is like) of the state."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
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

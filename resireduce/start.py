"""What all ranks start from: rank 0's parameters, buffers and optimizer state."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.agreement import broadcast_object, is_value, state_differs_by_rank
from resireduce.comm.base import Communicator
from resireduce.errors import warn


@torch.no_grad()
def broadcast_start(model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
    """Overwrite model and optimizer state with rank 0's, which may hold more (a loaded checkpoint)."""
    if communicator.world_size == 1:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _overwrite(tensor, f"resireduce.start.{name}", communicator)
    if not state_differs_by_rank(optimizer):
        _broadcast_optimizer(optimizer, communicator)
    _compare_beside(model, communicator)


def _compare_beside(model: nn.Module, communicator: Communicator) -> None:
    """Warn if layers save more than parameters and buffers, as a quantized weight's scales, and it is not rank 0's."""
    mine = _saved_beside(model)
    theirs = broadcast_object(mine, communicator)
    different = [name for name, digest in mine.items() if theirs.get(name) != digest]
    if different:
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        warn(
            f"{different[0]!r}{more}: not as on rank 0, and neither a parameter nor a buffer, so that ranks compute "
            "different things with the same weights: load one model on all ranks, or make it from the same seed"
        )


def _saved_beside(model: nn.Module) -> dict[str, str]:
    """Return digests of the tensors that layers with a `_save_to_state_dict` of their own save beside torch's."""
    found = {}
    for prefix, module in model.named_modules():
        if type(module)._save_to_state_dict is nn.Module._save_to_state_dict:
            continue
        saved: dict[str, Any] = {}
        module._save_to_state_dict(saved, "", keep_vars=True)
        torchs = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        for name, tensor in saved.items():
            if name not in torchs and type(tensor) is Tensor and not (tensor.is_meta or tensor.is_quantized):
                values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
                found[f"{prefix}.{name}".lstrip(".")] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    return found


def _overwrite(tensor: Tensor, name: str, communicator: Communicator) -> None:
    """Overwrite `tensor` with rank 0's, as bytes of whatever dtype, through a contiguous copy on a device that the
    communicator can reach if needed. A tensor that wraps others is overwritten one inner tensor after the other."""
    if is_traceable_wrapper_subclass(tensor):
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
    """Overwrite state and, where rank 0 alone has one, as from a checkpoint, options. Rank 0 first says what it has,
    since ranks may hold different kinds of state. Only values and tensors are sent; other objects stay as they are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    options, layout, others = broadcast_object(_describe(optimizer, parameters), communicator)
    was_loaded = bool(layout) and not optimizer.state
    for group, values in zip(optimizer.param_groups, options, strict=True) if was_loaded else ():
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].copy_(value)
            else:
                group[key] = value
    state: dict[Any, Any] = {}
    for holder, held in optimizer.state.items():
        own = {key: one for key, one in held.items() if not is_value(one)} if isinstance(holder, Tensor) else held
        if own and not is_value([holder, own]):
            state[holder] = own
    for index, key, value in layout:
        parameter = parameters[index]
        if isinstance(value, _Like):
            tensor = value.matching(optimizer.state[parameter].get(key), parameter.device)
            _overwrite(tensor, f"resireduce.start.state.{index}.{key}", communicator)
            state.setdefault(parameter, {})[key] = tensor
        else:
            state.setdefault(parameter, {})[key] = value
    optimizer.state.clear()
    optimizer.state.update(state | others)


class _Like:
    """A tensor's shape, dtype and whether it lies on the CPU, in place of its values."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype, self.on_cpu = tensor.shape, tensor.dtype, tensor.device.type == "cpu"

    def matching(self, held: object, device: torch.device) -> Tensor:
        """Return `held` if it is a tensor like this, otherwise a new one."""
        if isinstance(held, Tensor) and vars(_Like(held)) == vars(self):
            return held
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.on_cpu else device)


def _describe(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]
) -> tuple[list[Any], list[Any], dict[Any, Any]]:
    """Return the groups' options, the state as (parameter's index, key, value or description of a tensor), and the
    state of what is no parameter."""
    options = [
        {key: v.detach().cpu() if isinstance(v, Tensor) else v for key, v in group.items() if is_value(v)}
        for group in ({key: v for key, v in group.items() if key != "params"} for group in optimizer.param_groups)
    ]
    layout = [
        (index, key, _Like(value) if isinstance(value, Tensor) else value)
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
        if is_value(value)
    ]
    others = {key: v for key, v in optimizer.state.items() if not isinstance(key, Tensor) and is_value([key, v])}
    return options, layout, others

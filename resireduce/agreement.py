"""The agreement of ranks: all must have the same settings, model and optimizer, or an error is raised on all."""

import pickle
from collections.abc import Iterable, Mapping
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
    """Raise ConfigError on all ranks if optimizers, their options, or tensors or their order differ between ranks.

    Values of tensors may differ: `broadcast_start` overwrites them with rank 0's. Options may differ if this rank's
    optimizer has no state and rank 0's has one: then a checkpoint was loaded there, and not here.
    """
    if communicator.world_size == 1:
        return
    mine = {"class of the optimizer": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    options = {}
    for number, group in enumerate(optimizer.param_groups):
        for option in sorted(group.keys() - {"params"}):
            options[f"option {option} of parameter group {number}"] = as_text(group[option])
        held = [names.get(id(parameter), "no parameter of the model") for parameter in group["params"]]
        mine[f"parameters of group {number}"] = ", ".join(held)
    for name, value in vars(optimizer).items():
        if not name.startswith("_") and isinstance(value, int | float | str | bool):
            mine[f"the optimizer's {name}"] = repr(value)
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for place, (name, tensor) in enumerate(tensors):
            mine[f"{kind} number {place}"] = f"{name} {_kind(tensor)}"
    was_loaded = broadcast_object(bool(optimizer.state), communicator) and not optimizer.state
    agree(mine | options, communicator, options if was_loaded else ())


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

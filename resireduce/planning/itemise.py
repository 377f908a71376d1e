"""The model states tensor by tensor: what every total of `resireduce.planning.memory` is the sum of."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.error_feedback import ErrorFeedback
from resireduce.planning.item import Item
from resireduce.step.slot import Slot


class Holder(Protocol):
    """What holds the model states of a rank: an optimizer that `resireduce.distribute` made, or a plan of one."""

    @property
    def feedback(self) -> ErrorFeedback:
        """Return what compresses gradients, and holds residuals."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Return a slot for each trained parameter."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups of parameters."""

    @property
    def state(self) -> Mapping[Any, Any]:
        """Return the optimizer's state, by parameter."""


def itemise_states(optimizer: Holder, model: nn.Module | None = None) -> list[Item]:
    """Return every tensor of the model states that this rank holds now, in bytes; one held twice is listed once.

    To be called at a step boundary, after `step()` and before `zero_grad()`. Residuals in the host's memory are not
    among them. Tied parameters have the name that the model gives first. Nothing is copied or computed on the device.

    Args:
        optimizer: made by `resireduce.distribute`, or what stands in for it.
        model: names parameters that the optimizer holds but does not train; without it they are numbered.
    """
    return [item for item, _ in held_items(optimizer, model)]


def held_items(optimizer: Holder, model: nn.Module | None = None) -> list[tuple[Item, Tensor]]:
    """Return what `itemise_states` does for `optimizer` and `model`, each with the tensor itself."""
    found: dict[tuple[str, int], tuple[Item, Tensor]] = {}
    for state, name, part, tensor, members in _held(optimizer, _names(optimizer, model)):
        dtype = str(tensor.dtype).removeprefix("torch.")
        item = Item(state, name, part, tuple(tensor.shape), dtype, held_bytes(tensor), members)
        found.setdefault((state, id(tensor)), (item, tensor))
    return list(found.values())


def held_bytes(tensor: Tensor) -> int:
    """Return the bytes of `tensor`; if it wraps several, like an 8-bit state with codes and scales, of all of them."""
    if not is_traceable_wrapper_subclass(tensor):
        return tensor.nbytes
    return sum(held_bytes(getattr(tensor, inner)) for inner in tensor.__tensor_flatten__()[0])


_Found = tuple[str, str, str, Tensor, tuple[str, ...]]


def _held(optimizer: Holder, names: dict[int, str]) -> Iterator[_Found]:
    """Yield state, name, part, tensor and members of all that is held, one after the other."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        yield "parameters", names[id(parameter)], "", parameter, ()
    for parameter in parameters:
        if parameter.grad is not None:
            yield "gradients", names[id(parameter)], "", parameter.grad, ()
    yield from _residuals(optimizer)
    place = {id(parameter): i for i, parameter in enumerate(parameters)}
    # They appear in the order in which they are first needed.
    for parameter, state in sorted(optimizer.state.items(), key=lambda pair: place.get(id(pair[0]), len(place))):
        for key, value in state.items():
            if isinstance(value, Tensor):
                yield "optimizer_states", names.get(id(parameter), "optimizer"), str(key), value, ()
    momentum = optimizer.feedback.momentum
    for key, velocity in ({} if momentum is None else momentum.tensors()).items():
        yield "optimizer_states", key.partition(".")[2], "velocity", velocity, ()


def _names(optimizer: Holder, model: nn.Module | None) -> dict[int, str]:
    """Return the name of each parameter that the optimizer holds, by its id."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(parameter): f"untrained parameter {i}" for i, parameter in enumerate(parameters)}
    names |= {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
    return names | {id(slot.parameter): slot.name for slot in optimizer.slots}


def _residuals(optimizer: Holder) -> Iterator[_Found]:
    residual = optimizer.feedback.residual
    on_host = {id(tensor) for tensor in residual.host_tensors()}
    names, sharing = {slot.name for slot in optimizer.slots}, _sharing(optimizer)
    for key, tensor in residual.tensors().items():
        if id(tensor) not in on_host:
            yield "residuals", *_owner(key, names), tensor, sharing.get(id(tensor), ())
    for key, tensor in optimizer.feedback.states.tensors().items():
        yield "residuals", *_owner(key, names), tensor, ()


def _sharing(optimizer: Holder) -> dict[int, tuple[str, ...]]:
    """Return which parameters read a residual, by the id of each tensor that several read."""
    feedback, readers = optimizer.feedback, dict[int, list[str]]()
    for slot in optimizer.slots:
        stored = feedback.residual.stored_for(slot.name) if feedback.keeps_residual(slot.name) else None
        for tensor in () if stored is None else stored.tensors().values():
            readers.setdefault(id(tensor), []).append(slot.name)
    return {key: tuple(members) for key, members in readers.items() if len(members) > 1}


def _owner(key: str, names: set[str]) -> tuple[str, str]:
    """Return parameter and part of a residual's tensor, from its name `key`: kind, parameter, which of several.

    names: those of all parameters. A tensor of none of them keeps its name.
    """
    kind, *pieces = key.split(".")
    for stop in range(len(pieces), 0, -1):
        if (name := ".".join(pieces[:stop])) in names:
            return name, ".".join([kind, *pieces[stop:]])
    return key, "residual"

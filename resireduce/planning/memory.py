"""Bytes of the model states, of the tensors that are really held: in sum, one by one, and at the fullest moment."""

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from traceback import walk_stack
from typing import Any

from torch import Tensor, nn

from resireduce import private
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.grouping import Grouping, compressible
from resireduce.planning import STATES, Item, sums
from resireduce.scheme import SCHEMES, build_residual


def itemise_states(optimizer: DistributedOptimizer, model: nn.Module | None = None) -> list[Item]:
    """Return every tensor of the model states that this rank holds now, in bytes; one held twice is listed once.

    To be called at a step boundary, after `step()` and before `zero_grad()`. Residuals in the host's memory are not
    among them. Tied parameters have the name that the model gives first. `model` names parameters that `optimizer`
    holds but does not train; without it they are numbered.
    """
    return [item for item, _ in held_items(optimizer, model)]


def held_items(optimizer: DistributedOptimizer, model: nn.Module | None = None) -> list[tuple[Item, Tensor]]:
    """Return what `itemise_states` does for `optimizer` and `model`, each with the tensor itself."""
    feedback = optimizer.feedback
    found: dict[tuple[str, int], tuple[Item, Tensor]] = {}

    def add(state: str, name: str, part: str, tensor: Tensor, members: tuple[str, ...] = ()) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        item = Item(state, name, part, tuple(tensor.shape), dtype, held_bytes(tensor), members)
        found.setdefault((state, id(tensor)), (item, tensor))

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = {parameter: f"untrained parameter {i}" for i, parameter in enumerate(parameters)}
    names |= {} if model is None else {parameter: name for name, parameter in model.named_parameters()}
    names |= {slot.parameter: slot.name for slot in optimizer.slots}
    for parameter in parameters:
        add("parameters", names[parameter], "", parameter)
    for parameter in parameters:
        if parameter.grad is not None:
            add("gradients", names[parameter], "", parameter.grad)
    on_host = {*map(id, feedback.residual.host_tensors())}
    kept = feedback.residual.tensors() | feedback.states.tensors()
    for key, tensor in kept.items():  # "kind.name" or "kind.name.part", and names have dots
        kind, _, rest = key.partition(".")
        found_in = [slot.name for slot in optimizer.slots if f"{rest}.".startswith(f"{slot.name}.")]
        name = max(found_in, key=len, default=rest)
        if id(tensor) not in on_host:
            stored = {} if kind == "compressor" else feedback.residual.of(name)._stored
            members = tuple(one for one, read in stored.items() if read is stored.get(name))
            add("residuals", name, kind + rest.removeprefix(name), tensor, members if len(members) > 1 else ())
    for parameter in dict.fromkeys([*parameters, *optimizer.state]):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                add("optimizer_states", names.get(parameter, "optimizer"), str(key), value)
    for key, velocity in feedback.velocities.tensors().items():
        add("optimizer_states", key.partition(".")[2], "velocity", velocity)
    return list(found.values())


def held_bytes(tensor: Tensor) -> int:
    """Return the bytes of `tensor`; if it wraps several, like an 8-bit state with codes and scales, of all of them."""
    if not private.is_wrapper(tensor):
        return tensor.nbytes
    return sum(held_bytes(getattr(tensor, inner)) for inner in tensor.__tensor_flatten__()[0])


@dataclass(frozen=True)
class ModelStates:
    """What is held at a step boundary, after `step()` and before `zero_grad()`; in bytes, on one rank."""

    parameters: int
    """Parameters that the optimizer holds, trained or not."""
    gradients: int
    """Gradients in `.grad`; none if they are streamed."""
    residuals: int
    """Residuals with their indices, without those in the host's memory, and what compressors remember of tensors."""
    optimizer_states: int
    """States of the wrapped optimizer with its step counters, and velocities that a compressor keeps instead."""

    @property
    def total(self) -> int:
        """The sum of the four: the paper's "model states"."""
        return self.parameters + self.gradients + self.residuals + self.optimizer_states

    def as_dict(self) -> dict[str, int]:
        """Return the four and their total, by name."""
        return asdict(self) | {"total": self.total}


def measure_states(optimizer: DistributedOptimizer) -> ModelStates:
    """Return the model states of this rank, in bytes, counted tensor by tensor; one held twice is counted once."""
    return ModelStates(**sums(itemise_states(optimizer)))


def baseline_total(model: nn.Module, states: ModelStates, dense: Iterable[str] | None = None) -> int:
    """Return the model states' bytes with kept gradients, and a full residual of every compressed tensor.

    Both are in the parameters' own dtype; `dense` as in `resireduce.distribute`.
    """
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    residuals = sum(parameter.nbytes for parameter in compressible(model, dense).values())
    return states.parameters + gradients + residuals + states.optimizer_states


def held_tensors(optimizer: DistributedOptimizer) -> dict[str, list[Tensor]]:
    """Return the tensors that `itemise_states` lists, by kind of model state."""
    items = held_items(optimizer)
    return {state: [tensor for item, tensor in items if item.state == state] for state in STATES}


# --- What is alive at the fullest moment ---


class LiveBytes(private.DispatchMode):
    """Within it, follows the bytes of tensors from their making to their end, and remembers the fullest moment.

    `counts` decides which new tensors are followed; those in `held` are followed from the start. `size` says what a
    storage of so many bytes takes. Works on any device, by Python's references to storages. It is slow: give it a step
    of its own.
    """

    def __init__(self, counts: Callable[[Tensor], bool], held: Iterable[Tensor] = (), size: Callable[[int], int] = int):
        super().__init__()
        self._counts, self._size = counts, size
        self._alive: dict[int, int] = {}
        self.current_bytes = self.peak_bytes = 0
        """Bytes alive now, and the most that were alive at once so far."""
        for tensor in held:
            self._follow(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [result] if isinstance(result, Tensor) else private.tree_leaves(result)
        # Most results are views of what is followed already: the arguments are looked through for the others only.
        made = [t for t in made if isinstance(t, Tensor) and _key(t) not in self._alive and self._counts(t)]
        inputs = {_key(t) for t in private.tree_leaves((args, kwargs)) if isinstance(t, Tensor)} if made else set()
        for tensor in made:
            if _key(tensor) not in inputs:
                self._follow(tensor)
        return result

    def _follow(self, tensor: Tensor) -> None:
        key, storage = _key(tensor), tensor.untyped_storage()
        if key not in self._alive:
            self._alive[key] = self._size(storage.nbytes())
            self.current_bytes += self._alive[key]
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.current_bytes -= self._alive.pop(key)

    def since(self) -> int:
        """Return the most bytes alive at once since the last call."""
        most, self.peak_bytes = self.peak_bytes, self.current_bytes
        return most


def track_states(optimizer: DistributedOptimizer) -> LiveBytes:
    """Return a tracker of the model states and of all that lives beside them in a backward pass and a step.

    Counted are tensors of a parameter's shape (dense gradients, wherever autograd holds them) and all that the library
    makes while it works: payloads, received messages, temporaries, and those of the wrapped optimizer that it calls.
    Activations are not counted; it is assumed that none has the shape of a parameter.
    """
    held = held_tensors(optimizer)
    return LiveBytes(counted_states(held["parameters"]), [tensor for tensors in held.values() for tensor in tensors])


def counted_states(parameters: Iterable[Tensor], module: str = "resireduce.") -> Callable[[Tensor], bool]:
    """Return a function that decides whether `track_states` counts a new tensor, for a model with these `parameters`.

    Counted is also what functions make of modules whose names begin with `module`. It must be called while the
    operation that makes the tensor runs, since it looks at the callers.
    """

    def shape_of(tensor: Tensor) -> tuple[int, ...]:
        """Return it without ones: autograd makes some gradients of vectors as matrices of one row."""
        return tuple(size for size in tensor.shape if size != 1)

    shapes = {*map(shape_of, parameters)}

    def counts(tensor: Tensor) -> bool:
        # Not from this frame on, which would hold itself and the tensor.
        callers = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe(1)))
        return shape_of(tensor) in shapes or any(one.startswith(module) and one != __name__ for one in callers)

    return counts


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def residual_bytes(parameters: Mapping[str, Tensor], grouping: Grouping) -> dict[str, int]:
    """Return the bytes of all residuals of `parameters`, with their `grouping`, by scheme with its default options."""
    held = {}
    for scheme in SCHEMES:
        residual = build_residual(scheme, grouping)
        for name, parameter in parameters.items():
            residual.of(name).register(name, parameter.to("meta"))  # so that nothing is allocated
        held[scheme] = residual.nbytes()
    return held

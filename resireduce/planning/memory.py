"""Bytes of the model states, of the tensors that are really held; `resireduce.planning.itemise` has them one by one."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from resireduce.grouping import compressible
from resireduce.optimizer import DistributedOptimizer
from resireduce.planning.item import STATES, sums
from resireduce.planning.itemise import held_items, itemise_states


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
    """Return the model states of this rank, in bytes, counted tensor by tensor; one held twice is counted once.

    optimizer: made by `resireduce.distribute`.
    """
    return ModelStates(**sums(itemise_states(optimizer)))


def tied_parameters(model: nn.Module) -> set[int]:
    """Return the `id` of each parameter that `model` has in more than one place."""
    return {one for one, count in Counter(map(id, _in_all_places(model))).items() if count > 1}


def _in_all_places(module: nn.Module, above: tuple[nn.Module, ...] = ()) -> Iterator[nn.Parameter]:
    """Yield the parameters of `module`, each once for each place that it is in.

    A part that is one of the modules `above` it, such as the parent that a child knows, is not followed in a circle.
    """
    yield from (parameter for parameter in module._parameters.values() if parameter is not None)
    for part in module._modules.values():
        if part is not None and not any(part is one for one in (*above, module)):
            yield from _in_all_places(part, (*above, module))


def baseline_total(model: nn.Module, states: ModelStates, dense: Iterable[str] | None = None) -> int:
    """Return the model states' bytes with kept gradients, and a full residual of every compressed tensor.

    Both are in the parameters' own dtype; `dense` as in `resireduce.distribute`.
    """
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    residuals = sum(parameter.nbytes for parameter in compressible(model, dense).values())
    return states.parameters + gradients + residuals + states.optimizer_states


def held_tensors(optimizer: DistributedOptimizer) -> dict[str, list[Tensor]]:
    """Return the tensors that `optimizer`, its parameters and its residuals hold now, each once, by kind of model
    state.

    Residuals in the host's memory are not among them.
    """
    held: dict[str, list[Tensor]] = {state: [] for state in STATES}
    for item, tensor in held_items(optimizer):
        held[item.state].append(tensor)
    return held


def waiting_bytes(optimizer: DistributedOptimizer) -> int:
    """Return the bytes of streamed gradients that `optimizer` sends dense, so that they wait for `step()`."""
    waits = optimizer.streamed and not optimizer.updates_in_backward
    return sum(slot.template.nbytes for slot in optimizer.slots if slot.dense) if waits else 0


def outside_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the model's bytes outside the model states: parameters that `optimizer` does not hold, and buffers."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {
        "frozen": sum(parameter.nbytes for parameter in model.parameters() if id(parameter) not in held),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
    }


class LiveBytes(TorchDispatchMode):
    """Within it, follows the bytes of tensors from their making to their end, and remembers the fullest moment.

    `counts` decides which new tensors are followed; those in `held` are followed from the start. Works on any device,
    by Python's references to storages. It is slow: give it a step of its own.
    """

    def __init__(self, counts: Callable[[Tensor], bool], held: Iterable[Tensor] = ()):
        super().__init__()
        self._counts = counts
        self._alive: dict[int, int] = {}
        self.current_bytes = 0
        """Bytes alive now."""
        self.peak_bytes = 0
        """Most bytes alive at once, so far."""
        for tensor in held:
            self._follow(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then look at what it has made."""
        result = func(*args, **(kwargs or {}))
        made = [result] if isinstance(result, Tensor) else tree_leaves(result)
        # Most results are views of what is followed already: the arguments are looked through for the others only.
        made = [t for t in made if isinstance(t, Tensor) and _key(t) not in self._alive and self._counts(t)]
        inputs = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)} if made else set()
        for tensor in made:
            if _key(tensor) not in inputs:
                self._follow(tensor)
        return result

    def _follow(self, tensor: Tensor) -> None:
        key, storage = _key(tensor), tensor.untyped_storage()
        if key not in self._alive:
            self._alive[key] = storage.nbytes()
            self.current_bytes += self._alive[key]
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.current_bytes -= self._alive.pop(key)


def track_states(optimizer: DistributedOptimizer) -> LiveBytes:
    """Return a tracker of the model states and of all that lives beside them in a backward pass and a step.

    Counted are tensors of a parameter's shape (dense gradients, wherever autograd holds them) and all that the library
    makes while it works: payloads, received messages, temporaries, and those of the wrapped optimizer that it calls.
    Activations are not counted; it is assumed that none has the shape of a parameter.
    """
    held = held_tensors(optimizer)
    return LiveBytes(counted_states(held["parameters"]), [tensor for tensors in held.values() for tensor in tensors])


def counted_states(parameters: Iterable[Tensor]) -> Callable[[Tensor], bool]:
    """Return a function that decides whether `track_states` counts a new tensor, for a model with these `parameters`.

    It must be called while the operation that makes the tensor runs, since it looks at the callers.
    """
    shapes = {squeezed(parameter) for parameter in parameters}
    return lambda tensor: squeezed(tensor) in shapes or _called_by_library()


def squeezed(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of `tensor` without ones: autograd makes some gradients of vectors as matrices of one row."""
    return tuple(size for size in tensor.shape if size != 1)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _called_by_library() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("resireduce.") and name != __name__:
            return True
        frame = frame.f_back
    return False

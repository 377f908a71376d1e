"""Bytes of the model states, from the tensors that are really held."""

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from resireduce.grouping import compressible
from resireduce.optimizer import DistributedOptimizer


@dataclass(frozen=True)
class ModelStates:
    """What is held at a step boundary, after `step()` and before `zero_grad()`; in bytes, on one rank."""

    parameters: int
    gradients: int
    residuals: int
    """Indices included."""
    optimizer_states: int

    @property
    def total(self) -> int:
        """Their sum: the paper's "model states"."""
        return self.parameters + self.gradients + self.residuals + self.optimizer_states

    def as_dict(self) -> dict[str, int]:
        """The four and their total."""
        return asdict(self) | {"total": self.total}


def measure_states(optimizer: DistributedOptimizer) -> ModelStates:
    """The model states of this rank, counted tensor by tensor; a tensor held twice is counted once."""
    return ModelStates(**{kind: _nbytes(tensors) for kind, tensors in held_tensors(optimizer).items()})


def baseline_total(model: nn.Module, states: ModelStates, dense: Iterable[str] | None = None) -> int:
    """Bytes of the model states if all that is trained had a kept gradient, and all that is compressed a full residual.

    In the parameters' own dtype; `dense` as in `resireduce.distribute`.
    """
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    residuals = sum(parameter.nbytes for parameter in compressible(model, dense).values())
    return states.parameters + gradients + residuals + states.optimizer_states


def held_tensors(optimizer: DistributedOptimizer) -> dict[str, list[Tensor]]:
    """The tensors held now, by the kind of model state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "residuals": list(optimizer.feedback.residual.tensors().values()),
        "optimizer_states": [value for value in states if isinstance(value, Tensor)],
    }


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())


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
    """A tracker of the model states and of all that lives beside them in a backward pass and a step.

    Counted are tensors of a parameter's shape (dense gradients, wherever autograd holds them) and all that the library
    makes while it works: payloads, received messages, temporaries, and those of the wrapped optimizer that it calls.
    Activations are not counted; it is taken that none has the shape of a parameter.
    """
    held = held_tensors(optimizer)
    shapes = {_squeezed(p) for p in held["parameters"]}
    everything = [tensor for tensors in held.values() for tensor in tensors]
    return LiveBytes(lambda tensor: _squeezed(tensor) in shapes or _called_by_library(), everything)


def _squeezed(tensor: Tensor) -> tuple[int, ...]:
    """The shape without ones: autograd makes some gradients of vectors as matrices of one row."""
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

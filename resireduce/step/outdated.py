"""Parameters whose update is pending: any use of one first brings it up to date.

Zhang et al., "DeAR", ICDCS 2023, update a layer in the next forward pass, shortly before it is used. Code that reads
its parameters earlier would see those of the previous step.
"""

from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from resireduce.comm.base import Handle
from resireduce.errors import UsageError
from resireduce.refusals import ThisProcess
from resireduce.step.own_memory import laid_out
from resireduce.step.slot import Slot

QUIET = torch._C.DisableTorchFunctionSubclass
"""Within it no use of a parameter brings it up to date."""
FLUSH = "call optimizer.flush() before it is forked, to update all parameters that merge='dear' has not updated yet"
WITHOUT_VALUES = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf")),
    *(Tensor.size, Tensor.dim, Tensor.numel),
}
"""Attributes and methods that do not depend on a parameter's values."""


class _Outdated(nn.Parameter):
    """The class of a parameter while its update is pending; it stays the same object."""

    _late_update: "LateUpdate"
    """Brings the parameter up to date, and makes it a plain parameter again."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Bring all such parameters among the arguments up to date, and call `func`."""
        if func in WITHOUT_VALUES:
            with QUIET():
                return func(*args, **(kwargs or {}))
        bring_up_to_date(tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Any:
        """Return a copy of the updated parameter."""
        bring_up_to_date([self])
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what pickles the updated parameter."""
        bring_up_to_date([self])
        return self.__reduce_ex__(protocol)


Part = Callable[[list[dict[str, Any]], Sequence[tuple[Tensor, Tensor]]], object]
"""A part of an optimizer's step: `resireduce.wrapped_step.WrappedStep.part`."""


class LateUpdate:
    """The update of some parameters by averages that are on their way: done once, when the first of them is needed.

    Until it is finished, any use of one of them, in any thread, waits for it.

    Args:
        slots: one for each parameter, and where its average begins in the 1-D tensor that `gathered` brings.
        gathered: the averages.
        part: does a part of the optimizer's step.
        groups: parameters and options of the optimizer's groups as they were at the step.
        lock: held while the optimizer is used.
    """

    def __init__(
        self,
        slots: Sequence[tuple[Slot, int]],
        gathered: Handle[Tensor],
        part: Part,
        groups: Sequence[tuple[list[Tensor], dict[str, Any]]],
        lock: AbstractContextManager[object],
    ):
        self._slots, self._part, self._groups, self._lock = slots, part, groups, lock
        self._gathered: Handle[Tensor] | None = gathered
        self._keeps_gradients, self._taken, self._process = True, False, ThisProcess(FLUSH)
        device = slots[0][0].parameter.device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        for slot, _ in slots:
            slot.parameter._late_update = self  # type: ignore[attr-defined]
            slot.parameter.__class__ = _Outdated

    def has_any(self, parameters: Set[Tensor]) -> bool:
        """Whether one of `parameters` is among those that it updates."""
        return any(slot.parameter in parameters for slot, _ in self._slots)

    def let_gradients_go(self) -> None:
        """Leave no averages in `.grad`, which has been cleared since the step."""
        self._keeps_gradients = False

    def apply(self) -> None:
        """Wait for the averages, and update the parameters by them, unless that has been done.

        Raises UsageError if an earlier attempt failed half-way.
        """
        with self._lock, QUIET(), torch._C._DisableFuncTorch(), torch.inference_mode(False), torch.no_grad():
            if self._taken:
                return
            self._process.refuse_fork()
            if self._gathered is None:
                raise UsageError(
                    f"the update of {self._slots[0][0].name!r} failed before, half-way: build model and optimizer "
                    "anew, on every rank, from a checkpoint"
                )
            kind = self._slots[0][0].kind[1].type
            with torch.autocast("cpu" if kind == "meta" else kind, enabled=False):
                self._apply()
            self._taken, self._slots, self._groups = True, [], []

    def _apply(self) -> None:
        """Update on the stream of the step; the current stream then waits for it."""
        if self._stream is None:
            self._update()
            return
        here = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            self._update()
        here.wait_stream(self._stream)

    def _update(self) -> None:
        assert self._gathered is not None
        averages = self._gathered.wait()
        self._gathered = None  # whatever the outcome, this is tried once
        stand_ins: dict[Tensor, Tensor] = {}  # so that the parameters do not count as updated too early
        for slot, start in self._slots:
            parameter = slot.parameter
            average = averages[start : start + parameter.numel()].view(parameter.shape)
            stand_ins[parameter] = parameter.detach()
            stand_ins[parameter].grad = laid_out(average, parameter)
        groups = [
            {"params": [stand_ins[one] for one in parameters if one in stand_ins], **options}
            for parameters, options in self._groups
        ]
        self._part(groups, [*stand_ins.items()])
        for slot, _ in self._slots:
            if self._keeps_gradients:
                slot.parameter.grad = stand_ins[slot.parameter].grad
                slot.note_left()
            slot.parameter.__class__ = nn.Parameter
            del slot.parameter._late_update  # type: ignore[attr-defined]


def bring_up_to_date(values: Sequence[object]) -> None:
    """Apply the pending updates of the parameters among `values`, also of those within a transform of torch.func."""
    for value in map(_unwrapped, values):
        if type(value) is _Outdated:
            update = vars(value).get("_late_update")  # another thread may have taken it
            if update is not None:
                update.apply()


def _unwrapped(value: object) -> object:
    """Return `value`, or the tensor that it stands for within a transform such as `grad` or `vmap`."""
    while isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


class BeforeForward:
    """The hook before each module's forward pass, which brings the module's own parameters up to date."""

    def __init__(self) -> None:
        self.compiled = False
        """Whether torch.compile has compiled a module: its code reads parameters before any hook is called."""
        self.unseen: set[Tensor] = set()
        """Parameters of modules that are never called, as nn.ParameterDict: no hook comes before a use."""

    def __call__(self, module: nn.Module, _: object) -> None:
        """Bring the parameters of `module`, which is about to be called, up to date, but not those of submodules."""
        if torch.compiler.is_compiling():
            self.compiled = True
        else:
            bring_up_to_date([*module._parameters.values()])

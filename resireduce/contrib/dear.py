"""DeAR: Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce Pipelining", ICDCS
2023: an all-reduce in two halves, the second of which runs in the next forward pass."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.comm.base import Handle
from resireduce.comm.nodes import Levels
from resireduce.core.bucket import Bucket
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message
from resireduce.core.queue import LaunchQueue
from resireduce.core.slot import Slot, clip_factor, laid_out
from resireduce.core.update import Updater
from resireduce.errors import UsageError
from resireduce.settings import DEAR_BYTES, Settings, dear_bytes
from resireduce.timeline import exactly, timed
from resireduce.watchers import ThisProcess

# --- Parameters whose update is pending: any use of one first brings it up to date ---
#
# Zhang et al., "DeAR", ICDCS 2023, update a layer in the next forward pass, shortly before it is used. Code that
# reads its parameters earlier would see those of the previous step.


QUIET = private.without_functions
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
        bring_up_to_date(private.tree_leaves((args, kwargs)))
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
"""A part of an optimizer's step: `resireduce.core.update.WrappedStep.part`."""


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
        with self._lock, QUIET(), private.without_transforms(), torch.inference_mode(False), torch.no_grad():
            if self._taken:
                return
            self._process.refuse_fork()
            if self._gathered is None:
                raise UsageError(
                    f"the update of {self._slots[0][0].name!r} failed before, half-way: build model and optimizer "
                    "anew, on every rank, from a checkpoint"
                )
            kind = self._slots[0][0].kind[1].type
            beside = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
            with torch.autocast("cpu" if kind == "meta" else kind, enabled=False), beside:
                self._update()  # on the stream of the step, for which the current stream then waits
            if self._stream is not None:
                torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._taken, self._slots, self._groups = True, [], []

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
    while isinstance(value, Tensor) and private.is_transformed(value):
        value = private.untransformed(value)
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


# --- All-reduces in two halves: a reduce-scatter in the backward pass, and an all-gather in the next forward pass ---
#
# Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce Pipelining", ICDCS 2023.


class Half(NamedTuple):
    """A message after its reduce-scatter: all ranks' parts, concatenated, are its averages and padding zeros."""

    slots: list[Slot]
    """The slots of the averages, in the order in which they lie."""
    part: Tensor
    """The elements of the sum that this rank gets, 1-D; equally many on all ranks."""


class HalvesQueue(LaunchQueue):
    """Launches the reduce-scatter of each message as soon as all of its gradients have come.

    Messages never change; their launch order is learnt as in `LaunchQueue`.

    Args:
        slots, feedback, levels: as for `LaunchQueue`.
        merge: "dear", or "dear-BYTES".
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, levels: Levels, merge: object):
        self._scattered: deque[tuple[list[Slot], Handle[Tensor]]] = deque()
        super().__init__(slots, feedback, 0, levels, merge=merge)

    def _made(self, merge: object) -> list[Bucket]:
        """Return groups of modules, limited by the bytes that `merge` gives."""
        return [Bucket(one) for one in in_forward_order(self.slots, dear_bytes(merge) or DEAR_BYTES)]

    def _arranged(self, buckets: Iterable[Bucket]) -> list[Bucket]:
        """Return `buckets` in the order in which their last gradients come."""
        place = {slot: place for place, slot in enumerate(self._order)}
        return sorted(buckets, key=lambda bucket: max(place[slot] for slot in bucket.slots))

    @timed("communicate")
    @exactly
    def _send(self, bucket: Bucket) -> None:
        ranks, message = self.feedback.communicator, bucket.message
        assert isinstance(message, Message)
        padding = -message.buffer.numel() % ranks.world_size
        buffer = torch.cat([message.buffer, message.buffer.new_zeros(padding)]) if padding else message.buffer
        buffer.mul_(1 / ranks.world_size)
        self._scattered.append((bucket.slots, ranks.scatter_sum(buffer, bucket.name)))
        bucket.message = None

    @timed("communicate")
    def halves(self) -> list[Half]:
        """Wait for the sums of all messages of the step, and return them in launch order."""
        found = []
        while self._scattered:
            slots, sums = self._scattered.popleft()
            found.append(Half(slots, sums.wait()))
            del sums  # it is as large as the message
        return found

    @timed("communicate")
    def gather(self, half: Half) -> Handle[Tensor]:
        """Launch the second half of a message, which gathers all ranks' parts."""
        return self.feedback.communicator.gather(half.part, f"{half.slots[0].name}.gather")

    def settle(self, flag: bool, step: int) -> list[Slot]:
        """Return the slots that had a gradient on any rank, equal on all; `flag` and `step` as in `LaunchQueue`."""
        presence = self._agree(flag, step)
        return [slot for slot in self.slots if presence[slot.index]]


def in_forward_order(slots: Iterable[Slot], limit_bytes: int) -> list[list[Slot]]:
    """Return `slots` in messages: modules in the order of the model, which is mostly that of its forward pass.

    A message is closed where the next module would make it `limit_bytes` or more, or is of another kind.
    """
    messages: list[list[Slot]] = []
    filled = 0
    for _, module in groupby(slots, key=lambda slot: (slot.name.rpartition(".")[0], slot.kind[:2])):
        own = list(module)
        nbytes = sum(slot.nbytes for slot in own)
        if not messages or filled + nbytes >= limit_bytes or not own[0].is_like(messages[-1][0]):
            messages.append([])
            filled = 0
        messages[-1] += own
        filled += nbytes
    return messages


# --- The second half of a step whose averages are gathered in the next forward pass, where parameters are updated ---


class LateUpdater(Updater):
    """Launches gathers of averages at the end of a step, and has each group of parameters updated when it is needed.

    The update uses the optimizer's options at the step, even if a scheduler has changed them since.

    Args:
        optimizer, slots, queue, settings: as for `Updater`.
        before_forward: knows whether the model is compiled; parameters are then updated in the step itself.
    """

    queue: HalvesQueue

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        queue: HalvesQueue,
        settings: Settings,
        before_forward: BeforeForward,
    ):
        self._updates: list[LateUpdate] = []
        self._lock = threading.RLock()
        self._before_forward = before_forward
        super().__init__(optimizer, slots, queue, settings)

    def before_step(self) -> None:
        """Refuse as `Updater` does, and hooks before the step, or another step, which would find no gradients."""
        super().before_step()
        if not self._wrapped_step.is_divisible:
            raise UsageError(
                "a hook before the step was registered, or another function put in the place of the optimizer's step, "
                "which would find no gradients: with merge='dear' averages come in the next forward pass; leave merge "
                "out"
            )

    def finish(self, step: int, flag: Callable[[], bool], loss: Tensor | float | None = None) -> None:
        """Launch the gathers of all averages, first needed first, and let the optimizer's own hooks run.

        step, flag, loss: as in `Updater`. Parameters are up to date when they are used.
        """
        halves = self.queue.halves()
        present = frozenset(self.queue.settle(flag(), step))
        if self.queue.flagged:
            return
        for slot in self.queue.slots:
            slot.parameter.grad = None  # of this rank alone, where a message waited for the step
        self._clip([half.part for half in halves])
        groups = [
            ([*group["params"]], deepcopy({key: value for key, value in group.items() if key != "params"}))
            for group in self._wrapped_step.optimizer.param_groups
        ]
        gathered = [(half, self.queue.gather(half)) for half in reversed(halves)]

        def hold() -> None:
            self._updates = []
            for half, handle in gathered:
                starts = accumulate((slot.parameter.numel() for slot in half.slots), initial=0)
                placed = [(slot, start) for slot, start in zip(half.slots, starts, strict=False) if slot in present]
                if placed:
                    self._updates.append(LateUpdate(placed, handle, self._wrapped_step.part, groups, self._lock))

        self._wrapped_step.without_update(loss, hold)
        if self._before_forward.compiled:
            self.flush()
        for update in self._updates:
            if update.has_any(self._before_forward.unseen):
                update.apply()

    @exactly
    def _clip(self, parts: Sequence[Tensor]) -> None:
        """Scale the `parts` of all averages that this rank has, as clip_grad_norm_ would scale the whole."""
        if self.max_grad_norm is None or not parts:
            return
        squares = [
            torch.linalg.vector_norm(part, dtype=torch.promote_types(part.dtype, torch.float32)) for part in parts
        ]
        device = self.queue.world.control_device
        square = torch.stack([norm.to(device, torch.float64) for norm in squares]).square_().sum()
        norm = self.queue.world.all_reduce(square.view(1), "resireduce.norm").wait().sqrt_()[0].to(squares[0])
        self.grad_norm, factor = clip_factor([norm], self.max_grad_norm)
        for part in parts:
            part.mul_(factor.to(part.device))

    def flush(self) -> None:
        """Bring all parameters up to date."""
        for update in self._updates:
            update.apply()
        self._updates = []

    def let_gradients_go(self) -> None:
        """Keep pending updates from putting averages into `.grad`."""
        for update in self._updates:
            update.let_gradients_go()

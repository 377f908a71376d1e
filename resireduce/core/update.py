"""The second half of a step: averages come back, and the wrapped optimizer's `step()` updates their parameters."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resireduce import private
from resireduce.core.bucket import Slot
from resireduce.errors import UsageError
from resireduce.watchers import StepGuard

if TYPE_CHECKING:
    from resireduce.core.step import LaunchQueue

SEPARABLE = {
    "torch.optim": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD",
    "bitsandbytes.optim": "AdEMAMix8bit Adagrad8bit Adam8bit AdamW8bit Lion8bit RMSprop8bit SGD8bit",
    "torchao.optim": "Adam4bit Adam8bit AdamFp8 AdamW4bit AdamW8bit AdamWFp8",
}
"""By package, optimizers whose `step()` updates each parameter from its own gradient and state alone, so that it may be
called for a few parameters at a time. A class that is not listed says so by an attribute `step_is_separable = True`."""


def separable(optimizer: torch.optim.Optimizer) -> Callable[[], bool]:
    """Return what says, when it is called, whether `optimizer` updates each parameter by itself, and nobody else has
    put a function in the place of its `step` or around it. It says no unless the optimizer is one of SEPARABLE by its
    own name, or says so itself."""
    kind = type(optimizer)
    package = next((one for one in SEPARABLE if f"{kind.__module__}.".startswith(f"{one}.")), "torch")
    says_so = vars(kind).get("step_is_separable")
    dtypes = {one.dtype for group in optimizer.param_groups for one in group["params"]}
    mixes = isinstance(optimizer, torch.optim.Adafactor) and len(dtypes) > 1  # its default eps is of the first dtype
    if mixes or not (kind.__qualname__ in SEPARABLE.get(package, "").split() if says_so is None else says_so):
        return bool
    trusted: Callable[[], object] = (lambda: kind.step) if says_so else (lambda: None)
    return partial(_is_untouched, optimizer, kind, package, trusted)


def _is_untouched(optimizer: torch.optim.Optimizer, kind: type, package: str, trusted: Callable[[], object]) -> bool:
    """Whether `optimizer` is still of this `kind`, and only torch or `package` has put functions around its `step`, as
    far as the one that is `trusted`; functools.wraps gives such a one the name and module of another."""
    if type(optimizer) is not kind:
        return False
    step, last = vars(optimizer).get("step", type(optimizer).step), trusted()
    while step is not last:  # as torch's schedulers count steps, and its hooks are called, around it
        module = getattr(step, "__globals__", {}).get("__name__")
        if not f"{module}.".startswith(("torch.", f"{package}.")):
            return False
        step = getattr(step, "__wrapped__", None)
    return True


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody has registered a hook before steps of `optimizer`, which might need all averages at once."""
    hooks = optimizer._optimizer_step_pre_hooks.values()
    return bool(private.global_step_hooks) or any(not isinstance(hook, StepGuard) for hook in hooks)


class Updater:
    """Receives messages in the order of their launch, and has the wrapped optimizer update the parameters.

    With streamed gradients, if the optimizer updates each parameter by itself, it is called for one chunk of averages
    after the other. Otherwise all are received for one call. What becomes of `.grad` the `lifetime` of gradients says.
    """

    grad_norm: Tensor | None = None
    """The global norm of the last averages, if it was measured."""
    largest: float | None = None
    """What the global norm is limited to; None: it is not."""

    def __init__(self, optimizer: torch.optim.Optimizer, queue: "LaunchQueue"):
        self.optimizer, self.queue, self.lifetime = optimizer, queue, queue.lifetime
        self._known = {id(slot.parameter) for slot in queue.slots}
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self.is_separable = separable(optimizer)

    def check_parameters(self) -> None:
        """Raise UsageError if the wrapped optimizer lacks a parameter now, or has a gradient that nobody averages."""
        held = {id(one): one for group in self.optimizer.param_groups for one in group["params"]}
        others = [one for key, one in held.items() if key not in self._known and one.grad is not None]
        if others or not held.keys() >= self._known:  # ranks would drift apart
            raise UsageError(
                "parameters were added to the optimizer, removed, replaced or unfrozen after "
                "resireduce.distribute(...), and nobody averages their gradients: do that before, or close() it and "
                "distribute anew"
            )

    def can_be_sliced(self) -> bool:
        """Whether the wrapped optimizer may be called for a few parameters at a time."""
        return not has_hooks(self.optimizer) and self.is_separable()

    def note(self, slots: Sequence[Slot]) -> None:
        """Note the averages of `slots`, which have come, and let messages go that `settle` does not need."""
        self._updating += slots
        for bucket in {self.queue.bucket_of[slot] for slot in slots}:
            if all(slot.is_taken for slot in bucket.slots):
                bucket.message = None

    def finish(self, step: int) -> None:
        """Receive everything under way, and update all parameters whose averages have come.

        If a gradient of any rank was not finite, parameters that have not been updated by then stay so on all ranks.
        """
        self.room = self.lifetime.chunk_bytes if self.can_be_sliced() else math.inf
        while self.queue.under_way:
            self.make_room(self.queue.under_way[0].slots)
            self.note(self.queue.receive())
            self.queue.launch(step, complete=True)
        self.note(self.queue.settle(step))
        if not self.queue.flagged:
            self.update_rest()
        self.free()

    def make_room(self, slots: Sequence[Slot]) -> None:
        """Update first, if the averages of `slots` would make more bytes than there is room for."""
        if self._updating and sum(slot.nbytes for slot in [*self._updating, *slots]) > self.room:
            self.update_some()

    def update_some(self) -> None:
        """Let the wrapped optimizer update the parameters whose averages have come; it skips those without `.grad`.

        This is a part of a step, without the hooks: a `step` that calls its base class's would run them there.
        """
        step, optimizer = type(self.optimizer).step, self.optimizer
        bare: Callable[..., object] = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        try:
            bare(optimizer)
        finally:
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        self.free()

    def update_rest(self) -> None:
        """Call the wrapped optimizer's `step()` itself, for the parameters that are left. It gets no closure, since
        gradients of a second evaluation would be this rank's own."""
        self.optimizer.step()

    def free(self) -> None:
        """Forget the averages that have been used; free them, unless gradients are kept."""
        self.lifetime.free(self._updating)
        self._updating = []

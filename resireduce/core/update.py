"""The second half of a step: averages come back, and the wrapped optimizer's `step()` updates their parameters."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.compressors.momentum import own_momentum
from resireduce.core.bucket import Slot, clip_factor
from resireduce.errors import UsageError, warn
from resireduce.settings import Settings
from resireduce.watchers import StepGuard, Watcher

if TYPE_CHECKING:
    from resireduce.core.step import LaunchQueue

# --- How the wrapped optimizer's `step()` is called: once, or for a few parameters at a time where that is the same ---


EPS_CURE = "give eps=(1e-7, 1e-3), say, or make a group for each dtype"


def shares_eps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is an Adafactor that takes one number, by the dtype of the first with a gradient, for
    parameters of several dtypes: with its default, `eps=(None, ...)`."""
    if not isinstance(optimizer, torch.optim.Adafactor):
        return False
    groups = [group["params"] for group in optimizer.param_groups if group["eps"][0] is None]
    return any(len({parameter.dtype for parameter in parameters}) > 1 for parameters in groups)


SEPARABLE = {
    "torch.optim": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD",
    "bitsandbytes.optim": "AdEMAMix8bit Adagrad8bit Adam8bit AdamW8bit Lion8bit RMSprop8bit SGD8bit",
    "torchao.optim": "Adam4bit Adam8bit AdamFp8 AdamW4bit AdamW8bit AdamWFp8",
}
"""By package, optimizers whose `step()` updates each parameter from its own gradient and state alone, so that it may be
called for a few parameters at a time. A class that is not listed says so by an attribute `step_is_separable = True`."""

MIB = 2**20


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is one of SEPARABLE by its own name, or says so itself, and its `step` is its own."""
    kind, own = type(optimizer), vars(optimizer).get("step")
    if own is not None and (getattr(own, "__wrapped__", None) is not kind.step or not _is_of("torch", own)):
        return False  # another `step` than the one by which torch's schedulers count steps
    if "step_is_separable" in vars(kind):
        return bool(vars(kind)["step_is_separable"])
    package = next((one for one in SEPARABLE if f"{kind.__module__}.".startswith(f"{one}.")), None)
    if package is None or kind.__qualname__ not in SEPARABLE[package].split():
        return False
    step: Any = kind.step
    while step is not None and (_is_of(package, step) or _is_of("torch", step)):
        step = getattr(step, "__wrapped__", None)
    # Otherwise a function of another package was put into the class.
    return step is None and not shares_eps(optimizer)


def _is_of(package: str, function: Any) -> bool:
    """Whether `function` is written in `package`; functools.wraps gives a wrapper the name and module of another."""
    return f"{getattr(function, '__globals__', {}).get('__name__')}.".startswith(f"{package}.")


class WrappedStep:
    """Calls `optimizer.step()`, once or several times for a step of training, and its hooks once.

    `streamed`: averages are brought back, and freed, a few at a time where that is possible.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, streamed: bool):
        self.optimizer, self._streamed = optimizer, streamed

    @property
    def is_sliced(self) -> bool:
        """Whether `step()` is called for a few parameters at a time: a hook before it might need all gradients."""
        hooks = self.optimizer._optimizer_step_pre_hooks.values()
        has_hooks = private.global_step_hooks or any(not isinstance(hook, StepGuard) for hook in hooks)
        return self._streamed and not has_hooks and is_separable(self.optimizer)

    def some(self) -> None:
        """Update the parameters that have a gradient, as a part of a step: without its hooks, which are removed
        meanwhile, since a `step` that calls its base class's would run them there."""
        step, optimizer = type(self.optimizer).step, self.optimizer
        bare: Callable[..., object] = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        try:
            bare(optimizer)
        finally:
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks

    def whole(self, loss: Tensor | float | None = None, parameters: Sequence[nn.Parameter] = ()) -> None:
        """Call `step()` itself: the only call of a step, or the last.

        loss: what the closure given to the distributed `step` returned, if there was one; `parameters` are those that
        it was computed with. An optimizer that may need a closure gets one that returns this loss, once.
        """
        if loss is None or is_separable(self.optimizer):
            self.optimizer.step()
            return
        versions = [parameter._version for parameter in parameters]
        answers = [loss]

        def evaluated(*_: object, **__: object) -> Tensor | float:
            if not answers or versions != [parameter._version for parameter in parameters]:
                raise UsageError(
                    f"{type(self.optimizer).__name__}.step(closure) computes gradients several times a step, which are "
                    "under way after the first; use an optimizer that takes a step from one gradient (SGD, Adam, ...)"
                )
            return answers.pop()

        self.optimizer.step(evaluated)  # type: ignore[arg-type]

    def cost(self, nbytes: int) -> str | None:
        """Return the warning to give if gradients are streamed and `step()` needs all `nbytes` of averages at once."""
        if not self._streamed:
            return None
        name, held = type(self.optimizer).__name__, f"so all averages, {nbytes / MIB:,.1f} MiB, are held at once for"
        if shares_eps(self.optimizer):
            return f"{name} takes one eps for parameters of several dtypes, {held} its step(): {EPS_CURE}"
        if not is_separable(self.optimizer):
            return (
                f"{name} is not known to update each parameter by itself, {held} its step(). If it does, say so by a "
                f"class attribute step_is_separable = True in {name}"
            )
        return None


class Updater(Watcher):
    """Receives messages in the order of their launch, and has the wrapped optimizer update the parameters.

    With streamed gradients, if the optimizer updates each parameter by itself, averages of at most `chunk_bytes` are
    alive at once: the optimizer is called for one chunk of them after the other. Otherwise all are received for one
    call.

    With a limit on the norm, or a GradScaler and streamed gradients, nothing is updated before all averages have been
    received. Until then averages that will be used in chunks are freed again; their messages are kept, and decompressed
    a second time.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, slots: Sequence[Slot], queue: "LaunchQueue", settings: Settings
    ):
        self.queue, self.feedback, self.streamed = queue, queue.feedback, settings.streamed
        self._parameters = [slot.parameter for slot in slots]
        self._set_by_hand = slots if settings.in_backward else ()  # whose `.grad` may be set by hand meanwhile
        self.chunk_bytes = largest_layer(slots)
        self._wrapped_step = WrappedStep(optimizer, self.streamed)
        self._in_chunks = False
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0
        self.in_backward, self.max_grad_norm = settings.in_backward, settings.max_grad_norm
        self.waits = (settings.streamed and settings.scaler is not None) or self.max_grad_norm is not None
        self.grad_norm: Tensor | None = None
        self.watch = Watch(optimizer, slots, self._wrapped_step, self.feedback.momentum is not None)
        cost = self._wrapped_step.cost(sum(slot.nbytes for slot in slots))
        if cost is not None:
            warn(cost)
        self.restart()

    def before_step(self) -> None:
        """Raise UsageError if a step would train wrongly because of a change to the wrapped optimizer."""
        self.watch.refuse()

    def restart(self) -> None:
        """Forget what an unfinished step has brought."""
        self._updating, self._updating_bytes = [], 0
        self._in_chunks = self.in_backward
        self._early_bytes = 0  # in the backward pass: of dense payloads between their arrival and their update
        self.watch.restart()

    def update_early(self, arrived: Slot) -> None:
        """Update by averages in the backward pass once payloads exceed a chunk; that of `arrived` has just come."""
        self._early_bytes += arrived.nbytes
        while self._early_bytes > self.chunk_bytes and self.queue.next():
            self.watch.note_use()
            self._early_bytes -= sum(slot.nbytes for slot in self._receive())
            updated = list(self._updating)
            self.update_some()
            self.watch.note_updated(updated)

    def skip(self) -> None:
        """Note that the step is skipped, since a gradient was not finite: `grad_norm` is infinite."""
        if self.max_grad_norm is not None:
            self.grad_norm = torch.tensor(math.inf, device="cpu")

    def finish(self, step: int, flag: Callable[[], bool], loss: Tensor | float | None = None) -> None:
        """Receive everything under way, and update all parameters whose averages have come.

        `flag` returns whether a gradient of this rank cannot be used; it is called when all messages have come. If any
        rank's cannot, parameters that have not been updated by then are not updated on any rank.
        """
        self._in_chunks = self._wrapped_step.is_sliced
        self.queue.keeps_messages = self._in_chunks and self.waits
        if self.waits:
            norms = self._measure(step, flag)
            if not self.queue.flagged:
                self._use(norms)
            elif self.streamed:
                self._updating = list(norms)  # to be freed
        else:
            while self.queue.next():
                self._receive()
                self.queue.launch(step, complete=True)
            found = self.queue.settle(flag(), step)
            if self.queue.flagged:
                self._updating += found
            else:
                for slot in found:
                    self._add(slot)
        if not self.queue.flagged:
            self.update_rest(loss)
        self._free()

    def _measure(self, step: int, flag: Callable[[], bool]) -> dict[Slot, Tensor]:
        """Receive everything; return the norm of each average, which is freed again if it will be used in chunks."""
        norms: dict[Slot, Tensor] = {}

        def measure(slot: Slot) -> None:
            assert slot.parameter.grad is not None
            norms[slot] = torch.linalg.vector_norm(slot.parameter.grad)
            if self._in_chunks:
                slot.parameter.grad = None

        while self.queue.next():
            for slot in self.queue.receive():
                measure(slot)
            self.queue.launch(step, complete=True)
        for slot in self.queue.settle(flag(), step):
            measure(slot)
        return dict(sorted(norms.items(), key=lambda item: item[0].index))

    def _use(self, norms: dict[Slot, Tensor]) -> None:
        """Use the averages that were measured, scaled to the global norm that clip_grad_norm_ would give."""
        factor = self._factor(list(norms.values()))
        buckets = {self.queue.bucket_of[slot]: None for slot in norms}
        for bucket in buckets:
            slots = [slot for slot in bucket.slots if slot in norms]
            self._make_room(slots)
            if self._in_chunks:
                self.queue.deliver(slots)
            for slot in slots:
                self._add(slot, factor)
            bucket.message = None

    def _factor(self, norms: list[Tensor]) -> Tensor | None:
        """Return the factor, 0-D, that scales averages with these norms; None if they are not to be clipped."""
        if self.max_grad_norm is None:
            return None
        if not norms:  # as clip_grad_norm_ says it
            self.grad_norm = torch.zeros((), device="cpu")
            return None
        self.grad_norm, factor = clip_factor(norms, self.max_grad_norm)
        return None if self.max_grad_norm == math.inf else factor

    def _receive(self) -> list[Slot]:
        """Receive the oldest message, and return its slots that have an average; in chunks, update first if they would
        make more than one."""
        bucket = self.queue.next()
        assert bucket is not None
        self._make_room(bucket.slots)
        received = self.queue.receive()
        for slot in received:
            self._add(slot)
        return received

    def _make_room(self, slots: Sequence[Slot]) -> None:
        nbytes = sum(slot.nbytes for slot in slots)
        if self._in_chunks and self._updating and self._updating_bytes + nbytes > self.chunk_bytes:
            self.update_some()

    def _add(self, slot: Slot, factor: Tensor | None = None) -> None:
        """Note a slot whose average has come, scaled by `factor`: it is updated later, with others."""
        if factor is not None:
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]
        self._updating.append(slot)
        self._updating_bytes += slot.nbytes

    def update_some(self) -> None:
        """Let the wrapped optimizer update the parameters whose averages have come; it skips those without `.grad`.

        One that was put there by hand during the backward pass is this rank's own until `step()` averages it.
        """
        held = [(slot, grad) for slot in self._set_by_hand if (grad := slot.parameter.grad) is not None]
        aside = [(slot.parameter, grad) for slot, grad in held if slot not in self._updating]
        for parameter, _ in aside:
            parameter.grad = None
        try:
            self._wrapped_step.some()
        finally:
            for parameter, grad in aside:
                parameter.grad = grad
        self._free()

    def update_rest(self, loss: Tensor | float | None) -> None:
        """Call the wrapped optimizer's `step()` itself, for the parameters that are left."""
        self._wrapped_step.whole(loss, self._parameters)

    def _free(self) -> None:
        if self.streamed:
            for slot in self._updating:
                slot.parameter.grad = None
        self._updating, self._updating_bytes = [], 0


def largest_layer(slots: Sequence[Slot]) -> int:
    """Return the gradient bytes of the largest layer of `slots`: tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())


# --- A watch on the wrapped optimizer: what must not change between `resireduce.distribute` and a step ---


class Watch:
    """Refuses a step if the wrapped optimizer has been changed in a way that would train wrongly."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        wrapped_step: WrappedStep,
        corrects_momentum: bool,
    ):
        self.optimizer, self._wrapped_step, self._corrects_momentum = optimizer, wrapped_step, corrects_momentum
        known = {id(slot.parameter) for slot in slots}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._held, self._frozen = {id(p) for p in held}, [p for p in held if id(p) not in known]
        self.restart()

    def restart(self) -> None:
        """Begin a step anew: no parameter has been updated early, and no option been used for it."""
        self._used: list[dict[str, object]] | None = None  # options of the groups, at the first early update
        self._updated: dict[Slot, tuple[object, object]] = {}  # updated early: parameter and state as they were then

    def note_use(self) -> None:
        """Remember the options, which are about to be used in the backward pass."""
        self._refuse_hooks()
        self._used = self._used or self._options()

    def note_updated(self, slots: Sequence[Slot]) -> None:
        """Remember the parameters of `slots`, which have just been updated in the backward pass, and their state."""
        self._updated.update((slot, (_version(slot), self._state(slot))) for slot in slots)

    def refuse(self) -> None:
        """Raise UsageError if the wrapped optimizer holds parameters that nobody averages, or updated some wrongly."""
        stranger = next((p for p in self._frozen if p.grad is not None), None)
        if stranger is not None:  # ranks would drift apart
            raise UsageError(
                f"a parameter of shape {tuple(stranger.shape)}, frozen when resireduce.distribute(...) was called, has "
                "a gradient now, which nobody averages: unfreeze before distribute(), or close() the optimizer and "
                "distribute a new one"
            )
        if {id(p) for group in self.optimizer.param_groups for p in group["params"]} != self._held:
            raise UsageError(
                "parameters were added to the optimizer, removed, or replaced, after resireduce.distribute(...): do "
                "that before, or close() it and distribute anew"
            )
        own = own_momentum(self.optimizer) if self._corrects_momentum else None
        if own is not None:
            raise UsageError(
                f"the optimizer has {own} now, beside a compressor that corrects momentum, so that it would be applied "
                "twice: load a state without it, and use a scheduler that leaves it (cycle_momentum=False)"
            )
        if self._used is None:
            return
        if self._used != self._options():
            raise UsageError(
                "an option of the optimizer was changed between backward() and step(), when update='in_backward' had "
                "used it already: change it before backward() (scheduler.step() after step()), or use update='in_step'"
            )
        self._refuse_hooks()
        for slot, (version, state) in self._updated.items():
            same = (_version(slot) == version, self._state(slot) == state)
            if not all(same):
                what = f"the optimizer's state of {slot.name!r}" if same[0] else f"the parameter {slot.name!r}"
                raise UsageError(
                    f"{what} was changed between backward() and step(), when update='in_backward' had updated it "
                    "already, so that the change came after the update and not before it: change it before backward() "
                    "or after step(), or use update='in_step'"
                )

    def _refuse_hooks(self) -> None:
        if not self._wrapped_step.is_sliced:
            raise UsageError(
                "a hook before the step was registered, or another function put in the place of the optimizer's step, "
                "which would not see what update='in_backward' has used before: do that before "
                "resireduce.distribute(...), with update='in_step'"
            )

    def _state(self, slot: Slot) -> list[object]:
        """Return what changes when the optimizer's state of `slot` is replaced, or written to other than by `.data`."""
        state = self.optimizer.state.get(slot.parameter, {})
        return [(key, id(one), one._version) if isinstance(one, Tensor) else (key, one) for key, one in state.items()]

    def _options(self) -> list[dict[str, object]]:
        return [
            {key: one.tolist() if isinstance(one, Tensor) else one for key, one in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]


def _version(slot: Slot) -> tuple[int, int]:
    """Return two numbers, one of which changes when the parameter of `slot` is written to, or given other memory.

    Writing through `.data`, or through a view made of that, changes neither.
    """
    return slot.parameter._version, slot.parameter.data_ptr()

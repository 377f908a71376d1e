"""The second half of a step: averages come back, and the wrapped optimizer updates the parameters that have one."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.clip import clip_factor
from resireduce.errors import UsageError
from resireduce.launch import LaunchQueue
from resireduce.momentum import own_momentum
from resireduce.slot import Slot
from resireduce.timeline import Timeline, timed
from resireduce.wrapped_step import WrappedStep


class Updater:
    """Receives messages in the order of their launch, and has the wrapped optimizer update the parameters.

    Streamed, and if the optimizer updates each parameter by itself, averages of at most `chunk_bytes` are alive at
    once: it is called for one slice of them after the other. Otherwise all are brought back for one call.

    Args:
        optimizer: the wrapped one.
        slots: one for each parameter that is averaged.
        queue: where messages come from.
        streamed: whether averages are freed after the update.
        in_backward: whether dense averages are used, and freed, before `step()`.
        waits: whether nothing is updated before all ranks have said that their gradients can be used.
        max_grad_norm: averages are scaled so that their global norm is this at most, which makes all wait, too.

    While it waits, averages that will be used in slices are freed again; their messages are kept, and decompressed a
    second time.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        queue: LaunchQueue,
        *,
        streamed: bool,
        in_backward: bool,
        waits: bool,
        max_grad_norm: float | None,
    ):
        self.optimizer, self.queue, self.streamed, self.max_grad_norm = optimizer, queue, streamed, max_grad_norm
        self.in_backward, self.waits = in_backward, waits or max_grad_norm is not None
        known = {id(slot.parameter) for slot in slots}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._held, self._frozen = {id(p) for p in held}, [p for p in held if id(p) not in known]
        self._parameters = [slot.parameter for slot in slots]
        self.chunk_bytes = largest_layer(slots)
        self.grad_norm: Tensor | None = None
        self._wrapped_step = WrappedStep(optimizer, streamed)
        cost = self._wrapped_step.cost(sum(slot.nbytes for slot in slots))
        if cost is not None:
            warnings.warn(cost, stacklevel=4)  # of distribute()
        self.restart()

    @property
    def timeline(self) -> Timeline | None:
        """That of the pipeline."""
        return self.queue.feedback.timeline

    def restart(self) -> None:
        """Forget what an unfinished step has brought."""
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0
        self._sliced = self.in_backward
        self._early_bytes = 0  # in the backward pass: of dense payloads between their arrival and their update
        self._early_options: list[dict[str, object]] | None = None  # of the groups, at the first early update

    def update_early(self, arrived: Slot) -> None:
        """In the backward pass: use averages as soon as payloads take more than a chunk. `arrived` came just now."""
        self._early_bytes += arrived.nbytes
        while self._early_bytes > self.chunk_bytes and self.queue.next():
            self._early_options = self._early_options or self._group_options()
            self._refuse_hooks()
            slot = self._receive()
            self._early_bytes -= slot.nbytes if slot.present else 0
            self._update_some()

    def refuse(self) -> None:
        """Raise UsageError if the wrapped optimizer would update what nobody averages, or has done so wrongly."""
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
        own = None if self.queue.feedback.momentum is None else own_momentum(self.optimizer)
        if own is not None:
            raise UsageError(
                f"the optimizer has {own} now, beside a compressor that corrects momentum, so that it would be applied "
                "twice: load a state without it, and use a scheduler that leaves it (cycle_momentum=False)"
            )
        if self._early_options is not None and self._early_options != self._group_options():
            raise UsageError(
                "an option of the optimizer was changed between backward() and step(), when update='in_backward' had "
                "used it already: change it before backward() (scheduler.step() after step()), or use update='in_step'"
            )
        if self._early_options is not None:
            self._refuse_hooks()

    def _refuse_hooks(self) -> None:
        if not self._wrapped_step.is_sliced:
            raise UsageError(
                "a hook before the step was registered, which would not see what update='in_backward' has used before: "
                "register it before resireduce.distribute(...), with update='in_step'"
            )

    def skip(self) -> None:
        """Note that a gradient was not finite, and the step is not taken: its norm is not either."""
        if self.max_grad_norm is not None:
            self.grad_norm = torch.tensor(math.inf, device="cpu")

    def finish(self, step: int, flag: bool, loss: Tensor | float | None = None) -> None:
        """Receive all that is under way, and update all parameters that have come.

        flag: this rank's gradient cannot be used. What has not been updated is not, then, on any rank.
        loss: what the closure given to `step` returned, if one was.
        """
        self._sliced = self._wrapped_step.is_sliced
        self.queue.keeps_messages = self._sliced and self.waits
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
            self._updating += self.queue.settle(flag)
        if not self.queue.flagged:
            self._update_rest(loss)
        self._free()

    def _receive(self) -> Slot:
        """Receive the oldest message; in slices, update first if one more average would make more than a chunk."""
        slot = self.queue.next()
        assert slot is not None
        self._make_room(slot)
        self.queue.receive()
        if slot.present:
            self._add(slot)
        return slot

    def _make_room(self, slot: Slot) -> None:
        if self._sliced and self._updating and self._updating_bytes + slot.nbytes > self.chunk_bytes:
            self._update_some()

    def _add(self, slot: Slot) -> None:
        self._updating.append(slot)
        self._updating_bytes += slot.nbytes

    def _measure(self, step: int, flag: bool) -> dict[Slot, Tensor]:
        """Receive everything: the norm of each average, which is freed again if it will be used in slices."""
        norms: dict[Slot, Tensor] = {}

        def measure(slot: Slot) -> None:
            assert slot.parameter.grad is not None
            norms[slot] = torch.linalg.vector_norm(slot.parameter.grad)
            if self._sliced:
                slot.parameter.grad = None

        while self.queue.next():
            slot = self.queue.receive()
            if slot.present:
                measure(slot)
            self.queue.launch(step, complete=True)
        for slot in self.queue.settle(flag):
            measure(slot)
        return dict(sorted(norms.items(), key=lambda item: item[0].index))

    def _use(self, norms: dict[Slot, Tensor]) -> None:
        """Bring back what was measured, scaled so that its global norm is as clip_grad_norm_ would make it."""
        factor = self._factor(list(norms.values()))
        for slot in norms:
            self._make_room(slot)
            if self._sliced:
                self.queue.deliver(slot)
                slot.message = None
            if factor is not None:
                slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]
            self._add(slot)

    def _factor(self, norms: list[Tensor]) -> Tensor | None:
        """What averages of these norms are scaled by, 0-D, if they are to be clipped."""
        if self.max_grad_norm is None or not norms:
            return None
        self.grad_norm, factor = clip_factor(norms, self.max_grad_norm)
        return None if self.max_grad_norm == math.inf else factor

    @timed("update")
    def _update_some(self) -> None:
        """Let the wrapped optimizer update the parameters that have come back; it skips those without `.grad`."""
        self._wrapped_step.some()
        self._free()

    @timed("update")
    def _update_rest(self, loss: Tensor | float | None) -> None:
        self._wrapped_step.whole(loss, self._parameters)

    def _free(self) -> None:
        if self.streamed:
            for slot in self._updating:
                slot.parameter.grad = None
        self._updating, self._updating_bytes = [], 0

    def _group_options(self) -> list[dict[str, object]]:
        groups = self.optimizer.param_groups
        return [
            {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
            for group in ({key: value for key, value in group.items() if key != "params"} for group in groups)
        ]


def largest_layer(slots: Sequence[Slot]) -> int:
    """Bytes of the gradients of the layer that has most: the tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())

"""The second half of a step: averages come back, and the wrapped optimizer updates the parameters that have one."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resireduce.clip import clip_factor
from resireduce.errors import UsageError
from resireduce.launch import LaunchQueue
from resireduce.slot import Slot
from resireduce.streamed_away import StreamedAway
from resireduce.timeline import Timeline, timed


class Updater:
    """Receives messages in the order of their launch. Streamed, at most `chunk_bytes` of averages are alive at once.

    Args:
        waits: whether nothing is updated before all ranks have said that their gradients can be used.
        max_grad_norm: averages are scaled so that their global norm is this at most, which makes all wait, too.

    While it waits streamed averages are freed again; their messages are kept, and decompressed a second time.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        queue: LaunchQueue,
        *,
        streamed: bool,
        waits: bool,
        max_grad_norm: float | None,
    ):
        self.optimizer, self.queue, self.streamed, self.max_grad_norm = optimizer, queue, streamed, max_grad_norm
        self.waits = waits or max_grad_norm is not None
        self.queue.keeps_messages = streamed and self.waits
        known = {id(slot.parameter) for slot in slots}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._held_parameters, self._frozen = len(held), [p for p in held if id(p) not in known]
        self.chunk_bytes = largest_layer(slots)
        self.grad_norm: Tensor | None = None
        self._has_stepped = False
        self._guarded: nn.Parameter | None = None  # where StreamedAway stands
        self.restart()

    @property
    def timeline(self) -> Timeline | None:
        """That of the pipeline."""
        return self.queue.feedback.timeline

    def restart(self) -> None:
        """Forget what an unfinished step has brought."""
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0
        self.dense_bytes = 0  # in the backward pass: of dense payloads between their arrival and their update

    def guard(self, arrived: Sequence[Slot]) -> None:
        """A streamed backward pass is over: from now on who uses one of the gradients that `arrived` is told so."""
        self._clear()
        if arrived and arrived[-1].parameter.grad is None:
            self._guarded = arrived[-1].parameter
            self._guarded.grad = StreamedAway.of(self._guarded)

    def update_early(self, arrived: Slot) -> None:
        """Streamed dense payloads are as large as gradients and must not pile up until the end of the step.

        arrived: whose gradient has just been compressed.
        """
        self.dense_bytes += arrived.nbytes if arrived.dense else 0
        while not self.waits and self.dense_bytes > self.chunk_bytes and self.queue.next():
            self._clear()
            self._receive()
            self._update()

    def finish(self, step: int, flag: bool) -> None:
        """Receive all that is under way, and update all parameters that have come.

        flag: this rank's gradient cannot be used. What has not been updated is not, then, on any rank.
        """
        self._clear()
        if self.waits:
            norms = self._measure(step, flag)
            if not self.queue.flagged:
                self._use(norms)
        else:
            while self.queue.next():
                self._receive()
                self.queue.launch(step, complete=True)
            self._updating += self.queue.settle(flag)
        if not self.queue.flagged:
            self._update()

    def _clear(self) -> None:
        """Make room for the average where StreamedAway stands."""
        if self._guarded is not None and isinstance(self._guarded.grad, StreamedAway):
            self._guarded.grad = None
        self._guarded = None

    def _receive(self) -> None:
        """Receive the oldest message; streamed, update first if one more average would make more than a chunk."""
        slot = self.queue.next()
        assert slot is not None
        self._make_room(slot)
        self.queue.receive()
        if slot.present:
            self._add(slot)

    def _make_room(self, slot: Slot) -> None:
        if self.streamed and self._updating_bytes + slot.nbytes > self.chunk_bytes:
            self._update()

    def _add(self, slot: Slot) -> None:
        self._updating.append(slot)
        self._updating_bytes += slot.nbytes

    def _measure(self, step: int, flag: bool) -> dict[Slot, Tensor]:
        """Receive everything: the norm of each average, which is freed again if gradients are streamed."""
        norms: dict[Slot, Tensor] = {}

        def measure(slot: Slot) -> None:
            assert slot.parameter.grad is not None
            norms[slot] = torch.linalg.vector_norm(slot.parameter.grad)
            if self.streamed:
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
            if self.streamed:
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
        return factor

    @timed("update")
    def _update(self) -> None:
        """Let the wrapped optimizer update the parameters that have come back; it skips those without `.grad`."""
        self._refuse_strangers()
        if self._updating or not self.streamed:
            before = self._group_options()
            self.optimizer.step()
            if self.streamed and not self._has_stepped and self._group_options() != before:
                raise UsageError(
                    f"{type(self.optimizer).__name__}.step() changes its parameter groups; streamed gradients call it "
                    "several times a step, for some parameters each time: use gradients='kept'"
                )
            self._has_stepped = True
        if self.streamed:
            for slot in self._updating:
                slot.parameter.grad = None
                self.dense_bytes -= slot.nbytes if slot.dense else 0
        self._updating, self._updating_bytes = [], 0

    def _refuse_strangers(self) -> None:
        """Parameters that nobody averages must not be updated: ranks would drift apart."""
        stranger = next((p for p in self._frozen if p.grad is not None), None)
        if stranger is not None:
            raise UsageError(
                f"a parameter of shape {tuple(stranger.shape)}, frozen when resireduce.distribute(...) was called, has "
                "a gradient now, which nobody averages: unfreeze before distribute(), or distribute a new optimizer"
            )
        if sum(len(group["params"]) for group in self.optimizer.param_groups) != self._held_parameters:
            raise UsageError("parameters were added to the optimizer after resireduce.distribute(...): add them before")

    def _group_options(self) -> list[dict[str, object]]:
        groups = self.optimizer.param_groups
        return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def largest_layer(slots: Sequence[Slot]) -> int:
    """Bytes of the gradients of the layer that has most: the tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())

"""The second half of a step: averages come back, and the wrapped optimizer updates the parameters that have one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.errors import UsageError
from resireduce.launch import LaunchQueue
from resireduce.slot import Slot
from resireduce.streamed_away import StreamedAway


class Updater:
    """Receives messages in the order of their launch. Streamed, at most `chunk_bytes` of averages are alive at once.

    With `max_grad_norm` all averages are measured before the first is used; streamed, their messages are kept until
    then, and decompressed twice.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        queue: LaunchQueue,
        *,
        streamed: bool,
        max_grad_norm: float | None,
    ):
        self.optimizer, self.queue, self.streamed, self.max_grad_norm = optimizer, queue, streamed, max_grad_norm
        self.queue.keeps_messages = streamed and max_grad_norm is not None
        known = {id(slot.parameter) for slot in slots}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._held_parameters, self._frozen = len(held), [p for p in held if id(p) not in known]
        self.chunk_bytes = _largest_layer(slots)
        self.grad_norm: Tensor | None = None
        self._has_stepped = False
        self.restart()

    def restart(self) -> None:
        """Forget what an unfinished step has brought."""
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0
        self.dense_bytes = 0  # of dense payloads between their gradient's arrival and their update

    def update_early(self) -> None:
        """Streamed dense payloads are as large as gradients and must not pile up until the end of the step."""
        while self.max_grad_norm is None and self.dense_bytes > self.chunk_bytes and self.queue.next():
            self._clear()
            self._receive()
            self._update()

    def finish(self, step: int) -> None:
        """Receive all that is under way, and update all parameters that have come."""
        self._clear()
        if self.max_grad_norm is not None:
            self._clip(self._measure(step), self.max_grad_norm)
        else:
            while self.queue.next():
                self._receive()
                self.queue.launch(step, complete=True)
            self._updating += self.queue.settle()
        self._update()

    def _clear(self) -> None:
        """Make room for the average where StreamedAway stands."""
        parameter = self.queue.last.parameter
        if isinstance(parameter.grad, StreamedAway):
            parameter.grad = None

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

    def _measure(self, step: int) -> dict[Slot, Tensor]:
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
        for slot in self.queue.settle():
            measure(slot)
        return dict(sorted(norms.items(), key=lambda item: item[0].index))

    def _clip(self, norms: dict[Slot, Tensor], largest: float) -> None:
        """Scale what was measured so that its global norm is `largest` at most, as clip_grad_norm_ does."""
        if not norms:
            return
        device = next(iter(norms.values())).device
        self.grad_norm = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms.values()]))
        factor = (largest / (self.grad_norm + 1e-6)).clamp(max=1.0)
        for slot in norms:
            self._make_room(slot)
            if self.streamed:
                self.queue.deliver(slot)
                slot.message = None
            assert slot.parameter.grad is not None
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))
            self._add(slot)

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


def _largest_layer(slots: Sequence[Slot]) -> int:
    """Bytes of the gradients of the layer that has most: the tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())

"""DistributedOptimizer: gradients go out as the backward pass produces them, and come back in `step`.

Kept gradients (the paper's): `.grad` lives on, and takes the averaged gradient. Streamed gradients: as soon as autograd
has finished a gradient it is absorbed by the residual, compressed, and freed; `step` brings the averages back a bounded
number of bytes at a time, and lets the wrapped optimizer update just those parameters.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.grouping import is_small
from resireduce.launch import BUCKET_BYTES, LaunchQueue
from resireduce.slot import Slot
from resireduce.wrapper import OptimizerWrapper

DISTRIBUTED = "_resireduce_distributed"
"""Attribute of the parameters that have a DistributedOptimizer: a second one would compress them twice."""


class DistributedOptimizer(OptimizerWrapper):
    """Made by `resireduce.distribute`, and used where the wrapped one was: `zero_grad()`, `backward()`, `step()`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        feedback: ErrorFeedback,
        *,
        streamed: bool,
        gathered_limit: int | None = None,
        backward_passes_per_step: int = 1,
    ):
        super().__init__(optimizer)
        self.feedback, self.streamed = feedback, streamed
        self.backward_passes_per_step = backward_passes_per_step
        self.steps = 0
        self._syncing, self._failed = True, False
        self._slots = [_slot(index, name, p, feedback) for index, (name, p) in enumerate(parameters.items())]
        known = {id(slot.parameter) for slot in self._slots}
        held = [p for group in self.param_groups for p in group["params"]]
        self._held_parameters, self._frozen = len(held), [p for p in held if id(p) not in known]
        self._chunk_bytes = _largest_layer(self._slots)
        limit = sum(slot.nbytes for slot in self._slots) // 16 if gathered_limit is None else gathered_limit
        self._queue = LaunchQueue(self._slots, feedback, limit)
        self._restart()
        for slot in self._slots:
            if feedback.keeps_residual(slot.name):
                feedback.residual.register(slot.name, slot.parameter)
        for slot in self._slots:
            slot.parameter.grad = None  # one from before is this rank's own, and would be taken for an average
            setattr(slot.parameter, DISTRIBUTED, True)
            slot.parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: self._on_gradient(slot))

    def _restart(self) -> None:
        self._arrived: list[Slot] = []
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0
        self._dense_bytes = 0  # of dense payloads between their gradient's arrival and their update
        self._held = False  # whether an earlier pass of this step left gradients in .grad
        for slot in self._slots:
            slot.present, slot.passes, slot.version = False, 0, None

    def residual_state_dict(self) -> dict[str, Tensor]:
        """This rank's residuals. They differ between ranks: save one file a rank."""
        return self.feedback.residual.state_dict()

    def load_residual_state_dict(self, state: dict[str, Tensor]) -> None:
        """This rank's residuals, as this rank of a job of the same size saved them, and the number of the step.

        Random choices follow from it: with it, the optimizer's and the model's state, training goes on bit for bit.
        """
        self.feedback.residual.load_state_dict(state)
        self.steps = self.feedback.residual.steps

    # --- the backward pass ---

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes only add to `.grad`; the next one outside sends the sum. Holds all gradients."""
        outer, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = outer

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; not between `backward` and `step`, when gradients are already under way."""
        self._refuse_if_failed()
        if self._arrived:
            raise UsageError(
                "zero_grad() between backward() and step(): the gradients are already under way. Call it before "
                "backward(); to add up several passes use optimizer.no_sync() or backward_passes_per_step. After a "
                "backward pass that failed: build model and optimizer anew, on every rank, from a checkpoint"
            )
        self._restart()
        self.wrapped.zero_grad(set_to_none)

    @torch.no_grad()
    def _on_gradient(self, slot: Slot) -> None:
        """Autograd has finished with this parameter's gradient."""
        self._refuse_if_failed()
        if slot.present:
            raise UsageError(
                f"a second backward() reached {slot.name!r} before step(). To add up several passes, run all but the "
                "last within optimizer.no_sync(), or give backward_passes_per_step to resireduce.distribute(...)"
            )
        slot.passes += 1
        if not self._syncing or slot.passes < self.backward_passes_per_step:
            self._held = True
            return
        self._take(slot)
        self._queue.launch(self.steps)
        # Dense payloads are as large as gradients and must not pile up until step(): update early. Not while others
        # hold gradients of earlier passes in .grad, which the wrapped optimizer would take for finished ones.
        while self.streamed and not self._held and self._dense_bytes > self._chunk_bytes and self._queue.next():
            self._receive()
            self._update()

    def _take(self, slot: Slot) -> None:
        """Compress the gradient; streamed, its payload is all that is left of it."""
        grad = slot.parameter.grad
        if grad is None:
            raise UsageError(
                f"the gradient of {slot.name!r} was dropped between two backward passes of one step: call zero_grad() "
                "only before the first"
            )
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        try:
            slot.payload = self.feedback.compress(grad.contiguous(), slot.name, self.steps)
        except NonFiniteGradient:
            self._failed = True
            raise
        slot.present = True
        self._arrived.append(slot)
        if self.streamed:
            slot.parameter.grad = None
            self._dense_bytes += slot.nbytes if slot.dense else 0
        else:
            slot.seal()

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise UsageError(
                "an earlier gradient held NaN or infinity, and this step's messages are half sent: build model and "
                "optimizer anew, on every rank, from a checkpoint"
            )

    # --- the step ---

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Bring the averages back and update all parameters. `closure`, if given, computes loss and gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_if_failed()
        for slot in self._slots:
            if slot.passes and not slot.present:  # its only gradients came in earlier passes of this step
                self._take(slot)
        self._held = False
        self.feedback.residual.end_step()
        self._queue.launch(self.steps, complete=True)
        while self._queue.next():
            self._receive()
            self._queue.launch(self.steps, complete=True)
        self._updating += self._queue.settle()
        self._update()
        self._queue.finish(self._arrived)
        self._restart()
        self.steps += 1
        return loss

    def _receive(self) -> None:
        """Receive the oldest message; streamed, update first if one more average would make more than a chunk."""
        slot = self._queue.next()
        assert slot is not None
        if self.streamed and self._updating_bytes + slot.nbytes > self._chunk_bytes:
            self._update()
        self._queue.receive()
        if slot.present:
            self._updating.append(slot)
            self._updating_bytes += slot.nbytes

    def _update(self) -> None:
        """Let the wrapped optimizer update the parameters that have come back; it skips those without `.grad`."""
        self._refuse_strangers()
        if self._updating or not self.streamed:
            before = self._group_options()
            self.wrapped.step()
            if self.streamed and self.steps == 0 and self._group_options() != before:
                raise UsageError(
                    f"{type(self.wrapped).__name__}.step() changes its parameter groups; streamed gradients call it "
                    "several times a step, for some parameters each time: use gradients='kept'"
                )
        if self.streamed:
            for slot in self._updating:
                slot.parameter.grad = None
                self._dense_bytes -= slot.nbytes if slot.dense else 0
        self._updating, self._updating_bytes = [], 0

    def _refuse_strangers(self) -> None:
        """Parameters that nobody averages must not be updated: ranks would drift apart."""
        stranger = next((p for p in self._frozen if p.grad is not None), None)
        if stranger is not None:
            raise UsageError(
                f"a parameter of shape {tuple(stranger.shape)}, frozen when resireduce.distribute(...) was called, has "
                "a gradient now, which nobody averages: unfreeze before distribute(), or distribute a new optimizer"
            )
        if sum(len(group["params"]) for group in self.param_groups) != self._held_parameters:
            raise UsageError("parameters were added to the optimizer after resireduce.distribute(...): add them before")

    def _group_options(self) -> list[dict[str, object]]:
        return [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]

    # --- what is alive at most ---

    def bounds(self) -> dict[str, int]:
        """Bytes alive at most beside the model states, at any time of a step in streamed mode.

        dense_bytes: gradients, dense payloads and averaged gradients: twice those of the largest layer (autograd makes
        the gradients of weight and bias together), and a message of small tensors with its parts. Tied parameters come
        on top: autograd holds their gradient from their last use to their first. local_bytes: this rank's compressed
        payloads. gathered_bytes: all ranks' payloads of the tensors under way.

        Holds in every step in which gradients arrive in the order of the first step, and in the first if that is the
        reverse order of the model's parameters. A gradient that comes late, or not at all on this rank, holds up those
        behind it: dense payloads then wait for `step()`, and so do messages of tensors that had no gradient here.
        """
        payloads = {}
        for slot in self._slots:
            like = torch.empty(slot.parameter.shape, dtype=slot.parameter.dtype, device="meta")
            payloads[slot] = self.feedback.compressor_of(slot.name).compress(like, slot.name, 0)
        gathered = [self._queue.gathered_nbytes(slot, payload) for slot, payload in payloads.items()]
        small = sum(slot.nbytes for slot in self._slots if slot.small)
        return {
            "dense_bytes": 2 * (self._chunk_bytes + min(BUCKET_BYTES, small)),
            "local_bytes": sum(payload.nbytes for slot, payload in payloads.items() if not slot.dense),
            "gathered_bytes": max(self._queue.gathered_limit, *gathered),
        }


def _slot(index: int, name: str, parameter: nn.Parameter, feedback: ErrorFeedback) -> Slot:
    compressor = feedback.compressor_of(name)
    small = compressor.lossless and is_small(parameter)
    gathered = compressor.collective == "all_gather"
    return Slot(index, name, parameter, dense=compressor.lossless, gathered=gathered, small=small)


def _largest_layer(slots: list[Slot]) -> int:
    """Bytes of the gradients of the layer that has most: the tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())

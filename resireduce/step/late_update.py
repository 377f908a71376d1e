"""The second half of a step whose averages are gathered in the next forward pass, where parameters are updated."""

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor

from resireduce.clip import clip_factor
from resireduce.errors import UsageError
from resireduce.exactly import exactly
from resireduce.settings import Settings
from resireduce.step.halves import Half, HalvesQueue
from resireduce.step.outdated import BeforeForward, LateUpdate
from resireduce.step.slot import Slot
from resireduce.step.update import Updater


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

    def refuse(self) -> None:
        """Refuse as `Updater` does, and hooks before the step, or another step, which would find no gradients."""
        super().refuse()
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
            self._updates = [
                LateUpdate(slots, handle, self._wrapped_step.part, groups, self._lock)
                for half, handle in gathered
                if (slots := _of(half, present))
            ]

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


def _of(half: Half, present: frozenset[Slot]) -> list[tuple[Slot, int]]:
    """Return the slots of a message that had a gradient on any rank, each with its place in the average."""
    return [(slot, start) for slot, start in half.placed() if slot in present]

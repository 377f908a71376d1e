"""A watch on the wrapped optimizer: what must not change between `resireduce.distribute` and a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.errors import UsageError
from resireduce.momentum import own_momentum
from resireduce.step.slot import Slot
from resireduce.wrapped_step import WrappedStep


class Watch:
    """Refuses a step if the wrapped optimizer has been changed in a way that would train wrongly.

    Args:
        optimizer: the wrapped optimizer, as it is now.
        slots: one for each parameter that is averaged.
        wrapped_step: how it is called.
        corrects_momentum: whether a compressor forms momentum in its place.
    """

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

    @property
    def has_used(self) -> bool:
        """Whether options have been used in the backward pass."""
        return self._used is not None

    def note_use(self) -> None:
        """Remember the options, which are about to be used in the backward pass. UsageError if a hook would miss it."""
        self._used = self._used or self._options()
        self._refuse_hooks()

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
        if self._used is not None:
            self._refuse_after_use()

    def _refuse_after_use(self) -> None:
        """Raise UsageError if something has changed since it was used in the backward pass."""
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
        groups = self.optimizer.param_groups
        return [
            {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
            for group in ({key: value for key, value in group.items() if key != "params"} for group in groups)
        ]


def _version(slot: Slot) -> tuple[int, int]:
    """Return two numbers, one of which changes when the parameter of `slot` is written to, or given other memory.

    Writing through `.data`, or through a view made of that, changes neither.
    """
    return slot.parameter._version, slot.parameter.data_ptr()

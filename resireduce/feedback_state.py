"""What error feedback keeps from step to step, saves and loads: residuals, velocities and compressor states."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.finiteness import Finiteness
from resireduce.momentum import MomentumCorrection
from resireduce.residuals.base import Residual
from resireduce.saved_state import check_levels, check_place, check_state, origin
from resireduce.sending.messenger import Messenger


class FeedbackState(Messenger):
    """A messenger that holds this rank's residuals and what else is kept from step to step.

    Args:
        compressor, communicator, dense, warm_up_steps: as for `Messenger`.
        residual: holds the errors; it belongs to a scheme.
        place: this rank's number and the number of ranks, by the names in a saved state; None: those of the
            communicator.
    """

    def __init__(
        self,
        compressor: Compressor,
        residual: Residual,
        communicator: Communicator,
        dense: frozenset[str],
        warm_up_steps: int = 0,
        place: Mapping[str, int] | None = None,
    ):
        super().__init__(compressor, communicator, dense, warm_up_steps)
        self.residual = residual
        self._blank = deepcopy(residual)  # nothing is registered yet
        self.place = place or {"rank": communicator.rank, "world_size": communicator.world_size}
        """Which rank of how many this is, for saved states and random seeds; by default the communicator's."""
        settings = self.compressor.momentum
        self.momentum = None if settings is None else MomentumCorrection(settings)
        self.finiteness = Finiteness()
        """Decides which gradients are refused: each at once, unless the code that takes steps clears `at_once`."""
        self.checked_packed: frozenset[str] = frozenset()
        """Names of dense tensors that always share a message. Where gradients are not checked at once, these are
        checked together when the message is packed."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate what tensor `name`, shaped like `parameter`, needs between two steps."""
        if self.momentum is not None:
            self.momentum.register(name, parameter)
        if name not in self._dense:
            self.states.register(name, parameter)
        if self.keeps_residual(name):
            self.residual.register(name, parameter)

    def state_dict(self, step: int) -> dict[str, Tensor]:
        """Return this rank's residuals, velocities and compressor states.

        It also holds the number of the next `step`, and which rank of how many this is.
        """
        memory = self.states.tensors() | ({} if self.momentum is None else self.momentum.tensors())
        return (
            self.residual.tensors()
            | memory
            | origin(self.compressor.memory if memory else "", self.residual.meaning())
            | {"steps": torch.tensor(step, device="cpu")}
            | {key: torch.tensor(value, device="cpu") for key, value in self.place.items()}
        )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> int:
        """Copy `state` into the tensors held; return the number of the next step, which it contains.

        ConfigError, before anything is changed, if it does not fit them.
        """
        held = self.state_dict(0)
        check_levels(held, state)
        check_place(held, state)
        check_state(held, state)
        self.residual.load(state)
        self.states.load(state)
        for name, velocity in ({} if self.momentum is None else self.momentum.tensors()).items():
            velocity.copy_(state[name])
        return int(state["steps"])

    def reader(self, place: Mapping[str, int]) -> Self:
        """Return a pipeline like this one for the rank at `place`, with nothing registered, to load what it saved."""
        residual = deepcopy(self._blank)
        return type(self)(self.compressor, residual, self.communicator, self._dense, self.warm_up_steps, place)

    def keeps_residual(self, name: str) -> bool:
        """Whether tensor `name` has a residual."""
        return name not in self._dense and not self.compressor.lossless

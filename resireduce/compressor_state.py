"""The states that a compressor keeps, tensor by tensor, from step to step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor, State


class CompressorStates:
    """This rank's states of one compressor, by tensor. A step's changes take effect once the step has been taken.

    A compressor works on copies, which `commit` puts in place of the held states; a step that is skipped, or that
    fails, is not committed, and the next step finds the earlier states.

    Args:
        compressor: the compressor of the states; most have none.
    """

    def __init__(self, compressor: Compressor):
        self._compressor = compressor
        self._held: dict[str, State] = {}
        self._working: dict[str, State] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Hold the initial state of tensor `name`, shaped like `parameter` and on its device."""
        state = self._compressor.state(parameter.shape, parameter)
        if state:
            self._held[name] = state

    def has(self, name: str) -> bool:
        """Whether tensor `name` has a state."""
        return name in self._held

    def working(self, name: str) -> State | None:
        """Return the copy of tensor `name`'s state that this step may change; None if it has no state."""
        if name not in self._held:
            return None
        return self._working.setdefault(name, self.copied(name))

    def copied(self, name: str) -> State:
        """Return a copy of the state of tensor `name`, whose changes are not kept; empty if it has no state."""
        return {key: tensor.clone() for key, tensor in self._held.get(name, {}).items()}

    def commit(self) -> None:
        """Keep this step's changes of the states: the step has been taken."""
        for name, state in self._working.items():
            for key, tensor in state.items():
                self._held[name][key].copy_(tensor)
        self.drop()

    def drop(self) -> None:
        """Forget this step's changes of the states."""
        self._working = {}

    def keep(self, name: str) -> None:
        """Forget this step's changes of the state of tensor `name`."""
        self._working.pop(name, None)

    def tensors(self) -> dict[str, Tensor]:
        """Return all states, by names that no residual has."""
        return {
            f"compressor.{name}.{key}": tensor for name, state in self._held.items() for key, tensor in state.items()
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the values that `state` has for `tensors()` into the tensors held, and forget what is under way."""
        self.drop()
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])

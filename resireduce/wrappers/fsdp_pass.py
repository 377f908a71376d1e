"""The end of a backward pass under FSDP2, which does not say itself which unit is the last to be reduced."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.autograd import Variable

from resireduce.wrappers.fsdp_unit import Unit


class PassEnd:
    """Calls `end` at the end of each backward pass in which `expect` has been called.

    A pass may leave out any unit, as stochastic depth does, and reduce another one twice, so that a count of units does
    not show its end.

    Args:
        units: those of the model.
        end: is called once all of them that are reduced in the pass have been.
    """

    def __init__(self, units: Sequence[Unit], end: Callable[[], None]):
        self._units, self._end = units, end
        self._task = -1
        self.stream: torch.cuda.Stream | None = None
        """The stream on which units are reduced, if they are on a GPU: `end` is called on it, too."""

    @property
    def is_under_way(self) -> bool:
        """Whether FSDP is within a backward pass."""
        return any(unit.is_in_backward for unit in self._units)

    @property
    def is_by_hand(self) -> bool:
        """Whether units are reduced outside of any pass: torch's pipelines do so after those of all microbatches."""
        return bool(torch._C._current_graph_task_id() == -1)

    def expect(self) -> bool:
        """Within a pass: have `end` called at its end. Return whether autograd has begun a pass since the last call.

        A reentrant activation checkpoint runs passes within the pass.
        """
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return False
        self._task = task
        self._later(is_last=False)
        return True

    def _later(self, is_last: bool) -> None:
        Variable._execution_engine.queue_callback(partial(self._check, is_last))

    def _check(self, is_last: bool) -> None:
        """End, unless FSDP may have units to reduce in callbacks after this one, or this pass is within another."""
        if self.is_under_way:
            if not is_last:
                self._later(is_last=True)
        elif self.stream is None:
            self._end()
        else:
            with torch.cuda.stream(self.stream):
                self._end()
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

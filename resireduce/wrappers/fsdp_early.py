"""Units that FSDP2 reduces before their gradients have come: these are zeros, which need no exchange.

With `set_reduce_scatter_unused_params(True)` a module that is called several times is reduced once for each call, while
autograd makes the gradients of its parameters at the last.
"""

import torch
from torch import Tensor

from resireduce.accumulation import accumulation_node
from resireduce.errors import UsageError
from resireduce.wrappers.fsdp_unit import Unit


class Early:
    """Knows whether the gradients of one unit are still to come in the backward pass that reduces it.

    Args:
        unit: is watched from the next forward pass on.
    """

    def __init__(self, unit: Unit):
        self._unit = unit
        self._watched: list[Tensor] = []
        self._has_come = False
        unit.module.register_forward_pre_hook(self._watch)  # type: ignore[attr-defined]

    def is_early(self) -> bool:
        """Whether no gradient has come since the last call, and some will in this pass; the same on all ranks.

        FSDP then reduces the unit again; what it reduces now are zeros.
        """
        came, self._has_come = self._has_come, False
        is_by_hand = torch._C._current_graph_task_id() == -1  # after all passes
        if came or is_by_hand or not self._unit.makes_zeros:
            return False
        gathered = self._unit.gathered()
        known = all(any(one is other for other in self._watched) for one in gathered)
        return known and any(map(_will_come, gathered))

    @torch.compiler.disable
    def _watch(self, *_: object) -> None:
        """Before a forward pass, when FSDP has gathered the unit: watch for the gradients that it will have.

        Raises UsageError if FSDP is still within a backward pass, which has failed.
        """
        if self._unit.is_in_backward and torch._C._current_graph_task_id() == -1:
            raise UsageError(
                "an earlier backward pass failed half-way, after which FSDP neither reduces nor reshards some units: "
                "build model and optimizer anew, on every rank, from a checkpoint"
            )
        if not self._unit.makes_zeros:
            return
        for one in self._unit.gathered():
            if not any(one is other for other in self._watched):
                self._watched.append(one)
                one.register_post_accumulate_grad_hook(self._note)

    @torch.compiler.disable
    def _note(self, _: Tensor) -> None:
        self._has_come = True


def _will_come(parameter: Tensor) -> bool:
    """Whether the backward pass under way makes, or has made, a gradient of `parameter`."""
    return bool(torch._C._will_engine_execute_node(accumulation_node(parameter)))

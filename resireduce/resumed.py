"""Whether training goes on from a checkpoint of which the residuals were forgotten."""

import warnings
from collections.abc import Mapping
from typing import Any

from resireduce.residuals.base import Residual


class Resumed:
    """What has been loaded since the last step of an optimizer."""

    def __init__(self) -> None:
        self._optimizer = self._residuals = False

    def optimizer(self, state_dict: Mapping[str, Any]) -> None:
        """Note that the wrapped optimizer was given `state_dict`; without state it is one that took no steps."""
        self._optimizer = bool(state_dict.get("state"))

    def residuals(self) -> None:
        """Note that residuals were loaded, or that a step was named from which to go on."""
        self._residuals = True

    def warn(self, residual: Residual) -> None:
        """At a step: warn if the optimizer's state was loaded, but not what `residual` stores, if it does."""
        forgotten = self._optimizer and not self._residuals
        self._optimizer = self._residuals = False
        if forgotten and residual.tensors():
            warnings.warn(
                "the optimizer's state was loaded, but not the residuals: what was left unsent before is lost, and "
                "random choices begin anew. Save residual_state_dict() of every rank, and load it by "
                "load_residual_state_dict(...), or by resireduce.redistribute(...) on another number of ranks; if "
                "that state is of training without compression, call start_at(0)",
                stacklevel=3,
            )

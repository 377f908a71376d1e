"""An optimizer around another one: the same parameter groups and state, so that schedulers work on either."""

from typing import Any

import torch

from resireduce.errors import UsageError


class OptimizerWrapper(torch.optim.Optimizer):
    """Shares `param_groups`, `state`, `defaults` and `state_dict` with the optimizer `wrapped`."""

    def __init__(self, wrapped: torch.optim.Optimizer):
        self.wrapped = wrapped
        super().__setstate__({})  # what Optimizer.__init__ sets up, without parameter groups of its own

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.wrapped.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.wrapped.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.wrapped.defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler asks for it before a step: gradients must be unscaled before they are compressed."""
        raise UsageError(
            "torch's GradScaler cannot unscale gradients that are under way already: use resireduce.GradScaler and "
            "give it to resireduce.distribute(grad_scaler=...), or bfloat16 autocast, which needs no scaling"
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refused: copies would not get gradients."""
        raise UsageError(
            "a DistributedOptimizer cannot be copied or pickled; save state_dict() and residual_state_dict(), and call "
            "resireduce.distribute(...) again"
        )

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's: the same on every rank. Residuals are in `residual_state_dict`."""
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.wrapped.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: residuals and groups are set up for the parameters known at the start."""
        raise UsageError("add_param_group: add the group to the optimizer before resireduce.distribute(...)")

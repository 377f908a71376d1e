"""An optimizer around another one: the same parameter groups and state, so that schedulers work on either."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from resireduce.errors import UsageError

REPLACED = (
    "wrapped: another optimizer in the place of the first would take no steps. To go on with it, keep "
    "copy.deepcopy(optimizer.residual_state_dict()) of what resireduce.distribute(...) returned, close() that, "
    "distribute the other, and give it what was kept by load_residual_state_dict(...)"
)


def _forwarded(name: str) -> Any:
    """Return a method that calls the wrapped optimizer's of that name."""

    def method(self: "OptimizerWrapper", *args: Any, **kwargs: Any) -> Any:
        return getattr(self.wrapped, name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, f"As the wrapped optimizer's `{name}`, which the hook is given."
    return method


class OptimizerWrapper(torch.optim.Optimizer):
    """Shares `param_groups`, `state`, `defaults` and `state_dict` with the optimizer `wrapped`."""

    def __init__(self, wrapped: torch.optim.Optimizer):
        self.wrapped = wrapped
        super().__setstate__({})  # what Optimizer.__init__ sets up, without parameter groups of its own

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what only the wrapped optimizer has there, as it is read from there.

        Raises UsageError for another optimizer in the place of the wrapped one.
        """
        wrapped = self.__dict__.get("wrapped")
        if name == "wrapped" and wrapped is not None and value is not wrapped:
            raise UsageError(REPLACED)
        known = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if not known and wrapped is not None and hasattr(wrapped, name):
            setattr(wrapped, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the wrapped optimizer."""
        return self.wrapped.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: list[dict[str, Any]]) -> None:
        self.wrapped.param_groups = param_groups

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.wrapped.state

    @state.setter
    def state(self, state: Any) -> None:
        self.wrapped.state = state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the wrapped optimizer."""
        return self.wrapped.defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Raise UsageError: torch's GradScaler asks for it before a step, too late to unscale gradients."""
        raise UsageError(
            "torch's GradScaler cannot unscale gradients that are under way already: use resireduce.GradScaler and "
            "give it to resireduce.distribute(grad_scaler=...), or bfloat16 autocast, which needs no scaling"
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: copies would not get gradients."""
        raise UsageError(
            "a DistributedOptimizer cannot be copied or pickled; save state_dict() and residual_state_dict(), and call "
            "resireduce.distribute(...) again"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, the same on every rank; residuals are in `residual_state_dict`."""
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load `state_dict` into the wrapped optimizer."""
        self.wrapped.load_state_dict(state_dict)

    # Hooks are those of the wrapped optimizer, which run when it has the averages and its state.
    register_step_pre_hook = _forwarded("register_step_pre_hook")
    register_step_post_hook = _forwarded("register_step_post_hook")
    register_state_dict_pre_hook = _forwarded("register_state_dict_pre_hook")
    register_state_dict_post_hook = _forwarded("register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _forwarded("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _forwarded("register_load_state_dict_post_hook")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise UsageError: residuals and groups are set up for the parameters known at the start."""
        raise UsageError("add_param_group: add the group to the optimizer before resireduce.distribute(...)")


def takes_one(method: Callable[..., object]) -> bool:
    """Whether `method` may be given one argument: `zero_grad()` of some optimizers takes none."""
    try:
        inspect.signature(method).bind(True)
    except TypeError:
        return False
    except ValueError:  # not known
        return True
    return True

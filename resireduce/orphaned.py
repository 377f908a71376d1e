"""Mistakes beside the library: training without its distributed optimizer, which is gone, and torch's GradScaler.

And how other objects of a script are found or followed: all of a class, and the steps of all optimizers.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from resireduce.errors import warn

TRAINED_ON = (
    "what resireduce.distribute(...) returned is gone, and the model is trained on: nobody averages its gradients any "
    "more, so that ranks differ from now on. Keep it, and call its step(); where a trainer makes its optimizer anew, "
    "distribute that one too, in the function that makes it. If each rank is to train by itself, close() it before"
)
SCALER = (
    "torch's GradScaler has unscaled gradients before this step: it leaves out a step if those of this rank overflow, "
    "whatever the other ranks do, so that ranks then wait for each other or differ. Use bfloat16, which needs no "
    "scaling, or resireduce.GradScaler(...), given to resireduce.distribute(grad_scaler=...). If that scaler is of "
    "another model, nothing is wrong"
)


class Orphans:
    """Warns once if a backward pass reaches one of `parameters`, whose distributed optimizer is gone.

    Parameters that DistributedDataParallel averages by then give no warning.
    """

    def __init__(self, parameters: Iterable[Tensor]):
        trained = [one for one in parameters if one.requires_grad]
        self._handles = [one.register_post_accumulate_grad_hook(self) for one in trained]

    @torch.compiler.disable
    def __call__(self, parameter: Tensor) -> None:
        """Look at the first `parameter` that has a gradient."""
        self.end()
        wrappers = objects(DistributedDataParallel)
        if not any(one is parameter for wrapper in wrappers for one in wrapper.parameters()):
            warn(TRAINED_ON)

    def end(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


def end_watch(parameters: Iterable[Tensor]) -> None:
    """Stop watching `parameters`, which are averaged again."""
    for parameter in parameters:
        for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
            if isinstance(hook, Orphans):
                hook.end()


def warn_of_scaler() -> None:
    """Warn if a GradScaler of torch has taken a step and no update since, as where a trainer steps another optimizer.

    If it had been given the library's optimizer, that would have raised an error.
    """
    for scaler in objects(torch.amp.GradScaler):
        if scaler.is_enabled() and scaler._per_optimizer_states and not hasattr(scaler, "inverse_scale"):
            return warn(SCALER)


def objects(kind: type) -> list[Any]:
    """Return all objects of class `kind`, written in Python, in this process: they cannot be found from a model.

    They are found as those that refer to their class. A list of all objects would also hold tuples that other threads
    are still filling, which then fail to.
    """
    kinds = {kind}
    left = [kind]
    while left:
        more: set[type] = set(type.__subclasses__(left.pop())) - kinds
        kinds |= more
        left += more
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]


class FollowsSteps(Protocol):
    """What looks at the steps of optimizers."""

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at a step of `optimizer`, which has ended."""


_FOLLOWERS: dict[int, "weakref.ref[FollowsSteps]"] = {}
"""Those that `_tell` calls, by their id."""


def after_steps(follower: FollowsSteps) -> Callable[[], object]:
    """Have `note_step` of `follower` called after each step of any optimizer, until it is gone, or the returned
    function is called. It is held weakly."""
    _FOLLOWERS[id(follower)] = weakref.ref(follower)
    end = weakref.finalize(follower, _FOLLOWERS.pop, id(follower), None)
    end.atexit = False
    return end


@torch.compiler.disable
def _tell(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for place in tuple(_FOLLOWERS.values()):  # a copy, as followers come and go in other threads
        if (one := place()) is not None:
            one.note_step(optimizer)


# Once for all followers, and for good: torch goes through its hooks while another thread makes an optimizer, or while
# garbage collection ends one, and a hook that then comes or goes would end that step with an error.
register_optimizer_step_post_hook(_tell)

"""What stands in `.grad` for a gradient that has been streamed away, so that using it is an error and not a zero."""

from typing import Any

import torch
from torch import Tensor

from resireduce.errors import UsageError


class StreamedAway(Tensor):
    """Shape and dtype of a gradient without its values; anything done with it raises UsageError.

    Without it `clip_grad_norm_` would find no gradients between `backward()` and `step()`, return a norm of 0, and
    training would go on unclipped.
    """

    @classmethod
    def of(cls, parameter: Tensor) -> "StreamedAway":
        """One for this parameter; it takes one element of memory."""
        element = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        return element.expand(parameter.shape).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse."""
        raise UsageError(
            f"{getattr(func, '__name__', func)}: gradients have been streamed, that is compressed and freed during "
            "backward(). To clip them give max_grad_norm to resireduce.distribute(...) and switch the trainer's own "
            "clipping off; to look at them use gradients='kept'"
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what comes from C++ code: DistributedDataParallel, which copies its averages into `.grad`."""
        raise UsageError(
            f"{func}: gradients have been streamed, and new ones are put in their place. Call step() before another "
            "backward() (or announce several: no_sync, backward_passes_per_step); and take the model out of "
            "DistributedDataParallel, or use resireduce.compress_ddp(...) instead of resireduce.distribute(...)"
        )

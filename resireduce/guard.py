"""What stands in the place of a streamed gradient: the guard, of which every use is refused."""

from typing import Any

import torch
from torch import Tensor

from resireduce import private
from resireduce.errors import UsageError

SECOND_BACKWARD = (
    "a second backward() reached {name!r} before step(). To add up several passes, run all but the last within "
    "optimizer.no_sync(), or give backward_passes_per_step to resireduce.distribute(...). If that pass was meant for "
    "another model (a GAN's generator, through the discriminator): call requires_grad_(False) on this one for its "
    "time; if it was for the gradient of an input, use torch.autograd.grad(loss, input); if a checkpoint runs this "
    "layer several times, give it use_reentrant=False; and if the pass before failed half-way, as for want of memory, "
    "go on from a checkpoint, or close() the optimizer on every rank and distribute it anew"
)
WAS_DROPPED = (
    "the gradient of {name!r} was replaced, or dropped by model.zero_grad(), between two backward passes or between "
    "backward() and step(), when it was already under way: that would have no effect. Call zero_grad() only before the "
    "first pass, and scale the loss instead of gradients, or use gradients='kept'; and take the model out of "
    "DistributedDataParallel, if it is in one"
)
AROUND_MOVES = (
    Tensor.is_floating_point,
    Tensor.is_complex,
    private.moves_in_place,
    Tensor.data.__set__,  # type: ignore[attr-defined]
)
"""What Module.cpu(), cuda() and to() ask of a gradient before they move it, and by what they put the moved one back."""


class StreamedAway(Tensor):
    """Shape and dtype of a gradient without its values; anything done with it raises UsageError.

    Without it `clip_grad_norm_` would find no gradients between `backward()` and `step()`, return a norm of 0, and
    training would go on unclipped. A model that is moved leaves it where it is: trainers move theirs when training ends
    or fails, perhaps with passes that no step has followed. A step after a parameter was moved is refused there.
    """

    owner: str
    """The name of the parameter that it stands for, as the model calls it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise UsageError, whatever was called, except by a model that is moved."""
        if func in (Tensor.cpu, Tensor.cuda, Tensor.to) and isinstance(args[0], cls):
            return args[0]
        if func in AROUND_MOVES and all(isinstance(one, cls) for one in args):
            return super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", func)
        used = getattr(func.__self__, "__name__", name) if name in ("__get__", "__set__") else name  # which attribute
        raise UsageError(
            f".grad was used ({used}): gradients have been streamed, that is compressed and sent during backward(). To "
            "clip them give max_grad_norm to resireduce.distribute(...) and switch the trainer's own clipping off; "
            "for their norm max_grad_norm=inf and optimizer.grad_norm; to look at or change them gradients='kept'; to "
            "update by another optimizer, or by its functional form, distribute that one"
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what comes from C++ code: autograd, which adds up, and DistributedDataParallel, which copies."""
        guard = next(value for value in private.tree_leaves((args, kwargs)) if isinstance(value, StreamedAway))
        if func in (torch.ops.aten.add_.Tensor, torch.ops.aten.add.Tensor):  # the second with create_graph=True
            raise UsageError(SECOND_BACKWARD.format(name=guard.owner))
        raise UsageError(
            f"{func}: the gradient of {guard.owner!r} has been streamed, and somebody else takes it for one of its "
            "own. Take the model out of DistributedDataParallel, or use resireduce.compress_ddp(...) instead of "
            "resireduce.distribute(...)"
        )

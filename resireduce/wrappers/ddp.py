"""`resireduce.compress_ddp`: kept gradients for a model in DistributedDataParallel, even if a trainer has wrapped it.

The wrapper works as usual: it collects gradients in buckets, hands each bucket to the hook while the backward pass is
still running, and leaves the averages in `.grad` when `backward()` returns. Clipping, `no_sync()` and any optimizer
work on them as usual.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from resireduce.comm.torch import TorchCommunicator
from resireduce.compressors.base import Compressor
from resireduce.core.bucket import Slot
from resireduce.errors import ConfigError, UsageError
from resireduce.grouping import Grouping
from resireduce.scheme import Scheme
from resireduce.wrappers.hooks import HookState


def compress_ddp(
    model: DistributedDataParallel,
    scheme: str | Scheme = "w+2d",
    compressor: str | Compressor = "topk",
    density: float | Callable[[int], float] = 0.01,
    groups: str | Grouping | Mapping[str, object] = "auto",
    residual_dtype: str | None = None,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    residual_device: str | None = None,
    warm_up_steps: int = 0,
) -> "CompressionHook":
    """Make `model` average compressed gradients over the ranks of its process group, with error feedback.

    It does the same arithmetic as `resireduce.distribute(..., gradients="kept")`, for trainers that wrap the model
    themselves: bit for bit on two ranks; on more, an all-reduce may round in another order. Call it once, before the
    first backward pass. Parameter names are those of the wrapped model, without "module.".

    Args:
        model: in DistributedDataParallel, without a communication hook, or an optimizer in its backward pass.
        scheme, compressor, density, groups, residual_dtype, dense, options, residual_device, warm_up_steps: as in
            `resireduce.distribute`. With a compressor that corrects momentum (dgc-momentum) the optimizer must have
            none, which the hook cannot check.

    Raises ConfigError, before anything is changed, for a setting that cannot be used. `backward()` raises
    NonFiniteGradient on the rank that meets NaN or infinity; the others wait for it, as for any rank that fails.
    GradScaler therefore cannot be used (a warning), since its scaled gradients overflow at times; bfloat16 needs none.
    UsageError of `backward()` says what a pass without `no_sync()` made wrong.
    """
    given = {name: value for name, value in locals().items() if name != "model"}
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model: an object of type {type(model).__name__} is not allowed; give the DistributedDataParallel around "
            "your model, or use resireduce.distribute(model, optimizer, ...), which needs none"
        )
    hook = CompressionHook(given, model)
    model.register_comm_hook(hook, CompressionHook.reduce)
    return hook


class CompressionHook(HookState):
    """Made by `compress_ddp`: holds this rank's residuals, and the messages under way within one backward pass.

    Messages leave in the order of the buckets, which is the same on all ranks, over the wrapper's own process group,
    and are received when the last bucket comes; beyond a sixteenth of all gradients the oldest gathered ones before.

    It takes the options `given`, and compresses the gradients that the wrapper, `model`, averages.
    """

    def __init__(self, given: Mapping[str, Any], model: DistributedDataParallel):
        named, skipped = dict(model.module.named_parameters()), model.parameters_to_ignore
        parameters = {name: one for name, one in named.items() if one.requires_grad and name not in skipped}
        ignored = [one for name, one in named.items() if name in skipped]
        reason = (
            "unfrozen or added after DistributedDataParallel(...), which does not know it, so that each rank has its "
            "own gradient of it: do that before the model is wrapped, or wrap it anew"
        )
        communicator = TorchCommunicator(model.process_group, shares=True)
        super().__init__(given, model.module, parameters, communicator, reason, ignored)
        self._slot_of: dict[Tensor, Slot] = {slot.parameter: slot for slot in self.slots}
        self._strides = {slot: _strides(slot.parameter) for slot in self.slots}
        self._results: list[tuple[Future[Tensor], Tensor]] = []  # of the buckets of this pass
        self._aside: list[tuple[Slot, Tensor, Tensor]] = []  # where an average comes, and what was there
        self._present: set[Tensor] = set()  # has a gradient, from this pass or from an earlier one within `no_sync()`
        for slot in self.slots:
            slot.parameter.register_post_accumulate_grad_hook(self._present.add)

    @property
    def _is_within_step(self) -> bool:
        return bool(self._results)

    @torch.compiler.disable
    @torch.no_grad()
    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Launch the messages of a `bucket`, whose memory receives the averages; the last bucket completes the futures.

        Raises NonFiniteGradient, which names the parameter, if a gradient holds NaN or infinity; UsageError for sparse
        gradients, and for a parameter that was frozen after it was wrapped; ConfigError, in the first pass, if ranks go
        on from different steps. The wrapper refuses to go on after a step that has failed.
        """
        if not self._is_known:
            self._look_around(self._slot_of, {})
        if any(parameter not in self._slot_of for parameter in bucket.parameters()):
            raise UsageError(
                "a parameter was frozen between DistributedDataParallel(...) and resireduce.compress_ddp(...): freeze "
                "before the model is wrapped"
            )
        slots, buffer = [self._slot_of[parameter] for parameter in bucket.parameters()], bucket.buffer()
        if buffer.layout != torch.strided:
            raise UsageError(f"the gradient of {slots[0].name!r} is sparse: make its layer with sparse=False")
        pairs = zip(slots, buffer.split([slot.parameter.numel() for slot in slots]), strict=True)
        views = {slot: part.as_strided(slot.parameter.shape, self._strides[slot]) for slot, part in pairs}
        self._send(views, buffer)
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._results.append((future, buffer))
        if bucket.is_last():
            self._receive_all()
            self._put_back()
            self._consider_absent()
            self._end_step()
            for complete, average in self._results:
                complete.set_result(average)
            for held in (self._results, self._aside, self._present):
                held.clear()
        return future

    def _take(self, slot: Slot, grad: Tensor) -> Tensor | None:
        """Return what is to be compressed of a gradient; None if this rank has none in this pass, and sends zeros."""
        if slot.parameter in self._present:
            return super()._take(slot, grad)
        if slot.parameter.grad is not None and grad.any():  # left by an earlier pass
            if self.feedback.compressor_of(slot.name).lossless:  # sent dense: averaged anew, as without a hook
                return super()._take(slot, grad)
            self._aside.append((slot, grad, grad.clone()))
        grad.zero_()
        return None

    def _put_back(self) -> None:
        """Put back what is aside, of tensors that no rank has used in this pass; UsageError if another rank has."""
        for slot, place, left in self._aside:
            if place.any():
                raise UsageError(
                    f"{slot.name!r} was not used in this pass on this rank, where .grad holds an earlier average of "
                    "it, but it was on others: it cannot be averaged with theirs any more. Accumulate within "
                    "model.no_sync(), and call zero_grad() after each step"
                )
            place.copy_(left)

    def _consider_absent(self) -> None:
        """Leave the compressor's state of a tensor as it was if no rank had a gradient: all have sent zeros."""
        learns = self.feedback.compressor.collective != "all_gather"  # by what all ranks send
        learning = [slot for slot in self.slots if learns and slot.name in self.feedback.states.held]
        if not learning and self.feedback.compressor.momentum is None:
            return
        ranks = self.feedback.communicator
        here = torch.tensor([int(slot.parameter in self._present) for slot in self.slots], device=ranks.control_device)
        present: list[int] = ranks.all_reduce(here, "resireduce.presence").wait().tolist()
        self.feedback.velocities.check_present(present, ranks.world_size)
        for slot in learning:
            if not present[slot.index]:
                self.feedback.states.changed.pop(slot.name, None)


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """Return how the wrapper lays out a gradient in a bucket: like its `parameter`, if that has no gaps or overlaps."""
    like = torch.empty_like(parameter, device="meta").stride()  # without gaps
    return like if like == parameter.stride() else torch.empty(parameter.shape, device="meta").stride()

"""`resireduce.compress_ddp`: kept gradients for a model in DistributedDataParallel, even if a trainer has wrapped it.

The wrapper works as usual: it collects gradients in buckets, hands each bucket to the hook while the backward pass is
still running, and leaves the averages in `.grad` when `backward()` returns. Clipping, `no_sync()` and any optimizer
work on them as usual.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from resireduce import private
from resireduce.comm.torch import TorchCommunicator
from resireduce.compressors.base import Compressor
from resireduce.core.bucket import Slot, Stage, accumulation_node, make_slots
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.step import refuse_partly_absent
from resireduce.errors import ConfigError, UsageError, warn
from resireduce.grouping import Grouping
from resireduce.pipeline import build_feedback, find_compressor
from resireduce.scheme import Scheme
from resireduce.settings import Settings
from resireduce.start import STEP, agree
from resireduce.watchers import Outside, is_distributed
from resireduce.wrappers.hooks import WATCHED, FirstSteps, HookState, Messages

UNKNOWN = (
    "unfrozen or added after DistributedDataParallel(...), which does not know it, so that each rank has its own "
    "gradient of it: do that before the model is wrapped, or wrap it anew"
)
ASSIGNED = (
    "the model no longer has all parameters that DistributedDataParallel averages, as load_state_dict(assign=True) "
    "replaces them, and each rank trains the new ones by itself: leave assign out, or load before the model is wrapped"
)
CONVERTED = (
    "{name!r} was converted or moved after {before}, and DistributedDataParallel averages it no longer, with or "
    "without compression: each rank has its own gradient. Convert or move the model (double(), to()) before it is "
    "wrapped"
)


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
    UsageError of `backward()` says what an unfrozen parameter, `join()`, or a pass without `no_sync()` made wrong.
    """
    given = {name: value for name, value in locals().items() if name != "model"}
    settings = Settings(**given, gradients="kept")
    parameters = _parameters(model)
    lossy = find_compressor(settings)
    communicator = TorchCommunicator(model.process_group, shares=True)
    feedback, _ = build_feedback(model.module, parameters, lossy, communicator, settings)
    hook = CompressionHook(model, parameters, feedback)
    model.register_comm_hook(hook, _reduce)
    model.module.register_load_state_dict_post_hook(_Loaded(model, parameters.values()))
    return hook


def _parameters(model: object) -> dict[str, nn.Parameter]:
    """Return the parameters whose gradients the wrapper averages, by their names in the wrapped model."""
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model: an object of type {type(model).__name__} is not allowed; give the DistributedDataParallel "
            f"{_place(model)}, or use resireduce.distribute(model, optimizer, ...), which needs none"
        )
    _refuse_hooks(model)
    parameters = {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    }
    twice = next((name for name, parameter in parameters.items() if is_distributed(parameter)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already, by resireduce.distribute(...), which averages gradients itself; "
            "use one of the two"
        )
    if parameters and not any(map(_is_held, parameters.values())):
        raise ConfigError(
            f"model: {CONVERTED.format(name=next(iter(parameters)), before='DistributedDataParallel(...)')}"
        )
    return parameters


def _refuse_hooks(model: DistributedDataParallel) -> None:
    """Raise ConfigError if `model` has a communication hook, or will make itself one in its first forward pass."""
    updated = {id(one) for one in model._module_parameters if hasattr(one, "_in_backward_optimizers")}
    if (name := next((name for name, one in model.module.named_parameters() if id(one) in updated), None)) is not None:
        raise ConfigError(
            f"model: an optimizer of torch's _apply_optimizer_in_backward updates {name!r} in the backward pass, by "
            "a communication hook of DistributedDataParallel, which can have one only; build the model anew, and give "
            "it an optimizer that takes its step after backward(), or leave compress_ddp out"
        )
    if any(hook is _reduce for hook, _ in model._comm_hooks):
        raise ConfigError("model: compress_ddp was called for it already; use the hook that it returned then")
    # The names of built-in hooks are known to the logger alone.
    if (name := model._get_ddp_logging_data().get("comm_hook")) is not None:
        raise ConfigError(
            f"model: it has a communication hook already ({name}), and can have one only; wrap the model anew, "
            "without that hook (and without mixed_precision=..., which is one)"
        )


def _is_held(parameter: Tensor) -> bool:
    """Whether the node that accumulates the gradient is held, as by the wrapper: torch would free it with the mark."""
    accumulation_node(parameter).metadata["resireduce"] = True
    return "resireduce" in accumulation_node(parameter).metadata


def _place(model: object) -> str:
    """Return where a wrapper is to be found, in words: torch.compile and Lightning's Fabric put others around it."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    inside = next((name for name, module in named if isinstance(module, DistributedDataParallel)), None)
    return "around your model" if inside is None else f"within, model.{inside}"


@torch.compiler.disable
def _reduce(hook: "CompressionHook", bucket: dist.GradBucket) -> Future[Tensor]:
    """Call `hook` as DistributedDataParallel calls hooks: with a state, which is `hook` itself, and a bucket."""
    if not isinstance(bucket, dist.GradBucket):
        raise UsageError(
            "torch._dynamo.config.optimize_ddp='python_reducer' hands over one gradient at a time, which are not "
            "averaged together: leave optimize_ddp as it is, and compiled autograd off"
        )
    model = hook.model()
    if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
        raise UsageError(
            "join(divide_by_initial_world_size=False): averages are divided by the number of all ranks, those included "
            "that have joined, as with any communication hook: leave divide_by_initial_world_size at True"
        )
    return hook.reduce(bucket)


class _Loaded:
    """Warns, when a state has been loaded, if it took the place of parameters that the wrapper `model` averages.

    If it did so with all, nothing else would call the library any more. Copies of the model have a hook that does
    nothing. `parameters`: those that the wrapper averages.
    """

    def __init__(self, model: DistributedDataParallel, parameters: Iterable[nn.Parameter]):
        self._place, self._parameters = weakref.ref(model), [weakref.ref(one) for one in parameters]

    def __call__(self, module: nn.Module, _: object) -> None:
        there = {id(one) for one in module.parameters()}
        if self._place() is not None and any(id(one()) not in there for one in self._parameters):
            self._parameters = []
            warn(ASSIGNED)

    def __reduce__(self) -> Any:
        return partial, (_nothing,)


def _nothing(*_: object) -> None:
    pass


# --- The communication hook of DistributedDataParallel: what happens to one bucket of gradients ---


class CompressionHook(HookState):
    """Made by `compress_ddp`: holds this rank's residuals, and the messages under way within one backward pass.

    Messages leave in the order of the buckets, which is the same on all ranks, over the wrapper's own process group.
    Gathered ones take world size x payload bytes each: beyond a sixteenth of all gradients the oldest are received,
    within the backward pass, before the next is launched. The others are received when the last bucket comes.

    Its `feedback` compresses the gradients of `parameters`, by name: those that the wrapper, `model`, averages.
    """

    def __init__(self, model: DistributedDataParallel, parameters: Mapping[str, nn.Parameter], feedback: ErrorFeedback):
        super().__init__(feedback)
        self.model = weakref.ref(model)
        others = {name: one for name, one in model.module.named_parameters() if name in model.parameters_to_ignore}
        self._outside = Outside(model.module, {**others, **parameters}, UNKNOWN)
        self.slots = make_slots(parameters, feedback)
        self._slot_of: dict[Tensor, Slot] = {slot.parameter: slot for slot in self.slots}
        self._messages = Messages(feedback, self.slots)
        self._unseen, self._is_known = {*self.slots}, False
        by_size = sorted(self.slots, key=lambda slot: slot.nbytes)
        self._watched = by_size[:WATCHED]
        self._first_steps = FirstSteps([partial(getattr, slot, "parameter") for slot in by_size])
        self.nodes = [accumulation_node(slot.parameter) for slot in self.slots]
        self._strides: dict[Slot, tuple[int, ...]] = {}
        self._restart()
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
            slot.parameter.register_post_accumulate_grad_hook(partial(_mark_present, weakref.ref(self), slot.index))
        for slot in self._watched:
            self._first_steps.watch(slot.parameter)

    def _restart(self) -> None:
        self._messages.drop()
        self._results: list[tuple[Future[Tensor], Tensor]] = []
        self._aside: list[tuple[Slot, Tensor, Tensor]] = []  # where an average comes, and what was there
        self.feedback.begin_step(self.steps)
        for slot in self.slots:
            slot.restart()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: a copy of the wrapper would have no hook."""
        raise UsageError(
            "a DistributedDataParallel with resireduce.compress_ddp(...) cannot be copied or pickled, since the copy "
            "would not compress. Copy the model within, as in AveragedModel(model.module), or save its state_dict() "
            "and the residual_state_dict() of each rank"
        )

    @property
    def _is_within_pass(self) -> bool:
        return bool(self._results)

    @torch.no_grad()
    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Launch the messages of a `bucket`, whose memory receives the averages; the last bucket completes the futures.

        Raises NonFiniteGradient, which names the parameter, if a gradient holds NaN or infinity; UsageError for sparse
        gradients, and for unknown parameters; ConfigError, in the first pass, if ranks go on from different steps. The
        wrapper refuses to go on after a step that has failed.
        """
        if not self._is_known:
            agree({STEP: str(self.steps)}, self.feedback.communicator)
            self._is_known = True
        slots, buffer = self._slots_of(bucket), bucket.buffer()
        views = views_in(buffer, slots)
        self._check_layouts(views)
        self._messages.send(views, buffer, self._take, self.steps)
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._results.append((future, buffer))
        if bucket.is_last():
            self._finish()
        return future

    def _slots_of(self, bucket: dist.GradBucket) -> list[Slot]:
        slots = [self._slot_of.get(parameter) for parameter in bucket.parameters()]
        known = [slot for slot in slots if slot is not None]
        if len(known) < len(slots):
            raise UsageError(
                "a parameter was frozen between DistributedDataParallel(...) and resireduce.compress_ddp(...): freeze "
                "before the model is wrapped"
            )
        self._unseen.difference_update(known)
        if bucket.buffer().layout != torch.strided:
            raise UsageError(f"the gradient of {known[0].name!r} is sparse: make its layer with sparse=False")
        return known

    def _check_layouts(self, views: Mapping[Slot, Tensor]) -> None:
        """Raise UsageError if one of `views`, in which a bucket was cut by the strides of parameters, is no gradient.

        A bucket does not tell how it is laid out, so that values are compared, in the first pass that has a gradient.
        """
        for slot, view in views.items():
            strides, grad = slot.parameter.stride(), slot.parameter.grad
            known = self._strides.get(slot)
            if known == strides or grad is None or not slot.is_taken:
                continue
            if known is not None or _in_another_order(view, grad):
                raise UsageError(LAID_OUT.format(name=slot.name))
            self._strides[slot] = strides

    def _take(self, slot: Slot, grad: Tensor) -> Tensor | None:
        """Return what is to be compressed of a gradient; None if this rank has none in this pass.

        Then it sends zeros; what an earlier pass has left in `.grad` is put aside, and put back if no rank has a
        gradient. What can be left unsent is copied: a group's residual may hold an error until its turn comes, and the
        bucket receives averages before that.
        """
        leaves = self.feedback.leaves_residual(slot.name)
        if not slot.is_taken:
            is_left = slot.parameter.grad is not None and bool(grad.any())
            if leaves and is_left:
                self._aside.append((slot, grad, grad.clone()))
            if leaves or not is_left:  # what is sent dense is averaged anew, as without a hook
                grad.zero_()
                return None
        return grad.clone(memory_format=torch.contiguous_format) if leaves else grad.contiguous()

    def _finish(self) -> None:
        if self._unseen:
            first = min(self._unseen, key=lambda slot: slot.index)
            raise UsageError(
                f"{first.name!r} is in no bucket: it was unfrozen between DistributedDataParallel(...) and "
                "resireduce.compress_ddp(...), and nobody averages it: unfreeze before the model is wrapped"
            )
        in_pass = private.current_pass() >= 0  # not where join() lets ranks go on
        if in_pass:  # which may go on after the last bucket
            private.at_end_of_pass(self._outside.warn)
        self._messages.end_rounds()
        self.feedback.end_step(self.steps)
        self.steps += 1
        self._messages.receive_all()
        self._put_back()
        self._consider_absent()
        self.feedback.states.commit()
        for future, buffer in self._results:
            future.set_result(buffer)
        self._first_steps.end([slot.is_taken for slot in self._watched], self._has_new_residuals())
        self._restart()

    def _put_back(self) -> None:
        """Put back what earlier passes have left in `.grad` of tensors that no rank has used in this pass.

        The wrapper hands it over again. Without a hook it would be averaged with the others' gradients, but here
        compressed averages have been taken from it already. Raises UsageError if another rank has used such a tensor.
        """
        for slot, place, left in self._aside:
            if place.any():
                raise UsageError(
                    f"{slot.name!r} was not used in this pass on this rank, where .grad holds an earlier gradient of "
                    "it, but it was on others: it cannot be averaged with theirs any more. Accumulate within "
                    "model.no_sync(), and call zero_grad() after each step"
                )
            place.copy_(left)

    def _consider_absent(self) -> None:
        """Leave the compressor's state of a tensor as it was if no rank had a gradient: all have sent zeros."""
        learning = [slot for slot in self.slots if self.feedback.learns(slot.name)]
        if not learning and self.feedback.momentum is None:
            return
        ranks = self.feedback.communicator
        here = torch.tensor([int(slot.is_taken) for slot in self.slots], device=ranks.control_device)
        present: list[int] = ranks.all_reduce(here, "resireduce.presence").wait().tolist()
        if self.feedback.momentum is not None:
            refuse_partly_absent(self.slots, present, ranks.world_size)
        for slot in learning:
            if not present[slot.index]:
                self.feedback.states.forget(slot.name)


@torch.compiler.disable
def _mark_present(place: weakref.ref[CompressionHook], index: int, _: Tensor) -> None:
    """Note that this rank has a gradient of a slot, from this pass or from an earlier one within `no_sync()`."""
    if (hook := place()) is None:
        return
    slot = hook.slots[index]
    if accumulation_node(slot.parameter) is not hook.nodes[index]:
        raise UsageError(CONVERTED.format(name=slot.name, before="resireduce.compress_ddp(...)"))
    if not slot.is_taken:
        slot.stage = Stage.TAKEN


# --- How gradients lie in the buckets of DistributedDataParallel: as their parameters did when it was made ---


LAID_OUT = (
    "{name!r} was laid out anew in memory after DistributedDataParallel(...), which then mixes up the elements of its "
    "gradient, with or without compression: give the model its layout, as by to(memory_format=torch.channels_last), "
    "before it is wrapped"
)


def views_in(buffer: Tensor, slots: Sequence[Slot]) -> dict[Slot, Tensor]:
    """Return the gradient of each of `slots` in the flat `buffer` of a bucket.

    It is laid out as by the wrapper: like its parameter, if that has no gaps.
    """
    views, start = {}, 0
    for slot in slots:
        parameter = slot.parameter
        flat = buffer[start : start + parameter.numel()]
        # Strides survive empty_like only if the tensor has neither gaps nor overlaps.
        dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        views[slot] = flat.as_strided(parameter.shape, parameter.stride()) if dense else flat.view(parameter.shape)
        start += parameter.numel()
    return views


def _in_another_order(view: Tensor, grad: Tensor) -> bool:
    """Whether `view` holds the elements of `grad` at other places; other elements are no matter of layout."""
    return _differ(view, grad) and not _differ(view.flatten().sort()[0], grad.flatten().sort()[0])


def _differ(some: Tensor, others: Tensor) -> bool:
    """Whether an element differs that is not NaN."""
    return not bool(((some == others) | others.isnan()).all())

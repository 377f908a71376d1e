"""Watchers, each of which notices one kind of mistake, and what is refused while a step is under way."""

import hashlib
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce import private
from resireduce.core.bucket import Slot
from resireduce.errors import UsageError, caller, warn
from resireduce.pieces import slices
from resireduce.residuals.base import Residuals

DISTRIBUTED = WeakTensorKeyDictionary()
"""Has each parameter whose gradients an optimizer of the library averages that is in use."""
COMPILED_AUTOGRAD = (
    "compiled autograd traces the backward pass, whose gradients resireduce compresses and sends: switch "
    "torch._dynamo.config.compiled_autograd off (torch.compile of the model goes on as ever), or use gradients='kept'"
)


class StepGuard:
    """The hook of the library before each step of a wrapped optimizer, and the context in which it may take a step."""

    allows, steps = False, 0
    """Whether it may take one now; and how many steps have begun."""

    def __enter__(self) -> None:
        self.allows, self.steps = True, self.steps + 1

    def __exit__(self, *_: object) -> None:
        self.allows = False

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Raise UsageError if the step would use gradients that have not been averaged."""
        if not self.allows:
            raise UsageError(
                f"{type(optimizer).__name__}.step() was called by itself, with gradients of this rank alone: call "
                "step() of what resireduce.distribute(...) returned (keep it), or close() that before"
            )


def refuse_compiled_autograd() -> None:
    """Raise UsageError within a backward pass that compiled autograd runs. Its module is there only if it is in use."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if any(getattr(compiled, name, False) for name in ("compiled_autograd_enabled", "in_compiled_autograd_region")):
        raise UsageError(COMPILED_AUTOGRAD)


def refuse_capture(device: torch.device) -> None:
    """Raise UsageError if work on `device` is being recorded in a CUDA graph, where no value is known."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "backward() and step() cannot be recorded in a CUDA graph: what is checked and sent depends on the values "
            "of each step; leave them out of what is recorded"
        )


def refuse_fork(process: int) -> None:
    """Raise UsageError in a fork of the `process` of that number, which would wait for messages for ever."""
    if os.getpid() != process:
        raise UsageError(
            "this process was forked after resireduce.distribute(...), and has none of the threads that carry messages "
            "between ranks: start all processes before, and call distribute() in each of those that train"
        )


NOT_HELD = (
    "not by the optimizer given to resireduce.distribute(...), so that each rank has its own gradient of it: "
    "distribute the optimizer that holds it too, or average it yourself"
)
BYPASSED = (
    "another optimizer takes a step with parameters whose gradients step() of what resireduce.distribute(...) returned "
    "would average: it uses those of this rank alone, and ranks differ. Call the step() of the returned one, or "
    "distribute the other. Nothing is wrong where an outer optimizer makes parameters the same before that step"
)


class OtherSteps:
    """Warns if an optimizer takes a step by gradients of this rank alone.

    So it is with parameters of `model` that are not among `held`, perhaps unfrozen, added or replaced later: `reason`
    says why nobody averages them, and the cure; and with kept gradients, of `slots`, until `step()` averages them.
    """

    def __init__(self, model: nn.Module, held: Iterable[Tensor], reason: str, slots: Sequence[Slot] = ()):
        self._model, self._reason, self._slots = weakref.ref(model), reason, slots
        self._held = {id(one) for one in held}
        self._seen = WeakTensorKeyDictionary()  # has each other parameter that was looked for in the model
        _FOLLOWERS[id(self)] = self

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of any `optimizer`: warn once about what it has trained by gradients of this rank alone."""
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        others = [one for one in trained if id(one) not in self._held]
        has_own = any(slot.made is not None for slot in self._slots)
        if has_own and len(others) < len(trained):
            self._slots = ()
            warn(BYPASSED)
        own = [one for one in others if one.requires_grad and one.grad is not None and one not in self._seen]
        # Neither the library nor FSDP averages these, which have a gradient for the first time.
        new = {id(one): one for one in own if one not in DISTRIBUTED and not hasattr(one, "placements")}
        self._seen.update(dict.fromkeys(new.values(), True))
        model = self._model() if new else None
        found = [] if model is None else [name for name, one in model.named_parameters() if id(one) in new]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            warn(f"{found[0]!r}{more}: trained, but {self._reason}")


_FOLLOWERS: weakref.WeakValueDictionary[int, OtherSteps] = weakref.WeakValueDictionary()
"""Those that are told of each step of any optimizer, by their id."""


@torch.compiler.disable
def _tell(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for place in _FOLLOWERS.valuerefs():  # a list, as followers come and go in other threads
        if (one := place()) is not None:
            one.note_step(optimizer)


# Once for all followers, and for good: torch goes through its hooks while another thread makes an optimizer, or while
# garbage collection ends one, and a hook that then comes or goes would end that step with an error.
register_optimizer_step_post_hook(_tell)


def watch_around(wrapped: torch.optim.Optimizer) -> Iterator[None]:
    """Before the first step: warn if an outer optimizer calls it, and does more than to pass the call on.

    Lookahead and others go on with the parameters that have a gradient, but after the step streamed gradients are gone.
    An optimizer that only passes calls on has the state of the `wrapped` one, and its step does not name `.grad`.
    """
    frame, _ = caller()
    # Reading `f_locals` keeps a frame's objects alive until it ends: a step's ends soon, a script's may not.
    outer = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
    does_more = "grad" in frame.f_code.co_names or getattr(outer, "state", wrapped.state) is not wrapped.state
    if hasattr(outer, "param_groups") and does_more:
        name = type(outer).__name__
        warn(
            f"{name} calls step() of what resireduce.distribute(...) returned, after which streamed gradients are "
            f"gone: if it then asks which parameters have a .grad, it leaves out all; put it inside, "
            f"distribute(model, {name}(...)), or give gradients='kept'"
        )
    del frame, outer
    yield from repeat(None)


def watch_orphans(parameters: Iterable[Tensor]) -> None:
    """Have a warning given once if a backward pass reaches `parameters`, whose distributed optimizer is gone."""
    handles: list[RemovableHandle] = []

    @torch.compiler.disable
    def warn_once(parameter: Tensor) -> None:
        for handle in handles:
            handle.remove()
        if parameter not in DISTRIBUTED:  # by another optimizer since
            warn(
                "what resireduce.distribute(...) returned is gone, and the model is trained on: nobody averages its "
                "gradients any more, so that ranks differ from now on. Keep it, and call its step(); where a trainer "
                "makes its optimizer anew, distribute that, too. If each rank is to train by itself, close() it before"
            )

    handles += [one.register_post_accumulate_grad_hook(warn_once) for one in parameters if one.requires_grad]


class Resumed:
    """Warns at a step if the optimizer was given a state before it, and `residual`, which has tensors, was not."""

    def __init__(self, residual: Residuals):
        self._residual = residual
        self._is_loaded, self.has_residuals, self._has_stepped = False, False, False
        """`has_residuals`: whether residuals were loaded, or a step was named at which to continue."""

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the state that `optimizer` has, and at those that it is given later."""
        self._is_loaded |= _has_steps(optimizer.state)
        if not hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):  # one of another library may lack it
            return
        own = weakref.proxy(self)
        handle = optimizer.register_load_state_dict_pre_hook(lambda _, state_dict: own.note_state(state_dict))
        weakref.finalize(self, handle.remove)

    def note_state(self, state_dict: Mapping[str, Any]) -> None:
        """Note that an optimizer was given the state `state_dict`."""
        self._is_loaded |= self._has_stepped or _has_steps(state_dict.get("state") or {})

    def after_step(self) -> None:
        """Warn if the optimizer's state was loaded before this step, and residuals were not."""
        is_forgotten = self._is_loaded and not self.has_residuals
        self._is_loaded, self.has_residuals, self._has_stepped = False, False, True
        if is_forgotten and self._residual.tensors():
            warn(
                "the optimizer goes on from a state that it was given, but not the residuals: they are zeros, or left "
                "by steps that this state does not know. Save residual_state_dict() of every rank beside it, and load "
                "it by load_residual_state_dict(...), or by resireduce.redistribute(...) on another number of ranks. "
                "If that state is of training without compression, call start_at(0), and nothing is missing"
            )


def only_makes_state(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether a step of `optimizer` would only fill its empty state: learning rates and the gradients of `parameters`
    are zeros. torch.distributed.checkpoint takes such a step, perhaps on one rank alone, before it loads a state."""
    given = [group.get("lr") for group in optimizer.param_groups] + [parameter.grad for parameter in parameters]
    return not optimizer.state and all(one is not None and not _has_values(torch.as_tensor(one)) for one in given)


def _has_steps(state: Mapping[Any, Any]) -> bool:
    """Whether an optimizer's `state` is that of steps: Adagrad's is not empty before the first, and
    torch.distributed.checkpoint takes one with gradients of zeros."""
    held = [values for values in state.values() if isinstance(values, Mapping)]
    used = [values for values in held if _has_values(torch.as_tensor(values.get("step", 1)))]
    others = [one for values in used for key, one in values.items() if key != "step" and isinstance(one, Tensor)]
    return any(map(_has_values, others))


def _has_values(tensor: Tensor) -> bool:
    """Whether a tensor, or this rank's shard of it, has elements other than zeros; True if that cannot be seen."""
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.is_meta or private.is_wrapper(tensor) or bool(tensor.any())


STEPS = 2
"""How many steps ranks compare before: a forward pass may have made parameters, and the first step changes them."""
PIECE = 1 << 18
"""Elements that are added up at once, in 16 bytes each."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtype as which an element of so many bytes is read."""
DRIFTED = (
    "parameters are no longer the same on all ranks, which the first two steps look at: averages are added to "
    "different models. A single bit counts, so it may be rounding alone, as where each rank moves them and back by "
    "add_() and sub_(): put a copy back. Or something may be random on each rank for itself, as a layer that is made "
    "in its first forward pass, or an optimizer that rounds at random: seed all ranks alike for it, or run that pass "
    "before distribute(). Or a checkpoint may have been loaded on some ranks alone: load it on all"
)


class Drift:
    """Compares digests of `parameters` between ranks, as they were before each of the first steps that was taken."""

    def __init__(self, parameters: Iterable[Tensor]):
        self._parameters, self._left, self.numbers = [*parameters], STEPS, [0, 0]
        """`numbers` are summed over all ranks."""

    def look(self) -> None:
        """Look at the parameters, before a step changes them."""
        here = digest(self._parameters)
        self.numbers = [here, here**2]

    def compare(self, sums: Sequence[int], world_size: int, was_skipped: bool) -> bool:
        """Warn unless the `sums` are those of equal numbers; return whether another step is to be compared."""
        if sums[1] * world_size != sums[0] ** 2:
            warn(DRIFTED)
        self._left -= not was_skipped
        return self._left > 0


def digest(parameters: Iterable[Tensor]) -> int:
    """Return a number from 1 to 2^20, almost surely another one for other `parameters`: a hash of sums over their bits.

    Of a tensor that wraps others, these count; sparse tensors and those without storage are left out. The host waits
    for the devices once.
    """
    held = [inner for one in parameters for inner in _bits(one) if len(inner)]
    if not held:
        return 1
    found = [torch.stack([_sum(flat[some]) for some in slices(len(flat), PIECE)]) for flat in held]
    sums = torch.cat([one.to(found[0].device) for one in found]).tolist()
    number = int.from_bytes(hashlib.sha256(str(sums).encode()).digest()[:8])
    return 1 + number % 2**20  # so few that the sum of the squares of all ranks' fits 64 bits


def _bits(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the elements of `tensor` as 1-D integers, or those of what it wraps, as a quantized weight its scales."""
    if private.is_wrapper(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _bits(getattr(tensor, name))
    elif tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_complex()):
        yield tensor.detach().contiguous().view(-1).view(BITS[tensor.element_size()])


def _sum(piece: Tensor) -> Tensor:
    """Return a sum over the bits of 1-D `piece`, int64, 0-D: those of b in place p count b (b + p^2), since plain sums
    are the same for elements in another order, and for many that are multiplied by a power of two."""
    bits = piece.long()
    if piece.element_size() == 8:
        bits = bits ^ bits >> 32  # what the highest bits say would be lost in products of 64 bits
    places = torch.arange(1, 1 + bits.numel(), device=bits.device)
    return places.square_().add_(bits).mul_(bits).sum()

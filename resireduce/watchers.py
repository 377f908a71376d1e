"""Watchers, each of which notices one kind of mistake, and what is refused while a step is under way."""

import gc
import hashlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce import private
from resireduce.errors import UsageError, caller, warn
from resireduce.pieces import slices
from resireduce.residuals.base import Residuals

OWNERS = WeakTensorKeyDictionary()
"""For each distributed parameter, a weak reference to the owner, which takes its gradients."""


class Watcher:
    """Notices one kind of mistake: it raises, or warns, at one of these moments. Most watchers need few of them."""

    def after_gradient(self, parameter: Tensor) -> None:
        """Look when autograd has finished a kept gradient, that of `parameter`."""

    def after_backward(self) -> None:
        """Look at the end of a backward pass in which gradients are sent, before anybody clears others."""

    def before_step(self) -> None:
        """Look before anything of a step is done, which can then still be refused."""

    def after_step(self) -> None:
        """Look when a step has been taken, or skipped for overflow."""

    def note_residuals(self) -> None:
        """Note that residuals were loaded, or that a step was named at which to continue."""

    def end(self) -> None:
        """Stop watching."""


def watchers_of(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    residual: Residuals,
    streamed: bool,
    world_size: int,
) -> list[Watcher]:
    """Return what watches `optimizer`, which trains `parameters` of `model`, by name, with errors in `residual`."""
    found: list[Watcher] = [Outside(model, parameters, wrapped=optimizer), Resumed(optimizer, residual=residual)]
    if streamed:
        return [*found, Around(optimizer)]
    return [*found, Bypassed(parameters.values())] if world_size > 1 else found


def is_distributed(parameter: Tensor) -> bool:
    """Whether an optimizer of the library that is in use averages the gradients of `parameter`."""
    owner = OWNERS.get(parameter)
    return owner is not None and owner() is not None


# --- Uses of torch under which gradients would not be averaged: each is refused by an error that names the cure ---


COMPILED_AUTOGRAD = (
    "compiled autograd traces the backward pass, whose gradients resireduce compresses and sends: switch "
    "torch._dynamo.config.compiled_autograd off (torch.compile of the model goes on as ever), or use gradients='kept'"
)


class StepGuard:
    """The hook of the library before each step of a wrapped optimizer; `steps[0]` is 0 while no step is allowed."""

    def __init__(self, steps: list[int]):
        self._steps = steps

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Raise UsageError if the step would use gradients that have not been averaged."""
        if not self._steps[0]:
            raise UsageError(
                f"{type(optimizer).__name__}.step() was called by itself, with gradients of this rank alone: call "
                "step() of what resireduce.distribute(...) returned (keep it), or close() that before"
            )


def refuse_compiled_autograd() -> None:
    """Raise UsageError within a backward pass that compiled autograd runs. Its module is there only if it is in use."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is None:
        return
    if getattr(compiled, "compiled_autograd_enabled", False) or getattr(compiled, "in_compiled_autograd_region", False):
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


# --- What a step leaves out: parameters that no optimizer averages ---


FIRST_LOOKS, INTERVAL = 16, 61
"""The model is checked at each of the first FIRST_LOOKS steps, and then at every INTERVAL-th, an odd number: so both
phases of training that alternates are seen."""
NOT_HELD = (
    "not by the optimizer given to resireduce.distribute(...), so that each rank has its own gradient of it: "
    "distribute the optimizer that holds it too, or average it yourself"
)


class Outside(Watcher):
    """Watches for trained parameters of `model` that are not among `held`, given by name, and so are not averaged.

    Parameters may be unfrozen, and layers added or replaced, at any time. A gradient that is there at the start, as an
    average of an earlier stage, counts only once something is added to it. Steps of other optimizers than `wrapped` are
    looked at, too: they may train a phase of their own, as an adapter that was added later. `reason`, for the warning,
    says why there is no average, and the cure.
    """

    def __init__(
        self,
        model: nn.Module,
        held: Mapping[str, nn.Parameter],
        reason: str = NOT_HELD,
        wrapped: torch.optim.Optimizer | None = None,
        passes_over: Callable[[str, Tensor], bool] = lambda name, parameter: False,
    ):
        self._model, self._reason, self._passes_over = weakref.ref(model), reason, passes_over
        self._wrapped = None if wrapped is None else weakref.ref(wrapped)
        self._held = {id(one) for one in held.values()}
        self._told, self._before = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        self._looks, self._steps = 0, 0
        after_steps(self)
        for _, one in self._others(model):
            if one.grad is not None and not is_distributed(one) and not one.grad.is_inference():
                self._before[one] = weakref.ref(one.grad), one.grad._version

    @torch.compiler.disable
    def warn(self) -> None:
        """Warn once about each that has a gradient now, unless another optimizer of the library averages it."""
        self._looks += 1
        model = self._model()
        if model is not None and _is_due(self._looks):
            self._tell({name: one for name, one in self._others(model) if self._has_new(one)})

    after_backward = before_step = warn

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of `optimizer`: warn once about each parameter that it has trained, and that is not held. Those
        within a backward pass, as hooks take them, are left to `warn`."""
        model, is_wrapped = self._model(), self._wrapped is not None and self._wrapped() is optimizer
        if model is None or is_wrapped or private.current_pass() >= 0:
            return
        trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if trained <= self._held:
            return
        self._steps += 1
        if _is_due(self._steps):
            self._tell({name: one for name, one in self._others(model) if id(one) in trained and self._has_new(one)})

    def _tell(self, new: Mapping[str, Tensor]) -> None:
        """Warn about those of the `new` that no other optimizer of the library averages."""
        found = {name: one for name, one in new.items() if not is_distributed(one) and one not in self._told}
        if not found:
            return
        self._told.update(dict.fromkeys(found.values(), True))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warn(f"{next(iter(found))!r}{more}: trained, but {self._reason}")

    def _others(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        named = model.named_parameters()
        return ((name, one) for name, one in named if id(one) not in self._held and not self._passes_over(name, one))

    def _has_new(self, parameter: Tensor) -> bool:
        """Whether `.grad` holds something that it did not hold at the start."""
        before = self._before.get(parameter)
        if before is None or parameter.grad is None:
            return parameter.grad is not None
        return before[0]() is not parameter.grad or before[1] != parameter.grad._version


def _is_due(count: int) -> bool:
    """Whether the model is checked at the step of this number."""
    return count <= FIRST_LOOKS or count % INTERVAL == 0


# --- Optimizers around that of the library, which expect gradients after its step ---


class Around(Watcher):
    """Warns if an outer optimizer calls the step that updates by `wrapped`, and does more than to pass the call on.

    Lookahead and others go on with the parameters that have a gradient, but after the step streamed gradients are gone.
    An optimizer that only passes calls on has the state of `wrapped`, and its step does not name `.grad`.
    """

    def __init__(self, wrapped: torch.optim.Optimizer):
        self._wrapped: torch.optim.Optimizer | None = wrapped

    def before_step(self) -> None:
        """Look at who calls the first step."""
        wrapped, self._wrapped = self._wrapped, None
        if wrapped is None:
            return
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


# --- Parameters whose gradients the library averages, but that another optimizer updates before it does ---


BYPASSED = (
    "another optimizer takes a step with parameters whose gradients step() of what resireduce.distribute(...) returned "
    "would average: it uses those of this rank alone, and ranks differ. Call the step() of the returned one, or "
    "distribute the other. If they are the same on all ranks again when that takes its step, as after local steps that "
    "an outer optimizer averages, nothing is wrong"
)


class Bypassed(Watcher):
    """Warns once if another optimizer takes a step with some of `parameters`, whose gradients are not averaged yet."""

    def __init__(self, parameters: Iterable[Tensor]):
        self._held = {id(one) for one in parameters}
        self._has_gradients = False
        after_steps(self)

    def after_gradient(self, parameter: Tensor) -> None:
        """Note that there are gradients of this rank alone."""
        self._has_gradients = True

    def before_step(self) -> None:
        """Note that they are averaged now; whatever takes steps meanwhile does so for the step of the library."""
        self._has_gradients = False

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of `optimizer`: warn if it was by gradients of this rank alone."""
        if self._has_gradients and any(
            id(one) in self._held for group in optimizer.param_groups for one in group["params"]
        ):
            self._held.clear()
            warn(BYPASSED)

    end = before_step


# --- Training without the distributed optimizer, which is gone ---
#
# And how other objects of a script are found or followed: all of a class, and the steps of all optimizers.


TRAINED_ON = (
    "what resireduce.distribute(...) returned is gone, and the model is trained on: nobody averages its gradients any "
    "more, so that ranks differ from now on. Keep it, and call its step(); where a trainer makes its optimizer anew, "
    "distribute that one too, in the function that makes it. If each rank is to train by itself, close() it before"
)


class Orphans:
    """Warns once if a backward pass reaches one of `parameters`, whose distributed optimizer is gone."""

    def __init__(self, parameters: Iterable[Tensor]):
        trained = [one for one in parameters if one.requires_grad]
        self._handles = [one.register_post_accumulate_grad_hook(self) for one in trained]

    @torch.compiler.disable
    def __call__(self, parameter: Tensor) -> None:
        """Look at the first `parameter` that has a gradient."""
        self.end()
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


def objects(kind: type) -> list[Any]:
    """Return all objects of class `kind`, written in Python, in this process. They are found as those that refer to it:
    a list of all objects would also hold tuples that other threads are still filling."""
    kinds = {kind}
    left = [kind]
    while left:
        more: set[type] = set(type.__subclasses__(left.pop())) - kinds
        kinds |= more
        left += more
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]


_FOLLOWERS: dict[int, weakref.ref[Any]] = {}
"""Those that `_tell` calls, by their id."""


def after_steps(follower: Any) -> Callable[[], object]:
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


# --- Checkpoints of the wrapped optimizer: a warning if its state was loaded and residuals were not ---


FORGOTTEN = (
    "the optimizer goes on from a state that it was given, but not the residuals: they are zeros, or left by steps "
    "that this state does not know. Save residual_state_dict() of every rank beside it, and load it by "
    "load_residual_state_dict(...), or by resireduce.redistribute(...) on another number of ranks. If that state is of "
    "training without compression, call start_at(0), and nothing is missing"
)


class Resumed(Watcher):
    """Warns if the state of `optimizer` was loaded, or was there at the start, and `residual`, if it has tensors, was
    not loaded before the next step."""

    def __init__(self, optimizer: torch.optim.Optimizer, residual: Residuals):
        self._residual = residual
        self._is_loaded, self._has_residuals, self._has_stepped = _has_steps(optimizer.state), False, False
        self._end: Callable[[], object] = bool  # does nothing
        if not hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):  # one of another library may lack it
            return
        note = weakref.WeakMethod(self._note)

        def forward(_: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
            if (here := note()) is not None:
                here(state_dict)

        self._end = weakref.finalize(self, optimizer.register_load_state_dict_pre_hook(forward).remove)

    def _note(self, state_dict: Mapping[str, Any]) -> None:
        self._is_loaded |= self._has_stepped or _has_steps(state_dict.get("state") or {})

    def note_residuals(self) -> None:
        """Note that residuals were loaded, or that a step was named at which to continue."""
        self._has_residuals = True

    def after_step(self) -> None:
        """Warn if the optimizer's state was loaded before this step, and residuals were not."""
        is_forgotten = self._is_loaded and not self._has_residuals
        self._is_loaded, self._has_residuals, self._has_stepped = False, False, True
        if is_forgotten and self._residual.tensors():
            warn(FORGOTTEN)

    def end(self) -> None:
        """Stop watching what is loaded."""
        self._end()


def only_makes_state(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether a step of `optimizer` would only fill its empty state: learning rates and the gradients of `parameters`
    are zeros. torch.distributed.checkpoint takes such a step, perhaps on one rank alone, before it loads a state."""
    if optimizer.state:
        return False
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(rate, int | float | Tensor) and bool((torch.as_tensor(rate) == 0).all()) for rate in rates):
        return False
    gradients = [parameter.grad for parameter in parameters]
    return all(
        g is not None and g.layout == torch.strided and g.device.type != "meta" and not g.any() for g in gradients
    )


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


# --- Digests of parameters, which ranks compare in the first steps: they must still be the same on all ---


STEPS = 2
"""Number of steps in which ranks compare: before the first, a forward pass may have made parameters; before the second,
the optimizer has changed them once."""
PIECE = 1 << 18
"""Elements that are added up at once, in 16 bytes each."""
DIGESTS = 1 << 20
"""How many digests there are: few enough that the sum of the squares of all ranks' fits 64 bits."""
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

    def compare(self, sums: Sequence[int], world_size: int) -> None:
        """Warn unless the `sums` are those of equal numbers."""
        if sums[1] * world_size != sums[0] ** 2:
            warn(DRIFTED)

    def goes_on(self, was_skipped: bool) -> bool:
        """Whether there is another step to compare; one that was skipped has changed nothing."""
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
    return 1 + int.from_bytes(hashlib.sha256(str(sums).encode()).digest()[:8]) % DIGESTS


def _bits(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the elements of `tensor` as 1-D integers, or those of what it wraps, as a quantized weight its scales."""
    if private.is_wrapper(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _bits(getattr(tensor, name))
    elif tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_complex()):
        yield tensor.detach().contiguous().view(-1).view(BITS[tensor.element_size()])


def _sum(piece: Tensor) -> Tensor:
    """Return a sum over the bits of 1-D `piece`, int64, as a scalar. It takes memory of several times the piece.

    An element of bits b in place p counts b (b + p^2): plain sums are the same for elements in another order, and for
    many that are multiplied by a power of two.
    """
    bits = piece.long()
    if piece.element_size() == 8:
        bits = bits ^ bits >> 32  # what the highest bits say would be lost in products of 64 bits
    places = torch.arange(1, 1 + bits.numel(), device=bits.device)
    return places.square_().add_(bits).mul_(bits).sum()

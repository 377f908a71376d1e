"""Error feedback (paper, section 2.2): compensate, compress, keep the rest, send, average.

`Compressor.send` is given the sums of a bucket, calls back `keep_` or `keep_rests_`, and returns the message: for each
tensor in turn, or as top-k and others do, for all at once.

With full residuals of the gradient's dtype, one memory does for all: the gradient is added to the residual, top-k takes
the largest magnitudes out of that sum and leaves zeros there, and so the rest is the residual."""

from collections.abc import Callable, Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import zip_longest
from typing import Any, ParamSpec, Self, TypeVar

import torch
from torch import Tensor

from resireduce import pieces, private
from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import Compressor, MomentumCorrection, NoCompression, State
from resireduce.core.messages import Into, Message, Payload, Round
from resireduce.errors import ConfigError, NonFiniteGradient
from resireduce.kernels.ops import in_one_launch, is_finite
from resireduce.residuals.base import Residual, Residuals, Rest
from resireduce.resume import check_place, check_state, origin

P = ParamSpec("P")
T = TypeVar("T")


def exactly(function: Callable[P, T]) -> Callable[P, T]:
    """Have `function` run without autocast, even if a script runs `backward()` or `step()` within one.

    Autocast is for forward passes. Elsewhere it rounds products of matrices, makes float32 of float16, so that messages
    have another dtype, and refuses to concatenate tensors that are neither of its own precision nor of float32.
    """

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        if not private.is_any_autocast():
            return function(*args, **kwargs)
        with private.without_autocast():
            return function(*args, **kwargs)

    return exact


class Finiteness:
    """Keeps NaN and infinity out of residuals and messages.

    Gradients on a CPU are checked when they come. On other devices one that is not finite is replaced by zeros, and the
    host asks once, at the end of a step, if there was any.
    """

    def __init__(self) -> None:
        self.waits_for: Container[str] = pieces.HOSTS
        """Types of the devices on which gradients are checked when they come."""
        self.noted: list[tuple[Sequence[str], Tensor]] = []
        """Names of tensors, in the order in which gradients of this step came, and which of these a device has found
        not to be finite: 1 there, or 0; 1-D."""

    def check(self, grad: Tensor, name: str) -> None:
        """Raise NonFiniteGradient if `grad`, of tensor `name`, holds NaN or infinity, and is checked when it comes."""
        if grad.device.type in self.waits_for and not is_finite(grad):
            raise refusal(name)

    def check_(self, grad: Tensor, name: str) -> None:
        """Do as `check` of `grad`, of tensor `name`; where that is checked later, note it and fill it with 0 now."""
        self.check(grad, name)
        self._look_later_({name: grad})

    def check_arrived(self, grad: Tensor, name: str) -> None:
        """Do as `check` of `grad`, of tensor `name`, which is to be compressed as it is."""
        self.check(grad, name)

    def drop_(self, sums: Sequence["Sum"], payloads: Sequence[Payload]) -> None:
        """Do nothing, if what `payloads` hold of a bucket's `sums` is not finite: gradients have been checked."""

    def look_later_(self, sums: Sequence["Sum"]) -> None:
        """Note which gradients of a bucket's `sums` are not finite, of those that have not been checked, and fill these
        with 0."""
        self._look_later_({one.name: one.gradient for one in sums if one.gradient is not None})

    def _look_later_(self, gradients: Mapping[str, Tensor]) -> None:
        names = [name for name, grad in gradients.items() if grad.numel() and grad.device.type not in self.waits_for]
        there = [gradients[name] for name in names]
        if not there:
            return
        if in_one_launch(there):
            from resireduce.kernels.gpu import bucket

            spoilt = bucket.blank_spoilt_(there)
        else:
            spoilt = torch.stack([torch.linalg.vector_norm(one, torch.inf) for one in there]).isfinite().logical_not()
            for grad, is_spoilt in zip(there, spoilt, strict=True):
                grad.masked_fill_(is_spoilt, 0.0)
        self.noted.append((names, spoilt))

    def failure(self) -> NonFiniteGradient | None:
        """Return the error of the first gradient that was noted and was not finite, and forget all; None: all were."""
        noted, self.noted = self.noted, []
        if not noted:
            return None
        found = torch.cat([one.to(noted[0][1].device) for _, one in noted]).tolist()  # the host waits once
        names = (name for names, _ in noted for name in names)
        spoilt = next((name for name, is_spoilt in zip(names, found, strict=True) if is_spoilt), None)
        return None if spoilt is None else refusal(spoilt, "nothing of it was sent")


def refusal(name: str, done: str = "its residual is unchanged") -> NonFiniteGradient:
    """Return the error for tensor `name`, whose gradient is not finite; `done`: what became of it."""
    return NonFiniteGradient(
        f"the gradient of {name!r} holds NaN or infinity; {done}. "
        "Lower the learning rate, or look at the loss of this step; then go on from a checkpoint"
    )


@dataclass
class CompressorStates:
    """This rank's states of one compressor, by tensor. What a step changes are copies, which `commit` puts in their
    place: a step that is skipped, or that fails, is not committed."""

    held: dict[str, State] = field(default_factory=dict)
    """The states as the last step that was taken left them; a tensor without a state is not in it."""
    changed: dict[str, State] = field(default_factory=dict)

    def working(self, name: str, lasts: bool = True) -> State:
        """Return the copy of tensor `name`'s state that this step may change, or unless that `lasts`, one whose changes
        are lost; empty if it has no state."""
        copy = {key: tensor.clone() for key, tensor in self.held.get(name, {}).items()}
        return self.changed.setdefault(name, copy) if lasts else copy

    def commit(self) -> None:
        """Keep this step's changes of the states: the step has been taken."""
        for name, state in self.changed.items():
            for key, tensor in state.items():
                self.held[name][key].copy_(tensor)
        self.changed.clear()

    def tensors(self) -> dict[str, Tensor]:
        """Return all states, by names that no residual has."""
        return {f"compressor.{name}.{key}": one for name, state in self.held.items() for key, one in state.items()}


class NoMomentum:
    """In place of velocities, where a compressor corrects no momentum."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate nothing."""

    def accumulate_(self, grad: Tensor, name: str) -> Tensor:
        """Return `grad`."""
        return grad

    def mask_(self, name: str, compressor: Compressor, payload: Payload) -> None:
        """Do nothing."""

    def check_present(self, presence: Sequence[int], world_size: int) -> None:
        """Do nothing: a rank without a gradient of a tensor sends zeros."""

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}


class Sum:
    """Gradient + residual of tensor `name` in step number `step`, and what is kept of it (paper, section 2.2).

    gradient: None: zeros are sent, of which nothing is kept.
    """

    def __init__(self, feedback: "ErrorFeedback", name: str, step: int, gradient: Tensor | None):
        self.feedback, self.residual = feedback, feedback.residual.of(name)
        self.name, self.step, self.gradient, self.is_there = name, step, gradient, gradient is not None

    def drawn_from(self, compressor: Compressor) -> str:
        """Return what random choices are drawn from, with the step."""
        return self.name if compressor.same_draw else f"{self.name}/{self.feedback.place['rank']}"

    @property
    def state(self) -> State:
        """What the compressor remembers of the tensor, which it may change; or a copy, whose changes are lost."""
        return self.feedback.states.working(self.name, self.is_there)

    def velocity_(self) -> Tensor:
        """Return the gradient, or the velocity in its place; or zeros."""
        if self.gradient is None:
            shape, dtype, device = self.feedback.kinds[self.name]
            return torch.zeros(shape, dtype=dtype, device=device)
        return self.feedback.velocities.accumulate_(self.gradient, self.name)

    def addends_(self) -> tuple[Tensor, Tensor | None]:
        """Return two tensors: the caller adds the second to the first, in whose memory the sum is to lie. None in place
        of the second: the first is the sum already."""
        if self.gradient is None:
            return self.velocity_(), None
        gradient, self.gradient = self.velocity_(), None  # freed, where the sum is formed in the residual's memory
        return self.residual.addends(gradient, self.name)

    def form_(self) -> Tensor:
        """Return the sum."""
        dense, added = self.addends_()
        return dense if added is None else dense.add_(added)

    def keep_(self, payload: Payload, error: Callable[[], Tensor]) -> None:
        """Update the residual by the `error` that the `payload` leaves, in the memory of the sum."""
        if self.is_there:
            self.feedback.velocities.mask_(self.name, self.feedback.compressor_of(self.name), payload)
            self.residual.update(self.name, error, self.step)


class ErrorFeedback:
    """Compresses gradients and keeps in residuals what is not sent; sends payloads, and receives their averages.

    It averages once. Lossless gradients are scaled by 1 / world size before they are summed, as DistributedDataParallel
    does; what a lossy compressor sends is summed as it is and scaled afterwards, in the gradient's precision: half
    precision would lose small values, which would not enter a residual.

    Args:
        compressor: for all tensors that are not `dense`.
        residual: holds the errors of all tensors; it belongs to a scheme.
        communicator: the ranks among which averages are formed.
        dense: names of the tensors that are sent without compression.
        warm_up_steps: number of first steps in which all tensors are sent so, and residuals stay zero.
        schedule: the compressor of each step, by its number counted from 0, where densities change: the same class with
            another density; `compressor` is then that of step 0.
        place: this rank's number and the number of ranks, by the names in a saved state; it seeds random choices.

    Raises ConfigError for a compressor whose exchange the communicator does not have.
    """

    def __init__(
        self,
        compressor: Compressor,
        residual: Residuals,
        communicator: Communicator,
        dense: frozenset[str],
        warm_up_steps: int,
        place: Mapping[str, int],
        schedule: Callable[[int], Compressor] | None = None,
    ):
        self.dense, self.warm_up_steps, self.place = dense, warm_up_steps, place
        if compressor.collective == "rounds" and type(communicator).all_to_all is Communicator.all_to_all:
            raise ConfigError(
                f"compressor: {type(compressor).__name__} is not allowed over {type(communicator).__name__}, which has "
                "no method all_to_all(); give backend='torch' or 'horovod', or another compressor"
            )
        self.compressor, self.communicator = compressor.for_world(communicator.world_size), communicator
        varies = self.compressor.turns > 1 or self.compressor.collective == "rounds"  # in some steps there are more
        self.varies = varies or schedule is not None or warm_up_steps > 0
        """Whether the form of messages depends on the number of the step, which ranks then compare before the first."""
        self.residual, self.states = residual, CompressorStates()
        self._blank = deepcopy(residual)  # nothing is registered yet
        settings = self.compressor.momentum
        self.velocities = NoMomentum() if settings is None else MomentumCorrection(settings)
        self.finiteness = Finiteness()
        self.kinds: dict[str, tuple[torch.Size, torch.dtype, torch.device]] = {}
        """Shape, dtype and device of each tensor's gradient."""
        fixed, plain = self.compressor, NoCompression()
        self.compressor_at: Callable[[int], Compressor] = lambda step: fixed
        """Returns the compressor of all tensors that are not dense in a step after warm-up."""
        if schedule is not None:
            self.compressor_at = lru_cache(1)(lambda step: schedule(step).for_world(communicator.world_size))
        at = self.compressor_at
        self._for_dense, self._for_others = plain, at
        if warm_up_steps:
            self._for_others = lambda step: plain if step < warm_up_steps else at(step)
        self.begin_step(0)

    # --- which compressor each tensor has in this step ---

    def begin_step(self, step: int) -> None:
        """Choose compressors for step number `step`, counted from 0, which begins; undo one that was not finished."""
        self.states.changed.clear()
        self.finiteness.noted.clear()
        self._step = step

    @property
    def warms_up(self) -> bool:
        """Whether all tensors are sent dense in this step."""
        return self._step < self.warm_up_steps

    def compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` in this step: NoCompression if it is sent dense."""
        return self._for_dense if name in self.dense else self._for_others(self._step)

    def keeps_residual(self, name: str) -> bool:
        """Whether tensor `name` has a residual."""
        return name not in self.dense and not self.compressor.lossless

    def sees_non_finite(self, name: str) -> bool:
        """Whether tensor `name`'s compressor, from the first step on, notes sums that are not finite in time."""
        _, dtype, device = self.kinds[name]
        like = torch.empty(0, dtype=dtype, device=device)
        leaves = self.keeps_residual(name) and self.residual.of(name).leaves_stored(name)
        return leaves and not self.warm_up_steps and self.compressor.sees_non_finite(like)

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate what tensor `name`, shaped like `parameter`, needs between two steps."""
        self.kinds[name] = parameter.shape, parameter.dtype, parameter.device
        self.velocities.register(name, parameter)
        if name not in self.dense and (state := self.compressor.state(parameter.shape, parameter)):
            self.states.held[name] = state
        if self.keeps_residual(name):
            self.residual.of(name).register(name, parameter)

    # --- check, compensate, compress, keep ---

    @exactly
    def compress(self, gradients: Mapping[str, Tensor | None], step: int) -> Message | Round:
        """Return this rank's message of the tensors of a bucket, which are all dense, or all compressed.

        If ranks make payloads in rounds, this returns the first of them.

        Args:
            gradients: the contiguous gradient of each tensor, by name, which `finiteness` has checked. Its memory may
                be overwritten, or become the message's, and must be kept until the last round is over. None: this rank
                has no gradient of it in this step, and sends zeros. These leave its residual as it is, and its
                compressor's state but for what it learns of other ranks.
            step: number of the step, counted from 0; it seeds random choices.
        """
        sums = [Sum(self, name, step, gradient) for name, gradient in gradients.items()]
        return self.compressor_of(sums[0].name).send(sums, self.finiteness)

    def keep_rests_(
        self, sums: Sequence[Sum], payloads: Sequence[Payload], rests: Sequence[Tensor], norms: Sequence[Tensor] = ()
    ) -> None:
        """Update residuals by the `rests` that `payloads` leave of `sums`, in their memory, those of one kind at once.

        norms: what is known of those of `rests`, if anything: see `fold_`.
        """
        updates: dict[Residual, list[Rest]] = {}
        for one, payload, rest, own in zip_longest(sums, payloads, rests, norms):
            if one.is_there:
                self.velocities.mask_(one.name, self.compressor_of(one.name), payload)
                updates.setdefault(one.residual, []).append((one.name, rest, own))
        for residual, of_residual in updates.items():
            residual.update_each(of_residual, sums[0].step)

    @exactly
    def end_round(self, under_way: Round) -> Message | Round:
        """Wait for the result of a round; return the message that follows, or the next round, neither launched yet."""
        assert under_way.handle is not None
        return under_way.go_on(self.wait(under_way.handle))

    def absorbs(self, name: str) -> bool:
        """Whether the gradients of a step's earlier passes can be added into the residual, and need not be held."""
        can_be_left = self.compressor.momentum is None and not self.compressor_of(name).lossless
        return can_be_left and self.residual.of(name).absorbs(name)

    @exactly
    def absorb(self, grad: Tensor, name: str) -> None:
        """Add the gradient of an earlier pass into the residual. Raises NonFiniteGradient as `check_` does."""
        self.finiteness.check_(grad, name)
        self.residual.of(name).compensate_(grad, name)

    @exactly
    def add_to_residual(self, dense: Tensor, name: str, step: int) -> None:
        """Add `dense` to the residual of tensor `name`; `step` seeds random rounding."""
        residual = self.residual.of(name)
        residual.restore(name, residual.compensate_(dense, name), step)

    @exactly
    def end_step(self, step: int) -> None:
        """Have residuals store what has waited for other tensors, now that all gradients of step `step` have come."""
        self.residual.end_step(step)

    # --- send, receive, average ---

    @exactly
    def send(self, made: Message | Round) -> None:
        """Launch the collective of a message, or of a round."""
        made.launch(self.communicator)

    def wait(self, launched: Handle[Any] | Message) -> Any:
        """Wait for a message, or for the result of a round, which is returned."""
        return launched.wait()

    @exactly
    def receive(self, message: Message, places: Sequence[int], into: Into) -> list[Tensor]:
        """Return the dense averages of what all ranks sent in `message`, which may be asked again.

        places: of which of its tensors, counted from 0.
        """
        self.wait(message)
        return message.averages(places, into, 1 / self.communicator.world_size, self.states)

    # --- saved states ---

    def state_dict(self, step: int) -> dict[str, Tensor]:
        """Return this rank's residuals, velocities, compressor states and place, and the number of the next `step`."""
        memory = self.memory()
        return (
            self.residual.tensors()
            | memory
            | origin(self.compressor.memory if memory else "", self.residual.meaning())
            | {"steps": torch.tensor(step, device="cpu")}
            | {key: torch.tensor(value, device="cpu") for key, value in self.place.items()}
        )

    def memory(self) -> dict[str, Tensor]:
        """Return velocities and compressor states, by names that no residual has."""
        return self.states.tensors() | self.velocities.tensors()

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> int:
        """Copy `state` into the tensors held, if all of it fits; return the number of the next step in it."""
        held = self.state_dict(0)
        check_place(held, state)
        check_state(held, state)
        for name, tensor in (self.residual.tensors() | self.memory()).items():
            tensor.copy_(state[name])
        return int(state["steps"])

    def reader(self, place: Mapping[str, int]) -> Self:
        """Return a pipeline like this one for the rank at `place`, with nothing registered, to load what it saved."""
        return type(self)(self.compressor, deepcopy(self._blank), self.communicator, self.dense, 0, place)

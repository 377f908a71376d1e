"""Error feedback for one gradient (paper, section 2.2): compensate, compress, keep the rest, send, average."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar

import torch
from torch import Tensor

from resireduce import private
from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import Compressor, MomentumCorrection, NoCompression, State, Sum
from resireduce.core.messages import Message, Payload, Round, Rounds, continue_rounds, joined
from resireduce.errors import ConfigError, NonFiniteGradient
from resireduce.kernels.ops import in_one_launch, is_finite
from resireduce.residuals.base import NoResidual, Residuals
from resireduce.resume import check_place, check_state, origin

# --- Arithmetic that an autocast around `backward()` or `step()` does not change ---


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


# --- Gradients that are not finite are refused: each at once or, where the host would wait for it, once a step ---


AT_ONCE = ("cpu", "meta")
"""Types of devices on which the host need not wait for an answer."""


class Finiteness:
    """Keeps NaN and infinity out of residuals and messages.

    Each gradient is checked when it comes or, without `at_once`, only those on a CPU: on other devices one that is not
    finite is replaced by zeros, and the host asks once, at the end of a step, if there was any.
    """

    def __init__(self, at_once: bool = True):
        self.at_once = at_once
        self.restart()

    def check_(self, grad: Tensor, name: str) -> None:
        """Raise NonFiniteGradient if `grad`, of tensor `name`, holds NaN or infinity; or note it and fill it with 0."""
        if self.check_each_({name: grad}):
            raise refusal(name)

    def check_each_(self, gradients: Mapping[str, Tensor], packed: Tensor | None = None) -> list[str]:
        """Return which of a bucket's `gradients`, by the names of their tensors, are not finite; or note this, and fill
        these with 0, or all of `packed`, a copy of all of them in one tensor."""
        names = [name for name, grad in gradients.items() if grad.numel()]
        there = [gradients[name] for name in names]
        if not there or self.checks_at_once(there[0]):
            return [name for name, grad in zip(names, there, strict=True) if not is_finite(grad)]
        if packed is None and in_one_launch(there):
            from resireduce.kernels.gpu import bucket

            self.note(names, bucket.blank_spoilt_(there))
            return []
        if len(there) > 1:
            norms = torch.stack(private.norm_of_each(there, torch.inf))
        else:
            norms = torch.linalg.vector_norm(there[0], torch.inf).view(1)
        spoilt = (norms < torch.inf).logical_not()  # NaN is not less either
        self.note(names, spoilt)
        if packed is not None:
            packed.masked_fill_(spoilt.any(), 0.0)
        else:
            for grad, is_spoilt in zip(there, spoilt, strict=True):
                grad.masked_fill_(is_spoilt, 0.0)
        return []

    def note(self, names: Sequence[str], spoilt: Tensor) -> None:
        """Note which gradients, of tensors `names`, a device has found not to be finite: `spoilt` is 1 there, or 0.
        Where each is checked when it comes, all were finite, and nobody asks later."""
        if not self.at_once:
            self._noted.append((names, spoilt))

    def checks_at_once(self, grad: Tensor) -> bool:
        """Return whether `check_` of `grad` has the host wait for the answer, and raises at once."""
        return self.at_once or grad.device.type in AT_ONCE

    def failure(self) -> NonFiniteGradient | None:
        """Return the error of the first gradient that was noted and was not finite, and forget all; None: all were."""
        noted = self._noted
        self.restart()
        if not noted:
            return None
        found = torch.cat([one.to(noted[0][1].device) for _, one in noted]).tolist()  # the host waits once
        names = (name for names, _ in noted for name in names)
        spoilt = next((name for name, is_spoilt in zip(names, found, strict=True) if is_spoilt), None)
        return None if spoilt is None else refusal(spoilt, "nothing of it was sent")

    def restart(self) -> None:
        """Forget which gradients have been noted in this step, whether they were finite or not."""
        self._noted: list[tuple[Sequence[str], Tensor]] = []
        """Names of tensors, in the order in which gradients came, and which of these were not finite: 1-D."""


def refusal(name: str, done: str = "its residual is unchanged") -> NonFiniteGradient:
    """Return the error for tensor `name`, whose gradient is not finite; `done`: what became of it."""
    return NonFiniteGradient(
        f"the gradient of {name!r} holds NaN or infinity; {done}. "
        "Lower the learning rate, or look at the loss of this step"
    )


# --- The states that a compressor keeps, tensor by tensor, from step to step ---


class CompressorStates:
    """This rank's states of one compressor, by tensor. A step's changes take effect once the step has been taken.

    A compressor works on copies, which `commit` puts in place of the held states; a step that is skipped, or that
    fails, is not committed.
    """

    def __init__(self, compressor: Compressor):
        self._compressor = compressor
        self.held: dict[str, State] = {}
        """Those of the last step that was taken, of tensors that have one."""
        self._working: dict[str, State] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Hold the initial state of tensor `name`, shaped like `parameter` and on its device."""
        if state := self._compressor.state(parameter.shape, parameter):
            self.held[name] = state

    def working(self, name: str) -> State:
        """Return the copy of tensor `name`'s state that this step may change; empty if it has no state."""
        return self._working.setdefault(name, self.copied(name))

    def copied(self, name: str) -> State:
        """Return a copy of the state of tensor `name`, whose changes are not kept; empty if it has no state."""
        return {key: tensor.clone() for key, tensor in self.held.get(name, {}).items()}

    def commit(self) -> None:
        """Keep this step's changes of the states: the step has been taken."""
        for name, state in self._working.items():
            for key, tensor in state.items():
                self.held[name][key].copy_(tensor)
        self.drop()

    def drop(self) -> None:
        """Forget this step's changes of the states."""
        self._working = {}

    def forget(self, name: str) -> None:
        """Forget this step's changes of the state of tensor `name`."""
        self._working.pop(name, None)

    def tensors(self) -> dict[str, Tensor]:
        """Return all states, by names that no residual has."""
        return {
            f"compressor.{name}.{key}": tensor for name, state in self.held.items() for key, tensor in state.items()
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the values that `state` has for `tensors()` into the tensors held, and forget what is under way."""
        self.drop()
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])


class ErrorFeedback:
    """Compresses gradients and keeps in residuals what is not sent; sends payloads, and receives their averages.

    One compressor serves all tensors but those that are `dense`: these, and all tensors during warm-up, are not
    compressed.

    It averages once. Lossless gradients are scaled by 1 / world size before they are summed, as DistributedDataParallel
    does; what a lossy compressor sends is summed as it is and scaled afterwards, in the gradient's precision: half
    precision would lose small values, which would not enter a residual.

    Args:
        compressor: for all tensors that are not `dense`.
        residual: holds the errors of all tensors; it belongs to a scheme.
        communicator: the ranks among which averages are formed.
        dense: names of the tensors that are sent without compression.
        warm_up_steps: number of first steps in which all tensors are sent so.
        schedule: the compressor of each step, by its number counted from 0, where densities change: the same class with
            another density; `compressor` is then that of step 0.
        place: this rank's number and the number of ranks, by the names in a saved state; None: those of the
            communicator.

    Raises ConfigError for a compressor whose exchange the communicator does not have.
    """

    def __init__(
        self,
        compressor: Compressor,
        residual: Residuals,
        communicator: Communicator,
        dense: frozenset[str],
        warm_up_steps: int = 0,
        place: Mapping[str, int] | None = None,
        schedule: Callable[[int], Compressor] | None = None,
    ):
        self.warm_up_steps = warm_up_steps
        """Number of first steps in which all tensors are sent dense, and residuals stay zero."""
        if compressor.collective == "rounds" and type(communicator).all_to_all is Communicator.all_to_all:
            raise ConfigError(
                f"compressor: {type(compressor).__name__} is not allowed over {type(communicator).__name__}, which has "
                "no method all_to_all(); give backend='torch' or 'horovod', or another compressor"
            )
        self.compressor, self.communicator = compressor.for_world(communicator.world_size), communicator
        self._schedule = schedule
        self._dense, self._dense_compressor = dense, NoCompression()
        self.states = CompressorStates(self.compressor)
        self.residual = residual
        self._blank = deepcopy(residual)  # nothing is registered yet
        self.place = place or {"rank": communicator.rank, "world_size": communicator.world_size}
        """Which rank of how many this is, for saved states and random seeds; by default the communicator's."""
        settings = self.compressor.momentum
        self.momentum = None if settings is None else MomentumCorrection(settings)
        self.finiteness = Finiteness()
        """Decides which gradients are refused: each at once, unless the code that takes steps clears `at_once`."""
        self._kinds: dict[str, tuple[torch.Size, torch.dtype, torch.device]] = {}
        """Shape, dtype and device of each tensor's gradient."""
        self.begin_step(0)

    # --- which compressor each tensor has in this step ---

    def begin_step(self, step: int) -> None:
        """Choose compressors for step number `step`, counted from 0, which begins; undo one that was not finished."""
        self.states.drop()
        self.warms_up, self._step = step < self.warm_up_steps, step
        self._present = self.compressor if self._schedule is None else None

    def compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` in this step: NoCompression if it is sent dense."""
        if self.warms_up or name in self._dense:
            return self._dense_compressor
        if self._present is None:
            self._present = self.compressor_at(self._step)
        return self._present

    def compressor_at(self, step: int) -> Compressor:
        """Return the compressor of all tensors that are not dense in `step`."""
        if self._schedule is None:
            return self.compressor
        return self._schedule(step).for_world(self.communicator.world_size)

    @property
    def varies(self) -> bool:
        """Whether the form of messages depends on the number of the step, which ranks then compare before the first."""
        varies = self.compressor.turns > 1 or self.compressor.collective == "rounds"  # in some steps there are more
        return varies or self._schedule is not None or self.warm_up_steps > 0

    def leaves_residual(self, name: str) -> bool:
        """Whether anything of tensor `name` can be left unsent in this step."""
        return not self.compressor_of(name).lossless

    def compresses(self, name: str) -> bool:
        """Whether tensor `name` is compressed, once warm-up is over; otherwise it is sent dense, in its bucket."""
        return name not in self._dense

    def learns(self, name: str) -> bool:
        """Whether the compressor's state of tensor `name` changes by what all ranks send in this step."""
        compressor = self.compressor_of(name)
        return name in self.states.held and not compressor.lossless and compressor.collective != "all_gather"

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate what tensor `name`, shaped like `parameter`, needs between two steps."""
        self._kinds[name] = parameter.shape, parameter.dtype, parameter.device
        if self.momentum is not None:
            self.momentum.register(name, parameter)
        if name not in self._dense:
            self.states.register(name, parameter)
        if self.keeps_residual(name):
            self.residual.of(name).register(name, parameter)

    def keeps_residual(self, name: str) -> bool:
        """Whether tensor `name` has a residual."""
        return name not in self._dense and not self.compressor.lossless

    # --- check, compensate, compress, keep ---

    @exactly
    def compress(
        self,
        gradients: Mapping[str, Tensor | None],
        step: int,
        absorbed: Collection[str] = (),
        refused: dict[str, NonFiniteGradient] | None = None,
    ) -> Message | Round:
        """Return this rank's message of the tensors of a bucket, which are all dense, or all compressed.

        If ranks make payloads in rounds, this returns the first of them.

        Args:
            gradients: the contiguous gradient of each tensor, by name, whose memory may be overwritten, or be the
                message's; until the last round it must stay. None: this rank has no gradient of it in this step, and
                sends zeros, which leave its residual as it is, and its compressor's state but for what it learns of
                other ranks.
            step: number of the step, counted from 0; it seeds random choices.
            absorbed: names of those whose whole gradient the residual has absorbed; what `gradients` has is ignored.
            refused: receives the error of each gradient that holds NaN or infinity, in place of which zeros are sent.
                Without it, the error is raised, and nothing has changed. The tensor's residual is not touched; where
                `finiteness` does not answer at once, zeros replace such a gradient.
        """
        names = [*gradients]
        compressor = self.compressor_of(names[0])
        there = {name: one for name, one in gradients.items() if one is not None and name not in absorbed}
        is_late = not all(map(self.finiteness.checks_at_once, there.values()))
        # Dense ones that share a message are looked at there, unless they change velocities before.
        in_message = is_late and len(names) > 1 and type(compressor) is NoCompression and self.momentum is None
        if not in_message:
            looked_at = self._looked_at(there) if is_late and len(there) == len(names) else ()
            for name in self.finiteness.check_each_({k: one for k, one in there.items() if k not in looked_at}):
                if refused is None:
                    raise refusal(name)
                refused[name] = refusal(name)
                del there[name]
        if agree := getattr(compressor, "agree", None):
            each = [self._made_in_rounds(agree, name, there.get(name), name in absorbed, step) for name in names]
            return self._message(names, continue_rounds(names, joined(each)))
        if compressor.adds:
            return self._made_together(names, there, absorbed, step)
        payloads = [self._made(name, there.get(name), name in absorbed, step) for name in names]
        message = Message.of(names, compressor, payloads)
        if in_message:
            self.finiteness.check_each_(there, message.buffer)
        return message

    def _looked_at(self, there: Mapping[str, Tensor]) -> Collection[str]:
        """Return the names of those of a bucket's gradients, `there`, that the compressor looks at on their device."""
        if not self.compressor_of(next(iter(there))).looks_at(*there.values()):
            return ()
        pairs = {name: self.residual.of(name).addends(one, name) for name, one in there.items()}
        return [name for name, pair in pairs.items() if pair is not None and pair[1] is there[name]]

    def _made(self, name: str, gradient: Tensor | None, is_absorbed: bool, step: int) -> Payload:
        """Return the payload of tensor `name`, from its `gradient`, which is finite; without one from what the residual
        has absorbed, or from zeros. Update the residual, unless these were zeros."""
        compressor, one = self.compressor_of(name), self._sum(name, gradient, is_absorbed)
        given = one.dense, self._drawn_from(name), step
        payload = compressor.compress_with(*given, one.state) if one.state else compressor.compress(*given)
        self._keep(name, one, payload, step)
        return payload

    def _made_in_rounds(
        self, agree: Callable[..., Rounds], name: str, gradient: Tensor | None, is_absorbed: bool, step: int
    ) -> Rounds:
        """Do as `_made`, in rounds."""
        one = self._sum(name, gradient, is_absorbed)
        del gradient  # it is free where the sum is in the residual's memory, while other ranks are waited for
        payload = yield from agree(one.dense, self._drawn_from(name), step, one.state)
        self._keep(name, one, payload, step)
        return payload

    def _made_together(
        self, names: Sequence[str], there: Mapping[str, Tensor], absorbed: Collection[str], step: int
    ) -> Message:
        """Do as `_made` for all tensors of a bucket, whose gradients are `there`; return their message."""
        compressor = self.compressor_of(names[0])
        sums = [self._sum(name, there.get(name), name in absorbed) for name in names]
        buffer, payloads, spoilt = compressor.take_from_sums_(sums)
        if spoilt is not None:
            self.finiteness.note(names, spoilt)
        for name, one, payload in zip(names, sums, payloads, strict=True):
            one.added = None  # an update may free it before it stores anew
            self._keep(name, one, payload, step)
        return Message(names, compressor, payloads, buffer)

    def _drawn_from(self, name: str) -> str:
        """Return what random choices for tensor `name` are drawn from, with the step."""
        return name if self.compressor_of(name).same_draw else f"{name}/{self.place['rank']}"

    def _sum(self, name: str, gradient: Tensor | None, is_absorbed: bool) -> Sum:
        """Return gradient + residual of tensor `name`, or the two for a compressor that adds them up."""
        compressor, residual = self.compressor_of(name), self.residual.of(name)
        if is_absorbed:
            dense, added = residual.memory(name), None
            assert dense is not None
        elif gradient is None:
            shape, dtype, device = self._kinds[name]
            zeros = torch.zeros(shape, dtype=dtype, device=device)
            return Sum(zeros, state=self.states.copied(name), is_kept=False)
        else:
            if self.momentum is not None:
                gradient = self.momentum.accumulate_(gradient, name)
            if compressor.lossless:
                return Sum(gradient, is_kept=False)
            pair = residual.addends(gradient, name) if compressor.adds else None
            dense, added = pair or (residual.compensate_(gradient, name), None)
        is_kept = not compressor.adds or type(residual).update is not NoResidual.update
        return Sum(dense, added, self.states.working(name), is_kept)

    def _keep(self, name: str, one: Sum, payload: Payload, step: int) -> None:
        """Update the residual of tensor `name` by what its `payload` leaves of the sum, if that is kept."""
        compressor = self.compressor_of(name)
        if one.is_kept:
            if self.momentum is not None:
                self.momentum.mask_(name, compressor.sent_indices(payload))
            left = partial(getattr, one, "dense") if compressor.adds else partial(compressor.error_, one.dense, payload)
            self.residual.of(name).update(name, left, step)

    @exactly
    def end_round(self, under_way: Round) -> Message | Round:
        """Wait for the result of a round; return the message that follows, or the next round, neither launched yet."""
        assert under_way.handle is not None
        names, result = under_way.names, self.wait(under_way.handle)
        return self._message(names, continue_rounds(names, under_way.rest, under_way.number, result))

    def _message(self, names: Sequence[str], made: list[Payload] | Round) -> Message | Round:
        return made if isinstance(made, Round) else Message.of(names, self.compressor_of(names[0]), made)

    def absorbs(self, name: str) -> bool:
        """Whether the gradients of a step's earlier passes can be added into the residual, and need not be held."""
        return self.momentum is None and self.leaves_residual(name) and self.residual.of(name).absorbs(name)

    @exactly
    def absorb(self, grad: Tensor, name: str) -> None:
        """Add the gradient of an earlier pass into the residual. Raises NonFiniteGradient as `compress` does."""
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
    def receive(
        self, message: Message, places: Sequence[int] | None = None, into: Sequence[Tensor | None] | None = None
    ) -> list[Tensor]:
        """Return the dense averages of what all ranks sent in `message`, as often as it is asked.

        places: of which of its tensors, counted from 0; None: of all. into: for each, the contiguous tensor that
        receives it; None: it comes in new memory, or in that of the message.
        """
        self.wait(message)
        received = message.received()
        chosen = [*range(len(received))] if places is None else [*places]
        targets = [None] * len(chosen) if into is None else [*into]
        for place in chosen:
            name, payload = message.names[place], message.payloads[place]
            if self.learns(name):
                known = payload if message.handle is None else payload.received(received[place][0])
                message.compressor.learn_(self.states.working(name), known)
        if message.compressor.lossless:
            found = [received[place][0].view(message.payloads[place].shape) for place in chosen]
            pairs = [(to, one) for to, one in zip(targets, found, strict=True) if to is not None]
            pairs = [(to, one) for to, one in pairs if to.data_ptr() != one.data_ptr()]
            if pairs:
                private.copy_each_([to for to, _ in pairs], [one for _, one in pairs])
            return [one if to is None else to for to, one in zip(targets, found, strict=True)]
        payloads = [[*map(message.payloads[place].received, received[place])] for place in chosen]
        averages = [
            torch.empty(own[0].shape, dtype=own[0].dtype, device=own[0].buffer.device) if to is None else to
            for to, own in zip(targets, payloads, strict=True)
        ]
        message.compressor.combine_each_(averages, payloads, 1 / self.communicator.world_size)
        return averages

    # --- saved states ---

    def state_dict(self, step: int) -> dict[str, Tensor]:
        """Return this rank's residuals, velocities, compressor states and place, and the number of the next `step`."""
        memory = self.states.tensors() | ({} if self.momentum is None else self.momentum.tensors())
        return (
            self.residual.tensors()
            | memory
            | origin(self.compressor.memory if memory else "", self.residual.meaning())
            | {"steps": torch.tensor(step, device="cpu")}
            | {key: torch.tensor(value, device="cpu") for key, value in self.place.items()}
        )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> int:
        """Copy `state` into the tensors held, if all of it fits; return the number of the next step in it."""
        held = self.state_dict(0)
        check_place(held, state)
        check_state(held, state)
        self.states.load(state)
        velocities = {} if self.momentum is None else self.momentum.tensors()
        for name, tensor in (self.residual.tensors() | velocities).items():
            tensor.copy_(state[name])
        return int(state["steps"])

    def reader(self, place: Mapping[str, int]) -> Self:
        """Return a pipeline like this one for the rank at `place`, with nothing registered, to load what it saved."""
        residual = deepcopy(self._blank)
        settled = self._dense, self.warm_up_steps, place, self._schedule
        return type(self)(self.compressor, residual, self.communicator, *settled)

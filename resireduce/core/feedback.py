"""Error feedback for one gradient (paper, section 2.2): compensate, compress, keep the rest, send, average."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar

import torch
from torch import Tensor

from resireduce import private
from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import Compressor, NoCompression, State, Sum
from resireduce.compressors.momentum import MomentumCorrection
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
        if not self.checks_at_once(grad):
            self.check_each_({name: grad})
        elif not is_finite(grad):
            raise refusal(name)

    def check_each_(self, gradients: Mapping[str, Tensor]) -> None:
        """Note which of `gradients`, by the names of their tensors, are not finite, and fill each of these with 0."""
        if there := {name: grad for name, grad in gradients.items() if grad.numel()}:
            if in_one_launch([*there.values()]):
                from resireduce.kernels.gpu import bucket

                self.note([*there], bucket.blank_spoilt_([*there.values()]))
                return
            spoilt = self._not_finite(there)
            for grad, is_spoilt in zip(there.values(), spoilt.unbind() if spoilt.dim() else [spoilt], strict=True):
                grad.masked_fill_(is_spoilt, 0.0)

    def check_together_(self, packed: Tensor, gradients: Mapping[str, Tensor]) -> None:
        """Note as `check_each_` does; if any is not finite, fill `packed`, a copy of all in one tensor, with 0."""
        if there := {name: grad for name, grad in gradients.items() if grad.numel()}:
            packed.masked_fill_(self._not_finite(there).any(), 0.0)

    def _not_finite(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Note and return which of `gradients`, on one device and none empty, are not finite: bool, 0-D of a single."""
        first, *others = gradients.values()
        if others:
            norms = torch.stack(private.norm_of_each([first, *others], torch.inf))
        else:
            norms = torch.linalg.vector_norm(first, torch.inf)
        spoilt = (norms < torch.inf).logical_not()  # NaN is not less either
        self.note([*gradients], spoilt if others else spoilt.view(1))
        return spoilt

    def note(self, names: Sequence[str], spoilt: Tensor) -> None:
        """Note which gradients, of tensors `names`, a device has found not to be finite: `spoilt` is 1 there, or 0."""
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
        self._held: dict[str, State] = {}
        self._working: dict[str, State] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Hold the initial state of tensor `name`, shaped like `parameter` and on its device."""
        if state := self._compressor.state(parameter.shape, parameter):
            self._held[name] = state

    def has(self, name: str) -> bool:
        """Whether tensor `name` has a state."""
        return name in self._held

    def working(self, name: str) -> State:
        """Return the copy of tensor `name`'s state that this step may change; empty if it has no state."""
        return self._working.setdefault(name, self.copied(name))

    def copied(self, name: str) -> State:
        """Return a copy of the state of tensor `name`, whose changes are not kept; empty if it has no state."""
        return {key: tensor.clone() for key, tensor in self._held.get(name, {}).items()}

    def commit(self) -> None:
        """Keep this step's changes of the states: the step has been taken."""
        for name, state in self._working.items():
            for key, tensor in state.items():
                self._held[name][key].copy_(tensor)
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
            f"compressor.{name}.{key}": tensor for name, state in self._held.items() for key, tensor in state.items()
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
        if not self.states.has(name):
            return False
        compressor = self.compressor_of(name)
        return not compressor.lossless and compressor.collective != "all_gather"

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

    # --- compensate, compress, keep ---

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
                Without it, the error is raised. The tensor's residual is not touched; where `finiteness` does not
                answer at once, zeros replace such a gradient.
        """
        names = [*gradients]
        compressor, taken = self.compressor_of(names[0]), self._take_sums(gradients, absorbed, refused, step)
        if taken is not None:
            return taken
        there = {name: one for name, one in gradients.items() if one is not None and name not in absorbed}
        # Where the host would wait for each, dense ones are checked together, unless they change velocities before.
        together = len(names) > 1 and type(compressor) is NoCompression and self.momentum is None
        together = together and not any(map(self.finiteness.checks_at_once, there.values()))
        late = {name: one for name, one in there.items() if not self.finiteness.checks_at_once(one)}
        if not together:
            self.finiteness.check_each_(late)
        found = {name: refusal(name) for name, one in there.items() if name not in late and not is_finite(one)}
        _refuse(found, refused)
        there = {name: one for name, one in there.items() if name not in found}
        each = [self._made(name, there.get(name), step, name in absorbed) for name in names]
        message = self._message(names, continue_rounds(names, joined(each)))
        if together and isinstance(message, Message):
            self.finiteness.check_together_(message.buffer, there)
        return message

    def _made(self, name: str, gradient: Tensor | None, step: int, is_absorbed: bool) -> Rounds:
        """Make the payload of tensor `name`, from its `gradient`, which is finite; without one from what the residual
        has absorbed, or from zeros. Then update the residual."""
        if gradient is None and not is_absorbed:
            return (yield from self._rounds(self._zeros(name), name, step, self.states.copied(name)))
        if gradient is not None and self.momentum is not None:
            gradient = self.momentum.accumulate_(gradient, name)
        compressor = self.compressor_of(name)
        if gradient is None:
            compensated = self._absorbed(name)
        elif compressor.lossless:
            return (yield from self._rounds(gradient, name, step, {}))
        else:
            compensated = self.residual.of(name).compensate_(gradient, name)
        del gradient  # it is free where the sum is in the residual's memory, while other ranks are waited for
        payload = yield from self._rounds(compensated, name, step, self.states.working(name))
        if self.momentum is not None:
            self.momentum.mask_(name, compressor.sent_indices(payload))
        self.residual.of(name).update(name, lambda: compressor.error_(compensated, payload), step)
        return payload

    def _rounds(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        compressor = self.compressor_of(name)
        drawn_from = name if compressor.same_draw else f"{name}/{self.place['rank']}"
        return compressor.agree(grad, drawn_from, step, state)

    def _zeros(self, name: str) -> Tensor:
        shape, dtype, device = self._kinds[name]
        return torch.zeros(shape, dtype=dtype, device=device)

    def _take_sums(
        self,
        gradients: Mapping[str, Tensor | None],
        absorbed: Collection[str],
        refused: dict[str, NonFiniteGradient] | None,
        step: int,
    ) -> Message | None:
        """Do as `compress`, if the compressor adds residuals, looks for NaN, and takes out what it sends of all tensors
        at once, while it reads the elements; None, and nothing is done, if it does not.

        Its class must have `adds`. An object that stands in for it, and passes on what it lacks, has not: then its own
        `compress` is called.
        """
        compressor = self.compressor_of(next(iter(gradients)))
        known = hasattr(type(compressor), "adds")
        if self.momentum is not None or not known or compressor.lossless or not compressor.adds:
            return None
        found: dict[str, NonFiniteGradient] = {}
        late: dict[str, Tensor] = {}
        sums = [self._sum(name, one, name in absorbed, found, late) for name, one in gradients.items()]
        self.finiteness.check_each_(late)
        buffer, payloads, spoilt = compressor.take_from_sums_(sums)
        if isinstance(spoilt, Tensor):
            self.finiteness.note([*gradients], spoilt)
            spoilt = set()
        for place, (name, gradient) in enumerate(gradients.items()):
            if place in spoilt:
                found[name] = refusal(name)
            elif name not in found and (gradient is not None or name in absorbed):
                sums[place].added = None  # an update may free it before it stores anew
                self.residual.of(name).update(name, partial(getattr, sums[place], "dense"), step)
        _refuse(found, refused)
        return Message([*gradients], compressor, payloads, buffer)

    def _sum(
        self,
        name: str,
        gradient: Tensor | None,
        is_absorbed: bool,
        spoilt: dict[str, NonFiniteGradient],
        late: dict[str, Tensor],
    ) -> Sum:
        """Return what the compressor is to add up of tensor `name`, and whether it is to look for NaN; zeros, with an
        error in `spoilt`, if it was found here. What is to be looked at before anything is added is put into `late`.

        It can look at the sum only where that is not formed in the residual's memory, which would hold the NaN by then.
        """
        if is_absorbed:
            return Sum(self._absorbed(name))
        if gradient is None:
            return Sum(self._zeros(name), is_kept=False)
        residual = self.residual.of(name)
        check, found = "", residual.addends(gradient, name)
        if self.finiteness.checks_at_once(gradient):
            check = "sum" if residual.memory(name) is None else "added"
        elif found is not None and found[1] is gradient and self.compressor_of(name).looks_at(gradient):
            check = "added"  # on the device
        elif found is not None:
            late[name] = gradient
        else:
            self.finiteness.check_(gradient, name)
        if found is None and check == "added":
            if not is_finite(gradient):
                spoilt[name] = refusal(name)
                return Sum(self._zeros(name))
            check = ""
        dense, added = found or (residual.compensate_(gradient, name), None)
        return Sum(dense, added, check, is_kept=type(residual).update is not NoResidual.update)

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

    def _absorbed(self, name: str) -> Tensor:
        """Return the residual of tensor `name` with the gradients it has absorbed."""
        memory = self.residual.of(name).memory(name)
        assert memory is not None
        return memory

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


def _refuse(found: Mapping[str, NonFiniteGradient], refused: dict[str, NonFiniteGradient] | None) -> None:
    """Put errors into `refused`; without that, raise the first."""
    if refused is None and found:
        raise next(iter(found.values()))
    if refused is not None:
        refused.update(found)

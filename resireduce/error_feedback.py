"""The pipeline of one gradient: compensate, compress, update; and back: receive, decompress, average."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Deferred, Handle
from resireduce.compressor_state import CompressorStates
from resireduce.compressors.base import Compressor, Rounds, State
from resireduce.compressors.none import NoCompression
from resireduce.compressors.sparse import SentParts
from resireduce.errors import ConfigError, NonFiniteGradient
from resireduce.message import Brought, Message, Part, Round, Shared, go_on
from resireduce.momentum import MomentumCorrection
from resireduce.packing import FromEach, Packed
from resireduce.parts import Gathered, PartedMessage, Parts
from resireduce.payload import Payload
from resireduce.residuals.base import Residual
from resireduce.saved_state import check_levels, check_place, check_state
from resireduce.timeline import Timeline, timed


class ErrorFeedback:
    """Compressor + residual + communicator + which tensors are sent dense (paper, section 2.2, steps 2-5).

    Averages once. Lossless gradients are scaled by 1 / world size before they are summed, as DistributedDataParallel
    does; what a lossy compressor sends is summed as it is and scaled afterwards, in the gradient's precision: half
    precision would lose small values, without a residual that knows.
    """

    def __init__(
        self,
        compressor: Compressor,
        residual: Residual,
        communicator: Communicator,
        dense: frozenset[str],
        warm_up_steps: int = 0,
        place: Mapping[str, int] | None = None,
    ):
        self.warm_up_steps = warm_up_steps
        """In the first so many steps all tensors are sent dense; residuals stay empty."""
        if compressor.collective == "rounds" and not communicator.exchanges:
            raise ConfigError(
                f"compressor: {type(compressor).__name__} is not allowed over {type(communicator).__name__}, which has "
                "no method all_to_all(); give backend='torch' or 'horovod', or another compressor"
            )
        self.compressor = compressor.for_world(communicator.world_size)
        self.residual, self.communicator = residual, communicator
        self._blank = deepcopy(residual)  # nothing is registered yet
        self.place = place or {"rank": communicator.rank, "world_size": communicator.world_size}
        """Which rank of how many this is, as it saves it and seeds random choices; by default the communicator's."""
        self._dense = dense
        self._dense_compressor = NoCompression()
        settings = self.compressor.momentum
        self.momentum = None if settings is None else MomentumCorrection(settings)
        self.states = CompressorStates(self.compressor)
        self.begin_step(0)
        self.timeline: Timeline | None = None
        """Told where the time of a step goes; None: nobody."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate what tensor `name`, shaped like `parameter`, needs between two steps."""
        if self.momentum is not None:
            self.momentum.register(name, parameter)
        if name not in self._dense:
            self.states.register(name, parameter)
        if self.keeps_residual(name):
            self.residual.register(name, parameter)

    def state_dict(self, step: int) -> dict[str, Tensor]:
        """This rank's residuals, velocities and compressor's states.

        And the number of the next `step`, and which rank of how many it is.
        """
        velocities = {} if self.momentum is None else self.momentum.tensors()
        return (
            self.residual.tensors()
            | self.states.tensors()
            | {"steps": torch.tensor(step, device="cpu")}
            | velocities
            | {key: torch.tensor(value, device="cpu") for key, value in self.place.items()}
        )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> int:
        """Copy `state` into the tensors held; return the number of the next step, which it has.

        ConfigError, before anything is changed, if it is of something else.
        """
        held = self.state_dict(0)
        check_levels(held, state)
        check_place(held, state)
        check_state(held, state)
        self.residual.load(state)
        self.states.load(state)
        for name, velocity in ({} if self.momentum is None else self.momentum.tensors()).items():
            velocity.copy_(state[name])
        return int(state["steps"])

    def reader(self, place: Mapping[str, int]) -> "ErrorFeedback":
        """Return a pipeline like this one, of the rank at `place`, with nothing registered: to load what that saved."""
        residual = deepcopy(self._blank)
        return ErrorFeedback(self.compressor, residual, self.communicator, self._dense, self.warm_up_steps, place)

    def begin_step(self, step: int) -> None:
        """Choose compressors for step number `step`, counted from 0, which begins; one that was not taken is undone."""
        self.states.drop()
        self._warms_up = step < self.warm_up_steps

    def compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` in this step: none where it is sent dense."""
        return self._dense_compressor if self._warms_up else self.later_compressor_of(name)

    def keeps_residual(self, name: str) -> bool:
        """Whether tensor `name` has a residual."""
        return name not in self._dense and not self.compressor.lossless

    def leaves_residual(self, name: str) -> bool:
        """Whether anything of tensor `name` can be left unsent in this step."""
        return not self.compressor_of(name).lossless

    def packs(self, name: str) -> bool:
        """Whether the payload of tensor `name` may share a collective with others in this step: it is compressed."""
        return self.merges(name) and not self._warms_up

    def merges(self, name: str) -> bool:
        """Whether tensor `name` is compressed, once warm-up is over; else it is sent dense, in its bucket."""
        return name not in self._dense

    def later_compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` once warm-up is over: none where it is sent dense."""
        return self.compressor if self.merges(name) else self._dense_compressor

    def gathers(self, name: str) -> bool:
        """Whether all ranks' payloads of tensor `name` are received in this step, instead of their sum."""
        return self.compressor_of(name).collective == "all_gather"

    @timed("compress")
    def compress(self, grad: Tensor, name: str, step: int) -> Payload | Round:
        """This rank's payload for contiguous `grad`, whose memory may be overwritten (or be the payload's).

        Or the first of the rounds in which ranks make it: `grad` is needed until the last, which updates the residual.
        Raises NonFiniteGradient, before the residual is touched, if `grad` holds NaN or infinity.
        """
        check_finite(grad, name)
        if self.momentum is not None:
            grad = self.momentum.accumulate_(grad, name)
        if self.compressor_of(name).lossless:
            return go_on(name, self._rounds(grad, name, step))
        return go_on(name, self._feed_back(self.residual.compensate_(grad, name), name, step))

    @timed("compress")
    def compress_absorbed(self, name: str, step: int) -> Payload | Round:
        """As `compress` of tensor `name`, all of whose gradient the residual has absorbed."""
        return go_on(name, self._feed_back(self.residual.absorbed(name), name, step))

    def _feed_back(self, compensated: Tensor, name: str, step: int) -> Rounds:
        """Make the payload of a gradient with its residual, and update that."""
        compressor = self.compressor_of(name)
        payload = yield from self._rounds(compensated, name, step, self.states.working(name))
        if self.momentum is not None:
            self.momentum.mask_(name, compressor.sent_indices(payload))
        self.residual.update(name, lambda: compressor.error_(compensated, payload), step)
        return payload

    @timed("compress")
    def end_round(self, under_way: Round) -> Payload | Round:
        """Wait for what a round brings; return the payload that follows, or the next round, neither launched."""
        return go_on(under_way.name, under_way.rest, under_way.number, self._brought(under_way))

    def absorbs(self, name: str) -> bool:
        """Whether the gradients of a step's earlier passes can be added into the residual, and need not be held."""
        return self.momentum is None and self.leaves_residual(name) and self.residual.absorbs(name)

    @timed("compress")
    def absorb(self, grad: Tensor, name: str) -> None:
        """Add the gradient of an earlier pass into the residual. Raises NonFiniteGradient before that is touched."""
        check_finite(grad, name)
        self.residual.compensate_(grad, name)

    @timed("compress")
    def absorb_rows(self, grad: Tensor, name: str, rows: slice) -> None:
        """Add the gradient of some `rows` of tensor `name`, known to be finite, into the residual that `absorbs` it."""
        self.residual.absorb_rows(grad, name, rows)

    def takes_parts(self, name: str, like: Tensor) -> bool:
        """Whether `compress_parts` can do in this step what `compress` does, for tensor `name`, `like` that.

        Where the residual absorbs gradients, that is cheaper, and this is False.
        """
        known = self.momentum is None and self.keeps_residual(name) and self.residual.takes_parts(name)
        return known and self.compressor_of(name).selects_from_parts(like)

    @timed("compress")
    def compress_parts(
        self, gradient: Callable[[slice], Tensor], rows: Sequence[slice], like: Tensor, name: str, step: int
    ) -> Payload:
        """As `compress` of a gradient that is made in parts, all of them twice, and is never there as a whole.

        To see what is to be sent, from the last to the first; and to take it out, and leave the rest to the residual,
        from the first to the last. Raises NonFiniteGradient before the residual is touched.

        Args:
            gradient: returns that of some rows, a new contiguous tensor with the same bits each time.
            rows: all of the tensor, each part beginning with a multiple of 64 elements.
            like: has the shape, dtype and device of tensor `name`.
        """
        compressor, width = self.compressor_of(name), like.shape[1:].numel()
        selection = compressor.selection(like)
        for part in reversed(rows):
            grad = gradient(part)
            check_finite(grad, name)
            selection.add(self.residual.compensate_part_(grad, name, part.start * width).view(-1), part.start * width)
            del grad
        indices = selection.indices()
        del selection
        source, sent = self.residual.source(name, like, step), SentParts(indices, like)
        for part in rows:
            left = self.residual.compensate_part_(gradient(part), name, part.start * width)
            left = sent.take_out(left, part.start * width, compressor)
            self.residual.update_part(left, name, part.start * width, source)
            del left
        return sent.payload()

    @timed("compress")
    def keep(self, dense: Tensor, name: str, step: int) -> None:
        """Add `dense` to the residual of tensor `name`; `step` seeds how that is rounded."""
        self.residual.restore(name, self.residual.compensate_(dense, name), step)

    def put_back(self, payload: Payload, name: str, step: int) -> None:
        """Return what was sent to the residual; `step` seeds how that is rounded."""
        self.keep(self.compressor_of(name).decompress(payload), name, step)

    def _rounds(self, grad: Tensor, name: str, step: int, state: State | None = None) -> Rounds:
        compressor = self.compressor_of(name)
        drawn_from = name if compressor.same_draw else f"{name}/{self.place['rank']}"
        return compressor.agree(grad, drawn_from, step, state or {})

    @timed("compress")
    def absent(self, parameter: Tensor, name: str, step: int) -> Payload | Round:
        """What a rank sends for a tensor without a gradient in this step: zeros. The residual stays as it is.

        So does its state, but for what it learns of the others' gradients.
        """
        zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        return go_on(name, self._rounds(zeros, name, step, self.states.copied(name)))

    @timed("communicate")
    def send(self, made: Sequence[Payload | Round], name: str) -> list[Message | Round]:
        """Launch the collective of tensor `name`, or one for several of one compressor, of which it is the first.

        Of what `compress` has `made`: a payload, or a round, which then is itself what is under way.
        """
        if isinstance(made[0], Round):
            made[0].launch(self.communicator)
            return [made[0]]
        return self._send([payload for payload in made if isinstance(payload, Payload)], name)

    def _send(self, payloads: list[Payload], name: str) -> list[Message | Round]:
        compressor = self.compressor_of(name)
        if compressor.collective == "all_gather":
            return self._gather(payloads, compressor, name)
        if compressor.collective == "rounds":
            (payload,) = payloads
            assert payload.known is not None
            return [Message(name, payload, compressor, Brought([payload.known]))]
        # A single tensor is summed in its own memory.
        buffer = payloads[0].buffer if len(payloads) == 1 else torch.cat([payload.buffer for payload in payloads])
        if compressor.lossless:
            buffer.mul_(1 / self.communicator.world_size)
        whole = Shared(self.communicator.all_reduce(buffer, name))
        stops = list(accumulate(payload.buffer.numel() for payload in payloads))
        parts = [Part(whole, start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        return [
            Message(name, replace(payload, buffer=buffer[part.start : part.stop]), compressor, part)
            for payload, part in zip(payloads, parts, strict=True)
        ]

    def _gather(self, payloads: list[Payload], compressor: Compressor, name: str) -> list[Message | Round]:
        if len(payloads) == 1:
            gathered = self.communicator.all_gather(payloads[0].buffer, name, compressor.equal_sizes)
            return [Message(name, payloads[0], compressor, Shared(gathered))]
        packed = Packed(payloads, compressor.equal_sizes)
        rows = self.communicator.all_gather(packed.buffer, name, compressor.equal_sizes)
        unpacked = Shared(Deferred(lambda: [packed.unpack(row) for row in rows.wait()]))
        return [
            Message(name, payload, compressor, FromEach(unpacked, number))
            for number, payload in enumerate(packed.payloads)
        ]

    @timed("communicate")
    def send_in_parts(self, payload: Payload, name: str, most_bytes: int, present: bool) -> PartedMessage:
        """Launch the first collective of those that bring the payloads of tensor `name` in parts.

        most_bytes: of all ranks' parts that are alive at once. present: whether there is a gradient on this rank.
        """
        parts = Parts(name, payload, self.communicator, most_bytes, present)
        return PartedMessage(name, payload, self.compressor_of(name), parts)

    @timed("communicate")
    def _wait(self, handle: Handle[Tensor] | Gathered) -> Tensor | Sequence[Tensor]:
        return handle.wait()

    @timed("communicate")
    def _brought(self, under_way: Round) -> Any:
        assert under_way.handle is not None
        return under_way.handle.wait()

    @timed("decompress")
    def receive(self, message: Message | PartedMessage, into: Tensor | None = None) -> Tensor:
        """The average over all ranks, dense: in contiguous `into`, in the payload's own memory, or in a new tensor."""
        if isinstance(message, PartedMessage):
            average = self.receive_part(message, 0, message.payload.shape.numel()).view(message.payload.shape)
            return average if into is None else into.copy_(average)
        payload, received = message.payload, self._wait(message.handle)
        self._learn(message, received)
        if not isinstance(received, Tensor):
            return self._average(message, received, into)
        if message.compressor.lossless:
            averaged = received.view(payload.shape)
            if into is None or into.data_ptr() == averaged.data_ptr():
                return averaged
            return into.copy_(averaged)
        return self._average(message, [received], into)

    def _learn(self, message: Message, received: Tensor | Sequence[Tensor]) -> None:
        """Have the compressor remember what all ranks have learnt by a sum, or by rounds."""
        compressor = message.compressor
        if compressor.lossless or compressor.collective == "all_gather":
            return
        if (state := self.states.working(message.name)) is not None:
            known = message.payload.received(received) if isinstance(received, Tensor) else message.payload
            compressor.learn_(state, known)

    @timed("decompress")
    def receive_part(self, message: Message | PartedMessage, start: int, stop: int) -> Tensor:
        """Elements `start` to `stop` of the flat average over all ranks: new, 1-D; of a compressor that `cuts`.

        Of a message in parts all elements must be asked for, once, in their order.
        """
        payload = message.payload
        part = torch.zeros(stop - start, dtype=payload.dtype, device=payload.buffer.device)

        def add(handle: Gathered | Handle[Tensor], received: Callable[[Tensor], Payload]) -> None:
            got = self._wait(handle)
            for one in map(received, [got] if isinstance(got, Tensor) else got):
                message.compressor.add_part_(part, one, start, 1 / self.communicator.world_size)

        if isinstance(message, PartedMessage):
            parts = message.parts
            parts.through(stop, lambda handle: add(handle, parts.received))
        else:
            self._learn(message, self._wait(message.handle))
            add(message.handle, payload.received)
        return part

    def _average(self, message: Message, buffers: Sequence[Tensor], into: Tensor | None) -> Tensor:
        """Return what all payloads come to, one rank's after the other: in the same order everywhere."""
        payload, scale = message.payload, 1 / self.communicator.world_size
        if into is None:
            into = torch.empty(payload.shape, dtype=payload.dtype, device=payload.buffer.device)
        return message.compressor.combine_(into, map(payload.received, buffers), scale)


def check_finite(grad: Tensor, name: str) -> None:
    """Raise NonFiniteGradient if an element is NaN or infinite. A finite sum proves the contrary, and is cheaper."""
    if grad.is_meta or torch.isfinite(grad.sum()) or torch.isfinite(torch.linalg.vector_norm(grad, torch.inf)):
        return
    raise NonFiniteGradient(
        f"the gradient of {name!r} holds NaN or infinity; its residual is unchanged. "
        "Lower the learning rate, or look at the loss of this step"
    )

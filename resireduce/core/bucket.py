"""Buckets: lists of parameters whose gradients are compressed, travel, and come back together; the slot of each of
these parameters; and the rules for the borders of buckets."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.comm.base import Communicator
from resireduce.comm.nodes import NodeSlices
from resireduce.core.feedback import ErrorFeedback, exactly
from resireduce.core.messages import Message, Payload, Round
from resireduce.errors import UsageError
from resireduce.grouping import is_small
from resireduce.guard import WAS_DROPPED, StreamedAway

SMALL_BYTES = 1 << 18
"""Small dense tensors (biases, norms) are in buckets of up to this size: each message costs time."""
LARGEST_BYTES, SHARE = 25 << 20, 32
"""Most bytes of gradients in a bucket of compressed tensors, unless it has a single larger one; and the share of all
these that it has at most, 1 / SHARE: what waits for a bucket to be complete is small beside the model."""


# --- The slot of a parameter: what has become of its gradient in this step ---


class Stage(Enum):
    """How far the gradient of one parameter has come within a step."""

    OPEN = "no backward pass has reached it, or what passes have brought lies in `.grad`"
    ABSORBED = "the residual has absorbed earlier passes; between passes the guard stands in `.grad`"
    TAKEN = "this rank, or on two levels one of its node, has a gradient of it; `.grad` may receive the average"
    GUARDED = "this rank has a gradient of it, and the guard stands in `.grad`"
    DROPPED = "the last pass is over, and the sum holds NaN or infinity: this rank has no gradient of it"


HERE = (Stage.GUARDED, Stage.TAKEN)  # made once, since each gradient asks several times


@dataclass(eq=False)
class Slot:
    """The record of one parameter's gradient on its way through a step."""

    index: int
    """Place among the trained parameters, in the order of the model."""
    name: str
    parameter: nn.Parameter
    small: bool
    """Whether the gradient is sent dense, and may share a message with other such gradients."""
    slices: NodeSlices | None = None
    """With two levels: how the ranks of a node share it; None: each rank compresses all of it."""
    place: int = 0
    """With two levels: which of the slices is this rank's, counted from 0."""
    guard: StreamedAway = field(init=False)
    """Replaces `.grad` while the gradient is under way."""
    template: Tensor = field(init=False)
    """Shaped like the part that this rank compresses: the parameter itself, or an empty tensor like its slice."""
    gradient: Tensor | None = None
    """What this rank has taken, until its bucket is compressed: its gradient or, with two levels, first that and then
    its slice of the node's mean. None: the residual has absorbed it, or there is none."""
    is_ready: bool = False
    """Whether its gradient has come, or none that can be used will, so that its bucket need not wait for it."""
    average: Tensor | None = None
    """With two levels: the average, which came together with those of its bucket, until it is used."""
    passes: int = 0
    """Backward passes since the last step."""
    made: int | None = None
    """Address of what autograd has left in `.grad`, until averages come. Any other gradient was put there by hand."""
    is_announced: bool | None = None
    """Whether autograd is about to add a gradient to `.grad`; None: the hook before that has not been called."""
    stage: Stage = Stage.OPEN
    sent: Payload | None = None
    """With a GradScaler: a copy of what this rank sent, which goes back into the residual if the step is skipped."""
    kind: tuple[torch.dtype, torch.device, tuple[int, ...]] = field(init=False)
    """Dtype, device and shape that the parameter had at the start."""

    def __post_init__(self) -> None:
        self.kind, element = self._kind(), _zero(self.parameter.dtype, self.parameter.device)
        self.guard = element.expand(self.parameter.shape).as_subclass(StreamedAway)
        self.guard.owner = self.name
        self.template = self.parameter if self.slices is None else element.expand(self.slices.shape_of(self.place))

    @property
    def shape_by_place(self) -> torch.Size:
        """Shape of the part that the node's first rank compresses, by which all ranks find the same buckets."""
        return self.template.shape if self.slices is None else self.slices.shape_of(0)

    def _kind(self) -> tuple[torch.dtype, torch.device, tuple[int, ...]]:
        return self.parameter.dtype, self.parameter.device, tuple(self.parameter.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense gradient."""
        return self.parameter.nbytes

    @property
    def is_guarded(self) -> bool:
        """Whether the guard is in `.grad`."""
        return self.parameter.grad is self.guard

    @property
    def is_taken(self) -> bool:
        """Whether this rank, or with two levels another one of its node, has taken a gradient of it in this step."""
        return self.stage in HERE

    def restart(self) -> None:
        """Begin a step anew: drop a streamed parameter's `.grad`, and what was made, sent and received."""
        if self.is_guarded:
            self.parameter.grad = None
        self.passes, self.made, self.sent, self.gradient, self.average = 0, None, None, None, None
        self.is_ready, self.stage = False, Stage.OPEN

    def hide(self) -> None:
        """Replace `.grad` by the guard."""
        self.parameter.grad = self.guard
        if self.stage is Stage.TAKEN:
            self.stage = Stage.GUARDED

    def uncover(self) -> None:
        """Remove the guard. UsageError if it was replaced or dropped, or the parameter moved, in the meantime."""
        self.check_kind()
        if not self.is_guarded:
            raise UsageError(WAS_DROPPED.format(name=self.name))
        self.parameter.grad = None
        self.stage = Stage.TAKEN

    def note_made(self) -> None:
        """Remember the address of the gradient that autograd has left in `.grad`. Raises UsageError if it is sparse."""
        grad = self.parameter.grad
        if grad is not None and grad.layout != torch.strided:
            raise UsageError(f"the gradient of {self.name!r} is sparse: make its layer with sparse=False")
        self.made = None if grad is None else grad.data_ptr()

    @property
    def grad(self) -> Tensor:
        """The gradient in `.grad`, where there is one."""
        assert self.parameter.grad is not None
        return self.parameter.grad

    def own(self, shared: bool = False) -> Tensor:
        """Return a gradient that may be overwritten: that in `.grad`, unless it is `shared`, since autograd may still
        hand out its memory to others, or was put there by hand. Then it is a copy, which replaces it in `.grad`."""
        grad = self.grad
        if grad.is_meta or (grad.data_ptr() == self.made and not shared):
            return grad
        return self.copy_grad(grad)

    def copy_grad(self, grad: Tensor) -> Tensor:
        """Replace `grad`, which is in `.grad`, by a copy of it; return the copy."""
        copy = self.parameter.grad = torch.empty_like(self.parameter, dtype=grad.dtype).detach_().copy_(grad)
        self.made = copy.data_ptr()
        return copy

    def check_kind(self) -> None:
        """Raise UsageError if the parameter's dtype, device or shape has changed since the start."""
        then, now = self.kind, self._kind()
        if now != then:
            raise UsageError(
                f"{self.name!r} was {then[0]} on {then[1]} at resireduce.distribute(...), and is {now[0]} on {now[1]} "
                f"now (shape {then[2]}, now {now[2]}): convert or move the model before, or close() the optimizer and "
                "distribute anew"
            )


@cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one element, whose memory guards and templates share."""
    return torch.zeros((), dtype=dtype, device=device)


def make_slots(
    parameters: Mapping[str, nn.Parameter],
    feedback: ErrorFeedback,
    node: Communicator | None = None,
    shares: bool = False,
) -> list[Slot]:
    """Return a slot for each of `parameters`, for which `feedback` allocates what it needs; with `shares` also large
    dense tensors may share a message."""
    _of_one()  # outside of any backward pass
    slots = []
    for index, (name, parameter) in enumerate(parameters.items()):
        slices = None if node is None else NodeSlices(parameter.shape, node.world_size)
        place = 0 if node is None else node.rank
        fits = is_small(parameter) or (shares and name in feedback.dense)
        small = fits and not feedback.keeps_residual(name)
        slots.append(Slot(index, name, parameter, small, slices, place))
        feedback.register(name, slots[-1].template)
    return slots


# --- Buckets, and their borders ---


@dataclass(eq=False)
class Bucket:
    """Tensors whose gradients are compressed and sent together, all of one dtype and device: all dense, or none."""

    slots: list[Slot]
    """One for each tensor; ranks pair messages by the name of the first."""
    message: Message | Round | None = None
    """This rank's message in this step, from its compression to its last use; or the round before it."""
    gathered_bytes: int = 0
    """Bytes of the messages of all ranks, if they are gathered, as this rank's was launched."""

    @property
    def is_ready(self) -> bool:
        """Whether all gradients have come: the last one is asked first, since this is asked for each."""
        return all(slot.is_ready for slot in reversed(self.slots))

    @property
    def nbytes(self) -> int:
        """Bytes of the dense gradients."""
        return sum(slot.nbytes for slot in self.slots)


def in_buckets(order: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[Bucket]:
    """Return the buckets of the tensors in `order`, the one in which gradients arrive.

    Dense tensors have their own, but small ones of one kind share them; compressed ones are merged as `merge` says, as
    in `resireduce.distribute`, checked. A rule that needs times has none at first: each tensor then has its own.
    """
    compressed = [slot for slot in order if slot.name not in feedback.dense]
    dense = [slot for slot in order if slot.name in feedback.dense]
    limit = sum(slot.nbytes for slot in order) if merge == "hybrid" else SMALL_BYTES
    lists = [*_merged(compressed, merge, feedback), *([slot] for slot in dense if not slot.small)]
    lists += _runs([slot for slot in dense if slot.small], limit, lambda slot: slot.nbytes)
    return [*arrange([Bucket(one) for one in lists], order)]


def arrange(buckets: Iterable[Bucket], order: Iterable[Slot]) -> Iterator[Bucket]:
    """Yield `buckets` in the order in which tensors, coming in `order`, complete them. A bucket of small tensors waits
    until the next small tensor comes.

    What they hold never changes: with three ranks or more, how an all-reduce rounds an element depends on its place in
    the message, and training that resumes from a checkpoint begins with the first order again.
    """
    place = {slot: bucket for bucket in buckets for slot in bucket.slots}
    missing = {bucket: len(bucket.slots) for bucket in place.values()}
    ready: list[Bucket] = []
    for slot in order:
        bucket = place[slot]
        missing[bucket] -= 1
        complete = [] if missing[bucket] else [bucket]
        if slot.small:
            yield from ready
            ready = complete
        else:
            yield from complete
    yield from ready


def _merged(slots: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[list[Slot]]:
    """Return the lists of `slots`, which are compressed; names of other tensors in `merge` are ignored."""
    if merge is None and feedback.compressor.merges:
        nbytes = {slot: slot.shape_by_place.numel() * slot.template.itemsize for slot in slots}
        return _runs(slots, min(LARGEST_BYTES, sum(nbytes.values()) // SHARE), nbytes.__getitem__)
    if merge in ("one", "hybrid"):
        return _runs(slots)
    if isinstance(merge, str | None):
        return [[slot] for slot in slots]
    if isinstance(merge, int):
        compressor, step = feedback.compressor_at(feedback.warm_up_steps), feedback.warm_up_steps

        def sent_bytes(slot: Slot) -> int:  # by the node's first rank, in the first step after warm-up
            like = torch.empty(slot.shape_by_place, dtype=slot.template.dtype, device="meta")
            return compressor.compress(like, slot.name, step).nbytes

        return _runs(slots, merge, sent_bytes)
    by_name = {slot.name: slot for slot in slots}
    listed = [[by_name.pop(name) for name in names if name in by_name] for names in merge]
    return [run for names in listed for run in _runs(names)] + [[slot] for slot in by_name.values()]


def _runs(
    slots: Sequence[Slot], limit_bytes: float = math.inf, size: Callable[[Slot], int] = lambda slot: 0
) -> list[list[Slot]]:
    """Cut `slots` into the longest runs of one dtype and device that have `limit_bytes` at most by the `size` of each,
    or one slot that is larger."""
    runs: list[list[Slot]] = []
    held = 0
    for slot in slots:
        nbytes = size(slot)
        if runs and slot.kind[:2] == runs[-1][0].kind[:2] and held + nbytes <= limit_bytes:
            runs[-1].append(slot)
            held += nbytes
        else:
            runs.append([slot])
            held = nbytes
    return runs


# --- The memory of gradients: whether others use it, so that it must not be changed in place ---


def is_shared(grad: Tensor) -> bool:
    """Return whether another tensor uses the memory of `grad`, which a backward pass has just left in `.grad`.

    Autograd leaves views there: with a batch of one, that of `position` in `h + position.unsqueeze(0)` is a view of the
    gradient of `h`, which the layers before are still to be given; two positions that are added share one memory.
    """
    return _uses(grad) > _of_one()


def _uses(tensor: Tensor) -> int:
    return int(private.uses_of_storage(tensor.untyped_storage()._cdata))


@cache
def _of_one() -> int:
    """Return the use count of a gradient that nothing else shares, within a hook, where torch may hold it too: found by
    a small backward pass."""
    seen: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, device="cpu", requires_grad=True)
        weight.register_post_accumulate_grad_hook(lambda one: seen.append(_uses(one.grad)))
        (weight * weight).backward()
    return seen[0]


Key = TypeVar("Key")


def separate(slots: Sequence["Slot"], others: Iterable[Tensor]) -> None:
    """Give gradients of `slots` memory of their own where autograd has left several in one, also with those of
    `others`: each is to hold an average, which has no graph.

    In `cat([token, rest]) + position` with a batch of one, the gradient of `token` is some rows of that of `position`.
    """
    found = [(slot, slot.parameter.grad) for slot in slots] + [(None, other.grad) for other in others]
    held = [(slot, grad) for slot, grad in found if grad is not None and not isinstance(grad, StreamedAway)]
    for slot, grad in held:
        if slot is not None and grad.requires_grad:
            slot.parameter.grad = grad.detach()
    pairs = overlaps((number, grad) for number, (_, grad) in enumerate(held))
    for number in {number for pair in pairs for number in pair}:
        slot, grad = held[number]
        if slot is not None:
            slot.copy_grad(grad)


def overlaps(tensors: Iterable[tuple[Key, Tensor]]) -> Iterator[tuple[Key, Key]]:
    """Yield the keys of each two of `tensors` whose spans of memory, from the first to the last element, overlap; those
    whose memory cannot be looked at, as on device meta, are left out."""
    spans = []
    for key, one in tensors:
        if one.layout == torch.strided and not one.is_meta and not private.is_wrapper(one) and one.numel():
            last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
            start = one.data_ptr()
            spans.append((str(one.device), start, start + (last + 1) * one.element_size(), key))
    begun: list[tuple[str, int, int, Key]] = []
    for span in sorted(spans, key=lambda span: span[:3]):
        begun = [other for other in begun if other[0] == span[0] and other[2] > span[1]]
        yield from ((other[3], span[3]) for other in begun)
        begun.append(span)


# --- Clipping by the global norm, as torch's clip_grad_norm_ does it, from the norms of the single tensors ---


@exactly
def clip_factor(norms: Sequence[Tensor], largest: float) -> tuple[Tensor, Tensor]:
    """Return the global norm of tensors with these L2 `norms`, and the factor that limits it to `largest`: 0-D."""
    if not norms:
        return torch.zeros((), device="cpu"), torch.ones((), device="cpu")
    norm = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm, (largest / (norm + 1e-6)).clamp(max=1.0)


def scale_(slots: Iterable[Slot], factor: Tensor) -> None:
    """Multiply what is in the `.grad` of `slots` by the 0-D `factor`."""
    for slot in slots:
        slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]

"""The interface of compressors."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from resireduce import private
from resireduce.core.messages import Dense, Found, Message, Payload, Round, Rounds, Sized, Summed, joined
from resireduce.errors import UsageError, check, check_count, check_share, is_number

if TYPE_CHECKING:
    from resireduce.core.feedback import Finiteness, Sum

Collective = Literal["all_reduce", "all_gather", "rounds"]
"""How payloads of several ranks are combined: summed elementwise, gathered, or in the rounds that made them."""


@dataclass(frozen=True)
class Momentum:
    """How a compressor wants momentum corrected: Lin et al., "Deep gradient compression", ICLR 2018, section 3."""

    factor: float
    nesterov: bool = False
    masking: bool = True
    """Whether the velocity is set to zero where it was sent (the paper's momentum factor masking)."""


class MomentumCorrection:
    """This rank's velocities u, one for each parameter, in place of the optimizer's momentum.

    An optimizer's momentum, applied to sparse averages, discounts a delayed element from the step in which it was sent,
    not from the one in which it arose. Here u <- m u + g on each rank, and u replaces the gradient: it is compensated
    and compressed, and what is not sent of it is the residual. Dense tensors are treated in the same way: averaging is
    linear, so their average is the momentum of the averages.
    """

    def __init__(self, settings: Momentum):
        self.settings = settings
        self._velocities: dict[str, Tensor] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for tensor `name`, of the shape and dtype of `parameter`."""
        self._velocities[name] = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def accumulate_(self, grad: Tensor, name: str) -> Tensor:
        """Overwrite contiguous `grad` of tensor `name` with its velocity u, or Nesterov's g + m u; return it."""
        velocity = self._velocities[name].mul_(self.settings.factor).add_(grad)
        if self.settings.nesterov:
            return grad.add_(velocity, alpha=self.settings.factor)
        return grad.copy_(velocity)

    def mask_(self, name: str, compressor: "Compressor", payload: Payload) -> None:
        """With masking, zero tensor `name`'s velocity where its `payload` has sent elements, unless it has sent all."""
        indices = compressor.sent_indices(payload) if self.settings.masking else None
        if indices is not None:
            self._velocities[name].view(-1).index_fill_(0, indices, 0.0)

    def check_present(self, presence: Sequence[int], world_size: int) -> None:
        """Raise UsageError, on all ranks, if some of `world_size` ranks had no gradient of a tensor that others had:
        their velocity would neither be sent nor decay. `presence` begins with how many had one, of each registered."""
        for name, count in zip(self._velocities, presence, strict=False):  # more numbers may follow
            if 0 < count < world_size:
                raise UsageError(
                    f"{name!r} had a gradient on some ranks and none on others, whose velocity of it would not be "
                    "averaged: use compressor='dgc' with the optimizer's own momentum, or give it a gradient of zero"
                )

    def tensors(self) -> dict[str, Tensor]:
        """Return the velocities, by names that no residual has."""
        return {f"momentum.{name}": velocity for name, velocity in self._velocities.items()}


# --- Fields of compressors that say which values they may have ---


def checked(default: Any, is_allowed: Callable[[Any], bool], wanted: str) -> Any:
    """Return a field with this `default`; an error says what is `wanted` in place of a value that is not allowed."""
    return field(default=default, metadata={"check": lambda name, one: check(name, one, is_allowed(one), wanted)})


def count(default: int | None, least: int = 0, of: str = "", or_none: bool = False) -> Any:
    """Return a field with this `default` that `check_count` checks, with the other arguments."""
    return field(default=default, metadata={"check": partial(check_count, least=least, of=of, or_none=or_none)})


def number(default: float, least: float = 0, below: float = math.inf) -> Any:
    """Return a field with this `default`, for numbers that are `least` or more, and `below` another one."""
    wanted = f"a number, {least} or more" if below == math.inf else f"a number, {least} <= it < {below}"
    return checked(default, lambda one: is_number(one) and least <= one < below, wanted)


State = dict[str, Tensor]
"""What a compressor remembers of one tensor, by names without dots."""


def add_where_(dense: Sequence[Tensor], added: Sequence[Tensor | None]) -> None:
    """Add to each of `dense`, in place, what is to be `added`, if anything."""
    if there := [pair for pair in zip(dense, added, strict=True) if pair[1] is not None]:
        private.add_each_(*map(list, zip(*there, strict=True)))


class Compressor(ABC):
    """A lossy map Q of one gradient. Subclasses are frozen dataclasses: their fields are hyperparameters, not state.

    A compressor declares by `state` what it must remember of a tensor from step to step: the pipeline holds, counts and
    saves it, and passes it to `compress_with`.

    Contract, for every gradient g: `decompress(compress(g))` is what the other ranks learn of it, and
    `error_(g, payload)` = g - decompress(payload) is what they do not.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "agree") and not hasattr(cls, "_in_rounds"):
            raise TypeError(f"{cls.__name__}: a compressor whose ranks agree in rounds is to be an Agreeing")
        of_a_tensor = ("select", "packed", "compress", "compress_with", "add_", "error_", "combine_")
        for name in () if hasattr(cls, "agree") else ("send", "combine_each_"):
            of = next(kind for kind in cls.__mro__ if name in vars(kind))
            if any(getattr(cls, one) is not getattr(of, one) for one in of_a_tensor if hasattr(of, one)):
                setattr(cls, name, getattr(Compressor, name))  # what is inherited would not do as these say

    def __post_init__(self) -> None:
        """Raise ConfigError for a field whose value is not allowed."""
        for one in fields(self):  # type: ignore[arg-type]
            if "check" in one.metadata:
                one.metadata["check"](one.name, getattr(self, one.name))

    # --- what a compressor declares before there is any gradient ---

    collective: ClassVar[Collective] = "all_gather"
    """How payloads are combined: summed elementwise, or gathered and decompressed one after the other. With "rounds",
    the rounds have exchanged everything, and `known` is one payload, the sum of all."""
    same_draw: ClassVar[bool] = False
    """Whether all ranks must make the same random choices; otherwise each makes its own."""
    lossless: ClassVar[bool] = False
    """True if the error is always zero: then no residual is kept."""
    state_of_ranks: ClassVar[bool] = False
    """Whether its state depends on the number of ranks: with another number it starts anew."""
    turns: ClassVar[int] = 1
    """After how many steps payloads return to their first form; other than 1 if forms alternate."""
    merges: ClassVar[bool] = True
    """Whether several tensors can travel together. With rounds, all must ask for the same exchanges and for no sums, of
    equal sizes for all tensors and on all ranks."""

    @property
    def equal_sizes(self) -> bool:
        """Whether payloads of one tensor have the same size on all ranks; otherwise only their size may differ."""
        return True

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that is formed on each rank before compression, in place of the optimizer's, if any."""
        return None

    @property
    def memory(self) -> str:
        """What decides the meaning of its state and velocities, in words: they are loaded only where this is equal."""
        return f"{type(self).__name__} with {self.momentum or 'no momentum'}"

    # --- what it does ---

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Return this compressor, sending a share `density` of the elements, in (0, 1], if it selects any."""
        return cls()

    def for_world(self, world_size: int) -> "Compressor":
        """Return this compressor as it must be for `world_size` ranks."""
        return self

    def compresses(self, shape: torch.Size) -> bool:
        """Whether tensors of `shape` are worth compressing; others are sent dense, and have no residual."""
        return True

    @abstractmethod
    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the payload of contiguous `grad`, of any shape and floating dtype, which is not changed.

        `name` and `step` seed random choices; `name` is the tensor's and, without `same_draw`, includes the rank.
        """

    def sees_non_finite(self, like: Tensor) -> bool:
        """Whether `send` notes what is not finite in sums `like` this tensor, so that gradients need not be checked."""
        return False

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the initial state of a tensor of `shape`, with dtype and device of `like`.

        It has new tensors, without storage if `like` has none; their shapes and dtypes never change. Empty: no state.
        """
        return {}

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Do as `compress` of `grad`, `name` and `step`, with a `state`, whose tensors it may change in place.

        `compress` does the same with the initial state. A state belongs to this rank alone: payloads must be
        decompressed without it.
        """
        return self.compress(grad, name, step)

    def learn_(self, state: State, payload: Payload) -> None:
        """Change `state`, in place, by `payload`, the all-reduced sum of all ranks' payloads.

        Here to what the payload has `learnt`. It may be called more than once in a step with the same arguments, and
        also where this rank had no gradient.
        """
        for name, value in payload.learnt.items():
            state[name].copy_(value)

    def sent_indices(self, payload: Payload) -> Tensor | None:
        """Return which elements of the flat gradient the payload holds, 1-D int64; None if it holds all."""
        return None

    @abstractmethod
    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the decompressed payload to contiguous `dense`, of the gradient's shape; return `dense`."""

    def combine_(self, dense: Tensor, payloads: Iterable[Payload], scale: float) -> Tensor:
        """Overwrite `dense`, as in `add_`, with the combination of all ranks' payloads, in rank order; return it.

        This is `scale`, 1 / number of ranks, x the sum of the decompressed payloads; a vote may be something else.
        """
        dense.zero_()
        for payload in payloads:
            self.add_(dense, payload, scale)
        return dense

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        """Do as `combine_`, with this `scale`, for each of the `targets`, with all ranks' `payloads` of it."""
        for dense, own in zip(targets, payloads, strict=True):
            self.combine_(dense, own, scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract the decompressed payload from contiguous `grad`, as it was compressed, in place; return `grad`."""
        return self.add_(grad, payload, scale=-1.0)

    def decompress(self, payload: Payload) -> Tensor:
        """Return the dense tensor that a payload stands for: a new one, of the gradient's shape and dtype."""
        return self.add_(torch.zeros(payload.shape, dtype=payload.dtype, device=payload.buffer.device), payload)

    # --- what it does with a bucket: others than the first of these only where that is faster ---

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the message of a bucket: form its `sums` of gradients and residuals, compress each, and have what is
        left kept. On a GPU gradients have yet to be looked at by `finiteness`."""
        finiteness.look_later_(sums)
        return self.message([one.name for one in sums], [self._sent(one) for one in sums])

    def _sent(self, one: "Sum") -> Payload:
        drawn_from = one.drawn_from(self)
        if self.lossless:
            return self.compress(one.velocity_(), drawn_from, one.step)
        dense, state = one.form_(), one.state
        given = dense, drawn_from, one.step
        payload = self.compress_with(*given, state) if state else self.compress(*given)
        one.keep_(payload, partial(self.error_, dense, payload))
        return payload

    def message(self, names: Sequence[str], payloads: Sequence[Payload]) -> Message:
        """Return the message of `payloads`, one for each of `names`, by the collective that combines them."""
        gathered = Message if self.equal_sizes else Sized
        kind = {"all_gather": gathered, "all_reduce": Summed, "rounds": Found}[self.collective]
        return kind.of(names, self, payloads)


@dataclass(frozen=True)
class Selecting(Compressor):
    """The common base of compressors that send a share of the elements."""

    density: float = field(metadata={"check": check_share})
    """Share of the elements to send, as a target or an upper limit, in (0, 1]."""

    @classmethod
    def from_density(cls, density: float) -> Self:
        return cls(density)


class Agreeing(Compressor):
    """The common base of compressors whose ranks decide together what is sent, in rounds of sums over all of them; the
    payloads are then summed too."""

    collective: ClassVar[Collective] = "all_reduce"
    same_draw: ClassVar[bool] = True
    merges: ClassVar[bool] = False

    @abstractmethod
    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Make the payload of `grad` as `compress_with` does, after rounds in which ranks exchange what it depends on.

        It yields what ranks are to sum or exchange. `grad` is not changed before the last round is over. For a tensor,
        all ranks have equally many rounds in a step, of equal shapes; those without a gradient take part with zeros.
        """

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the first of the rounds in which the payloads of a bucket are made, and then its message."""
        finiteness.look_later_(sums)
        rest = joined([self._in_rounds(one) for one in sums])
        return Round([one.name for one in sums], self, rest).go_on()

    def _in_rounds(self, one: "Sum") -> Rounds:
        dense = one.form_()
        payload = yield from self.agree(dense, one.drawn_from(self), one.step, one.state)
        one.keep_(payload, partial(self.error_, dense, payload))
        return payload

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return what one rank alone sends of `grad` in its first step; `name` and `step` seed random choices."""
        return self.compress_with(grad, name, step, self.state(grad.shape, grad))

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Return what one rank alone sends of `grad`, by this `state`: each round returns this rank's own input."""
        rounds = self.agree(grad, name, step, state)
        try:
            asked = next(rounds)
            while True:
                asked = rounds.send(asked if isinstance(asked, Tensor) else [asked.tensor])
        except StopIteration as made:
            payload: Payload = made.value
            return payload


@dataclass(frozen=True)
class NoCompression(Compressor):
    """The gradient itself travels, in its own memory, and is summed in place by an all-reduce.

    Source: No compression: what DistributedDataParallel does.
    """

    collective: ClassVar[Collective] = "all_reduce"
    lossless: ClassVar[bool] = True

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        return Payload.pack(grad.view(-1), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        return dense.add_(payload.buffer.view(payload.shape), alpha=scale)

    def message(self, names: Sequence[str], payloads: Sequence[Payload]) -> Message:
        return Dense.of(names, self, payloads)

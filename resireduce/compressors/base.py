"""What a compressor promises."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from resireduce.compressors.asked import ToAll, ToEach
from resireduce.errors import check_share
from resireduce.kernels.largest import LargestOfParts
from resireduce.kernels.packed_largest import Addend
from resireduce.payload import Payload

Collective = Literal["all_reduce", "all_gather", "rounds"]
"""How payloads of several ranks meet: summed element by element, or gathered, or in the rounds that made them."""
State = dict[str, Tensor]
"""What a compressor remembers of one tensor, by names without dots."""
Rounds = Generator[Tensor | ToAll | ToEach, Any, Payload]
"""A payload in the making: yields one contiguous tensor after the other that is to be summed over all ranks, is sent
each sum, formed in the tensor's own memory, and returns the payload. `ToAll` and `ToEach` ask for other rounds."""


@dataclass(frozen=True)
class Momentum:
    """How a compressor wants momentum corrected: Lin et al., "Deep gradient compression", ICLR 2018, section 3."""

    factor: float
    nesterov: bool = False
    masking: bool = True
    """Whether the velocity is set to zero where it was sent (the paper's momentum factor masking)."""


class Compressor(ABC):
    """A lossy map Q of one gradient. Subclasses are frozen dataclasses: their fields are hyperparameters, no state.

    What one must remember of a tensor from step to step it declares by `state`: the pipeline holds, counts and saves
    it, and gives it to `compress_with`.

    Contract, for every gradient g: `decompress(compress(g))` is what the other ranks learn of it, and
    `error_(g, payload)` = g - decompress(payload) is what they do not.
    """

    collective: ClassVar[Collective] = "all_gather"
    """How payloads meet: summed element by element, or gathered and decompressed one after the other. After rounds that
    have brought all, what is `known` by them is one payload, the sum of all."""

    equal_sizes: ClassVar[bool] = True
    """Whether payloads of one tensor have the same size on all ranks; else that may differ, and nothing else."""

    same_draw: ClassVar[bool] = False
    """Whether all ranks must make the same random choices; else each makes its own."""

    lossless: ClassVar[bool] = False
    """True where the error is always zero: no residual is kept then."""

    state_of_ranks: ClassVar[bool] = False
    """Whether its state is of so many ranks as there are: of another number it is begun anew."""

    turns: ClassVar[int] = 1
    """After how many steps payloads have their first form again; other than 1 if forms take turns."""

    has_rounds: ClassVar[bool] = False
    """Whether ranks make payloads together, in rounds: `agree` asks for sums."""

    source_feeds_back: ClassVar[bool] = True
    """Whether its source keeps what is not sent (error feedback); here that is the scheme's choice."""

    @property
    def cuts(self) -> bool:
        """Whether `add_part_` does what `add_` does: the class that has the one has the other, and ranks do not vote.

        Averages can be brought back in slices then.
        """
        own = next(kind for kind in type(self).__mro__ if "add_" in vars(kind))
        return "add_part_" in vars(own) and type(self).combine_ is Compressor.combine_

    @property
    def divides(self) -> bool:
        """Whether payloads are values and ascending indices, of which some may be gathered and added before others."""
        return False

    def selects_from_parts(self, like: Tensor) -> bool:
        """Whether `selection` can be had for a gradient `like` this one: else all of it must be there at once."""
        return False

    def selection(self, like: Tensor) -> LargestOfParts:
        """Return what selects the elements to send of a gradient `like` this one that comes in parts.

        Payloads are values and indices, as many on all ranks. NotImplementedError unless it `selects_from_parts`.
        """
        raise NotImplementedError(f"{type(self).__name__} selects from a whole gradient")

    @property
    def adds(self) -> bool:
        """Whether `take_from_sum_` does what an addition, `compress` and `error_` do, and nothing is remembered."""
        return False

    def take_from_sum_(self, dense: Tensor, added: Addend | None, check: bool = False) -> Payload:
        """Add `added`, if any, to contiguous `dense`, in place; return the payload of the sum.

        A tensor has the shape and the dtype of `dense`; all else may be added by its own `add_to_`. The payload is as
        `compress` makes it, and `dense` then has what `error_` leaves. With `check`, FloatingPointError is raised if
        the sum holds NaN or infinity.
        NotImplementedError unless the compressor `adds`.
        """
        raise NotImplementedError(f"{type(self).__name__} compresses sums that are there")

    @property
    def exact(self) -> bool:
        """Whether what is sent are the gradient's own values, so that sent + error = gradient bit for bit."""
        return True

    @property
    def unbiased(self) -> bool:
        """Whether the mean of what is sent, over all random choices, is the gradient."""
        return self.lossless

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that is formed on each rank before compression, in place of the optimizer's; None: nothing is."""
        return None

    @classmethod
    @abstractmethod
    def from_density(cls, density: float) -> Self:
        """This compressor, sending a share `density` of the elements, in (0, 1], if it selects any."""

    def for_world(self, world_size: int) -> "Compressor":
        """This compressor as it must be for `world_size` ranks."""
        return self

    def compresses(self, shape: torch.Size) -> bool:
        """Whether tensors of `shape` are worth compressing; others are sent as they are, and have no residual."""
        return True

    @abstractmethod
    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the payload of contiguous `grad`, of any shape and floating dtype, which is left as it is.

        `name` and `step` seed random choices; `name` is the tensor's and, without `same_draw`, has the rank in it.
        """

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return what is remembered of a tensor of `shape`, with dtype and device of `like`, as it is at the start.

        New tensors, without storage if `like` is; their shapes and dtypes never change. Empty: nothing is remembered.
        """
        return {}

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """As `compress` of `grad`, `name` and `step`, where there is a `state`, whose tensors it may change in place.

        `compress` itself is the same with the state of the start. A state is this rank's own: payloads must be
        decompressed without it.
        """
        return self.compress(grad, name, step)

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Make the payload of `grad` as `compress_with` does, after rounds in which all ranks learn what it depends on.

        Most need none, as here. `grad` is left as it is until the last round is over. All ranks of a tensor have as
        many rounds in a step, of tensors alike; those without a gradient take part with zeros. Then the payload meets
        the others by an all-reduce, and `compress` is what one rank alone would send. `name`, `step`: as in `compress`.
        """
        yield from ()
        return self.compress_with(grad, name, step, state) if state else self.compress(grad, name, step)

    def learn_(self, state: State, payload: Payload) -> None:
        """Change `state`, in place, by what an all-reduce has made of the `payload`s of all ranks.

        It may be called more than once in a step, with the same, and also where this rank had no gradient.
        """
        return

    def sent_indices(self, payload: Payload) -> Tensor | None:
        """Return which elements of the flat gradient the payload holds, 1-D int64; None if it holds all."""
        return None

    @abstractmethod
    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """`dense` += `scale` x the decompressed payload: contiguous, of the gradient's shape; returned."""

    def add_part_(self, part: Tensor, payload: Payload, start: int, scale: float = 1.0) -> Tensor:
        """`part` += `scale` x the elements of the flat decompressed payload from `start` on, as many as it has.

        `part`: 1-D, in the gradient's dtype; returned, as `add_` would make it there. NotImplementedError unless the
        compressor `cuts`.
        """
        raise NotImplementedError(f"{type(self).__name__} decompresses payloads as a whole")

    def combine_(self, dense: Tensor, payloads: Iterable[Payload], scale: float) -> Tensor:
        """Overwrite `dense`, as in `add_`, with what all ranks' payloads come to, in their order; returned.

        That is `scale`, 1 / number of ranks, x the sum of what each stands for; a vote may be something else.
        """
        dense.zero_()
        for payload in payloads:
            self.add_(dense, payload, scale)
        return dense

    @abstractmethod
    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """`grad`, as it was compressed, minus the decompressed payload; overwrites contiguous `grad`; returned."""

    def decompress(self, payload: Payload) -> Tensor:
        """Return the dense tensor that a payload stands for: a new one, of the gradient's shape and dtype."""
        return self.add_(torch.zeros(payload.shape, dtype=payload.dtype, device=payload.buffer.device), payload)


@dataclass(frozen=True)
class Selecting(Compressor):
    """What compressors have in common that send a share of the elements."""

    density: float
    """Share of the elements that is sent, aimed at or at most, in (0, 1]."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a density outside (0, 1]."""
        check_share("density", self.density)

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Return the compressor with this density, in (0, 1]."""
        return cls(density)

"""The interface of residuals, those of one tensor each, and how the residuals of a scheme go together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from resireduce.errors import ConfigError, check_share
from resireduce.grouping import Grouping
from resireduce.kernels.ops import largest_of_each
from resireduce.pieces import generator, one_of_each, pieces, share
from resireduce.residuals.stored import Blocks, Hosted, Plain, Stored

# --- Which rows and columns of a tensor are stored: a choice by norms ---


NORMS = ("residual", "compensated")
CHOICES = ("largest", "softmax")


def select(
    norms: Sequence[Tensor], counts: Sequence[int], drawn_from: Sequence[str], choice: str, step: int
) -> list[Tensor]:
    """Return which so many of each of the 1-D `norms` to keep: int32, ascending.

    choice: "largest", of equal norms those of the highest numbers; or "softmax", drawn without replacement with the
    softmax of the norms as probabilities, by a generator for `drawn_from` and `step`. The draw takes the largest of
    norm + Gumbel noise, which is the same and works where probabilities underflow.
    """
    if choice == "largest":
        return [one.to(torch.int32) for one in largest_of_each(norms, counts)]
    drawn = []
    for one, count, name in zip(norms, counts, drawn_from, strict=True):
        source = generator(one.device, name, step)
        uniform = torch.rand(one.shape, dtype=torch.float64, device=one.device, generator=source)
        noisy = one - uniform.clamp(min=1e-300).log().neg().log()
        drawn.append(torch.topk(noisy, count, sorted=False).indices.sort().values.to(torch.int32))
    return drawn


def norm_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which norms and sums over many elements of `tensor` are formed: float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


# --- The interface of residuals ---


def named(kind: str, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Return all tensors of `stored`, given by tensor name, under names that begin with `kind`: unique in a scheme."""
    return {f"{kind}.{name}{end}": t for name, one in stored.items() for end, t in one.tensors().items()}


class InPlace(Plain):
    """A tensor in the gradient's own dtype, in whose memory sums with gradients may be formed."""

    def addends(self, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the values and `grad`, which is to be added to them."""
        return self.values, grad

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        if value is not self.values:  # formed elsewhere, as a residual of one's own may do
            super().set_(value, source)


Rest = tuple[str, Tensor, Tensor | None]
"""The name of a tensor, what is left of it after compression, and what is known of its norms: see `fold_`."""


class Residual(ABC):
    """This rank's memory of what it has not sent. It never travels.

    In each step, each tensor whose gradient has arrived goes through `compensate_`, compression and `update`; once all
    have arrived, `end_step` is called. Contract: a group's result does not depend on the order in which its members
    arrive, and `nbytes()` counts the tensors actually held between two steps.

    Args:
        grouping: which tensors are members of one group.
        dtype: storage precision, a name in RESIDUAL_DTYPES; None: each gradient's own.
        rank: whose residual this is; it seeds random choices that need not agree between ranks.
        device: where it is held between uses: "cpu", the host's memory; None: each gradient's own.

    Subclasses have further arguments, all keyword-only, which users give as `options`.
    """

    def __init__(self, *, grouping: Grouping, dtype: str | None = None, rank: int = 0, device: str | None = None):
        self.grouping, self.dtype, self.rank, self.device = grouping, dtype, rank, device
        self._stored: dict[str, Stored] = {}
        """What is read for each registered tensor; several may share it."""
        self._draw: Callable[..., torch.Generator | None] = generator if dtype in Blocks.LARGEST else lambda *_: None

    INSTEAD: ClassVar = {
        "compensate_": {"addends", "only_adds", "leaves_stored", "absorbs"},
        "update": {"update_each"},
    }
    """Methods, and those that do in another way what they do."""

    def __init_subclass__(cls, **options: Any):
        """Where a subclass has a method of its own, have that called, and not what does the same in another way."""
        super().__init_subclass__(**options)
        for done in cls.INSTEAD.keys() & vars(cls).keys():
            for other in cls.INSTEAD[done] - vars(cls).keys():
                setattr(cls, other, next(vars(one)[other] for one in reversed(cls.__mro__) if other in vars(one)))

    @property
    def kind(self) -> str:
        """How the names of its tensors begin, which no other residual of a scheme may share."""
        return type(self).__name__.removesuffix("Residual").lower()

    # --- what a residual must do ---

    @abstractmethod
    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for tensor `name`, which has shape, dtype and device of `parameter`."""

    @abstractmethod
    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return gradient + residual of tensor `name` (paper, section 2.2, step 2), in `grad`'s shape and dtype.

        The result lies in the memory of contiguous `grad`, and what is stored stays as it is; or in what is stored: the
        caller may then free `grad`.
        """

    @abstractmethod
    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error that is left of tensor `name` (paper, section 2.2, step 5).

        `error()` computes it, in the memory of what `compensate_` returned. `step`, the step number counted from 0,
        seeds random choices.
        """

    # --- what it may do ---

    weighs = False
    """Whether `update_each` needs norms, which it forms unless it is told of them."""

    def update_each(self, rests: Sequence[Rest], step: int) -> None:
        """Do what `update` does for several tensors of a bucket."""
        for name, rest, _ in rests:
            self.update(name, [rest].pop, step)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
        """Return what `compensate_(grad, name)` adds up: the second is to be added to the first, in its memory.

        They are contiguous, of one shape and dtype: code that goes through the elements anyway may add them on the way.
        None in place of the second: the first is the sum already.
        """
        return self.compensate_(grad, name), None

    def only_adds(self, name: str) -> bool:
        """Whether `addends` of tensor `name` has two tensors, so that nothing has been added when it returns."""
        return False

    def leaves_stored(self, name: str) -> bool:
        """Whether nothing changes until `update` of tensor `name`, so that a sum that is not finite may be dropped."""
        return False

    def absorbs(self, name: str) -> bool:
        """Whether `compensate_` adds tensor `name`'s gradient to what is stored, in that memory, so that it may be
        called repeatedly before `update`, once for each gradient."""
        return False

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name`, in the memory of what `compensate_` returned, without sending.

        `value` was not sent after all, or comes from another job. `step` seeds random choices, as in `update`.
        """
        self.update(name, lambda: value, step)

    def end_step(self, step: int) -> None:
        """Store what has waited for other tensors, now that all gradients of step number `step` have arrived."""
        return

    def tensors(self) -> dict[str, Tensor]:
        """Return everything stored, indices included, by a name that is unique within the scheme."""
        return named(self.kind, self._stored)

    def meaning(self) -> dict[str, str]:
        """Return what a state to load must have in common with this residual beside names and shapes: texts, by names
        that begin with "members." or "places."."""
        return {}

    # --- what all have ---

    def nbytes(self) -> int:
        """Return the bytes held between two steps."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def prefetch(self, name: str) -> None:
        """Start copying the residual of tensor `name` from the host's memory, if it is there: its gradient is due."""
        if isinstance(stored := self._stored.get(name), Hosted):
            stored.prefetch()

    def source(self, name: str, like: Tensor, step: int) -> torch.Generator | None:
        """Return the generator for rounding tensor `name` in step number `step`, on the device of `like`.

        None where nothing is rounded at random, and on the meta device.
        """
        return self._draw(like.device, f"{name}/{self.rank}", step)

    def stored(self, shape: tuple[int, ...], like: Tensor) -> Stored:
        """Return storage for a tensor of this shape in the storage precision; None is `like`'s own dtype.

        It lies on `like`'s device, or in the host's memory. Raises ConfigError if the storage dtype is wider: the sum
        is formed in the gradient's dtype, so nothing would be gained.
        """
        if self.dtype in Blocks.LARGEST:
            near: Plain | Blocks = Blocks(shape, self.dtype, like.device)
        else:
            dtype = like.dtype if self.dtype is None else getattr(torch, self.dtype)
            if torch.promote_types(dtype, like.dtype) != like.dtype:
                raise ConfigError(
                    f"residual_dtype: {dtype} is not allowed for gradients of {like.dtype}, which cannot hold its "
                    "values; give the gradients' own dtype, a narrower one, or None"
                )
            near = (InPlace if dtype == like.dtype else Plain)(shape, dtype, like.device)
        return near if self.device is None else Hosted(near)


def options_of(residual: type[Residual]) -> set[str]:
    """Return the names of the options of a `residual`: its keyword arguments and those of the classes it is made of,
    but for those of all residuals."""
    given = [one for made_of in residual.__mro__ for one in signature(made_of).parameters.values()]
    return {one.name for one in given if one.kind is Parameter.KEYWORD_ONLY} - signature(Residual).parameters.keys()


# --- Residuals of one tensor each: whole, fading, of a random part, and none at all ---


class FullResidual(Residual):
    """Error feedback, G~ = R + G and R' = G~ - sent.

    If it is stored in the gradient's own dtype, the sum is formed in the residual's memory: the gradient is absorbed,
    and its buffer is free before anything is compressed. Streamed gradients rely on this. In another dtype the sum is
    formed in the gradient's memory, and rounded when it is stored.

    Source: Baseline: one residual for each tensor (paper, section 2.2; Seide et al., Interspeech 2014).
    """

    kind = "full"

    def register(self, name: str, parameter: Tensor) -> None:
        self._stored[name] = self.stored(parameter.shape, parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        dense, added = self._stored[name].addends(grad)
        return dense if added is None else dense.add_(added)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
        """Return R of tensor `name`, in whose memory the sum is formed, and `grad`; or the sum, if it is not."""
        return self._stored[name].addends(grad)

    def only_adds(self, name: str) -> bool:
        return isinstance(self._stored.get(name), InPlace)

    def leaves_stored(self, name: str) -> bool:
        return not self.only_adds(name)

    def absorbs(self, name: str) -> bool:
        """Whether R has the gradient's own dtype, of 32 bits at least: in 16 bits a large R loses small gradients."""
        stored = self._stored.get(name)
        return isinstance(stored, InPlace) and norm_dtype(stored.values) == stored.values.dtype

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        left = error()
        self._stored[name].set_(left, self.source(name, left, step))


class DecayedResidual(FullResidual):
    """Error feedback with R' = decay x (G~ - sent), for each tensor: what is not sent counts less from step to step.

    DeMo's momentum is G~: what is sent is subtracted from it, and the rest decays. With decay 1 it is the baseline.

    Args:
        decay: more than 0, at most 1. Raises ConfigError for any other. SparseLoCo uses 0.95.

    Source: A residual that fades, as momentum does: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum
    optimization", 2024, arXiv 2411.19870, algorithm 1; Sarfi et al., "Communication efficient LLM pre-training with
    SparseLoCo", 2025.
    """

    def __init__(self, *, decay: float = 0.999, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.decay = check_share("decay", decay)

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        super().update(name, lambda: error().mul_(self.decay), step)

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name` without decay: no step has passed."""
        super().update(name, lambda: value, step)


class PartialResidual(Residual):
    """Stores a fixed random part of the elements, as a small tensor; the rest is lost.

    One element is drawn from each of k equal stretches of the flattened tensor, k = max(1, floor(ratio x n)). The draw
    is repeated, seeded by the tensor's name, whenever it is needed: only values are stored.

    Args:
        ratio: share of the elements. Raises ConfigError for one outside (0, 1].

    Source: A random part of each residual (paper, section 3, Fig. 3): how much of a residual is needed?.
    """

    def __init__(self, *, ratio: float = 0.5, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.ratio = check_share("ratio", ratio)
        self._drawn_on: dict[str, str] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        self._drawn_on[name] = parameter.device.type
        self._stored[name] = self.stored((share(self.ratio, parameter.numel()),), parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        flat, values = grad.view(-1), self._stored[name].read(grad.dtype)
        for piece, positions in self._places(name, flat):
            flat.index_add_(0, positions, values[piece])
        return grad

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        flat, stored = error().view(-1), self._stored[name]
        room = stored.room(flat.dtype)
        values = flat.new_empty(share(self.ratio, len(flat))) if room is None else room
        for piece, positions in self._places(name, flat):
            values[piece] = flat[positions]
        stored.set_(values, self.source(name, flat, step))

    def meaning(self) -> dict[str, str]:
        """Return the type of device on which the places of each tensor are drawn: another type draws others."""
        return {f"places.{name}": device for name, device in self._drawn_on.items()}

    def _places(self, name: str, flat: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield pieces of what is stored, and where they belong in the tensor: int64, ascending, the same every time.

        At most a sixteenth of the places are in memory at once, since they take more memory than the values.
        """
        n, k, source = len(flat), share(self.ratio, len(flat)), generator(flat.device, name)
        for piece in pieces(k, smallest=1 << 12):
            yield piece, one_of_each(n, k, piece.start, piece.stop, source, flat.device)


class NoResidual(Residual):
    """Stores nothing.

    Source: No residual: what is not sent is lost (paper, section 2.2, without steps 2 and 5). It is the control that
    shows what residuals are worth.
    """

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate nothing."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return grad

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Drop the error, without computing it."""


# --- A scheme: each tensor has the residual of its kind ---


class Residuals:
    """The residuals of one rank: `grouped` is that of the members of `grouping`'s groups, `specific` that of its
    specific layers, and `other` that of all else. What is named as in `Residual` does the same for all of them."""

    def __init__(self, grouping: Grouping, grouped: Residual, specific: Residual, other: Residual):
        self._of = dict.fromkeys(grouping.grouped, grouped) | dict.fromkeys(grouping.specific, specific)
        self._other = other
        self._all = [*dict.fromkeys((grouped, specific, other))]

    def of(self, name: str) -> Residual:
        """Return the residual that is responsible for tensor `name`."""
        return self._of.get(name, self._other)

    def end_step(self, step: int) -> None:
        for one in self._all:
            one.end_step(step)

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for one in self._all for name, tensor in one.tensors().items()}

    def nbytes(self) -> int:
        return sum(one.nbytes() for one in self._all)

    def host_tensors(self) -> list[Tensor]:
        """Return the `tensors()` that are held in the host's memory."""
        stored = dict.fromkeys(held for one in self._all for held in one._stored.values())
        return [tensor for held in stored if isinstance(held, Hosted) for tensor in held.tensors().values()]

    def meaning(self) -> dict[str, str]:
        return {name: text for one in self._all for name, text in one.meaning().items()}

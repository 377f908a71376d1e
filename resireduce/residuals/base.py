"""What a residual promises."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from resireduce.draw import generator
from resireduce.errors import ConfigError
from resireduce.grouping import Grouping
from resireduce.kernels.packed_largest import Addend
from resireduce.residuals.hosted import Hosted
from resireduce.residuals.stored import Blocks, Plain, Stored


def norm_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which norms and sums over many elements of `tensor` are formed: float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def alike(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return both, `first` and `second`, if they are contiguous and of one shape, dtype and device; None else."""
    same = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
    return (first, second) if same and first.is_contiguous() and second.is_contiguous() else None


def addable(grad: Tensor, stored: Stored) -> tuple[Tensor, Addend] | None:
    """Return `grad` and what is `stored` to be added to it, if who goes through its elements can do that on the way."""
    if isinstance(stored, Plain):
        return alike(grad, stored.values)
    if type(stored) is Blocks and stored.adds_to(grad):  # a subclass may add in a way of its own
        return grad, stored
    return None


def named(kind: str, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """What several residuals, `stored` by tensor, hold: by names that begin with `kind`, so are unique in a scheme."""
    return {f"{kind}.{name}{end}": t for name, one in stored.items() for end, t in one.tensors().items()}


class Residual(ABC):
    """This rank's memory of what it has not sent. It never travels.

    In each step, for each tensor whose gradient has arrived: `compensate_`, then compression, then `update`; once all
    have arrived, `end_step`. Contract: a group's result does not depend on the order in which its members arrive, and
    `nbytes()` is that of the tensors really held between two steps.

    Args:
        grouping: which tensors are members of one group.
        dtype: storage precision, a name in RESIDUAL_DTYPES; None: each gradient's own.
        rank: whose residual this is; random choices that need not agree between ranks are seeded with it.
        device: where it is held between its uses: "cpu", the host's memory; None: each gradient's own.

    Subclasses have further arguments, all keyword-only, which users give as `options`.
    """

    def __init__(self, *, grouping: Grouping, dtype: str | None = None, rank: int = 0, device: str | None = None):
        self.grouping, self.dtype, self.rank, self.device = grouping, dtype, rank, device
        self._hosted: list[Hosted] = []

    @abstractmethod
    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate, zeroed, what the tensor `name`, with shape, dtype and device of `parameter`, needs."""

    @abstractmethod
    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return gradient + residual of tensor `name` (paper, section 2.2, step 2).

        In contiguous `grad`'s memory or in the residual's own, in `grad`'s shape and dtype. The caller may free `grad`
        if the result does not share its memory.
        """

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return two tensors: all that `compensate_(grad, name)` would do is to add the second to the first.

        Contiguous, of one shape and dtype, or the second in few bits or a sub-matrix: whoever goes through the elements
        in any case may add them on the way. None if `compensate_` does anything else, or is a subclass' own.
        """
        return None

    def leaves_stored(self, name: str) -> bool:
        """Whether `compensate_` leaves what is stored of tensor `name` as it is, and forms the sum in `grad`'s memory.

        Then `grad` may be looked at with the residual in it, and refused: the next one finds all as it was.
        """
        return False

    @abstractmethod
    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error that is left of tensor `name` (paper, section 2.2, step 5).

        `error()` computes it, in the memory of what `compensate_` returned. `step`, the number of the step counted from
        0, seeds random choices.
        """

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name`, in the memory of what `compensate_` returned, outside of any step's sending.

        What was not sent after all, or comes from another job. `step` seeds random choices, as in `update`.
        """
        self.update(name, lambda: value, step)

    def takes_parts(self, name: str) -> bool:
        """Whether gradients of tensor `name` may come in parts, twice: by `compensate_part_` and `update_part`."""
        return False

    def compensate_part_(self, grad: Tensor, name: str, start: int) -> Tensor:
        """Return contiguous `grad`, a part of tensor `name` from element `start` on, with the residual added in place.

        As often as is wanted, before `update_part`. Raises NotImplementedError in a residual that takes no parts.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def looks_first(self, name: str) -> bool:
        """Whether what is stored of tensor `name` depends on all that is left: parts then come by `look_at_part`, too.

        All of them, in their order, and then `end_look`, before the first `update_part`.
        """
        return False

    def look_at_part(self, error: Tensor, name: str, start: int) -> None:
        """Look at contiguous `error`, what will be left of tensor `name` from element `start` on.

        Raises NotImplementedError in a residual that does not look first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not look at what is left before it stores that")

    def end_look(self, name: str, like: Tensor, step: int) -> None:
        """All parts of tensor `name` have been looked at; it is on the device of `like`, and `step` as in `update`.

        Raises NotImplementedError in a residual that does not look first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not look at what is left before it stores that")

    def update_part(self, error: Tensor, name: str, start: int, source: torch.Generator | None) -> None:
        """Store contiguous `error`, what is left of tensor `name` from element `start` on.

        All parts one after the other, with one `source` for random rounding, are as one call of `update`. Raises
        NotImplementedError in a residual that takes no parts.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def absorbs(self, name: str) -> bool:
        """Whether `compensate_` adds tensor `name`'s gradient into what is stored, so that it may be called repeatedly
        before `update`, for one gradient after the other."""
        return False

    def absorb_rows(self, grad: Tensor, name: str, rows: slice) -> None:
        """Add `grad`, the gradient of some `rows` of tensor `name`, into what is stored, where the residual `absorbs`.

        All rows one after the other are as one call of `compensate_`, whose result is then that of `absorbed`. Raises
        NotImplementedError in a residual that does not.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def absorbed(self, name: str) -> Tensor:
        """Return residual + gradients of tensor `name` that have been absorbed, in the residual's own memory.

        Raises NotImplementedError in a residual that does not absorb.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def end_step(self, step: int) -> None:
        """Store what has waited for other tensors: all gradients of step number `step` have arrived."""
        return

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything stored, indices included, by a name that is unique within this residual."""

    def nbytes(self) -> int:
        """Bytes held between two steps."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the values that `state` has for `tensors()`, in the same shapes and dtypes, into the tensors held."""
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])

    def source(self, name: str, like: Tensor, step: int) -> torch.Generator | None:
        """The generator that rounding of tensor `name` draws from in step number `step`, on the device of `like`.

        None on the meta device.
        """
        return generator(like.device, f"{name}/{self.rank}", step)

    def stored(self, shape: tuple[int, ...], like: Tensor) -> Stored:
        """Return room for a tensor of this shape in the storage precision; None is `like`'s own dtype.

        On `like`'s device, or in the host's memory.
        Raises ConfigError if the storage dtype is wider: the sum is formed in the gradient's, so nothing would be won.
        """
        near = self._near(shape, like)
        if self.device is None:
            return near
        self._hosted.append(hosted := Hosted(near))
        return hosted

    def host_tensors(self) -> list[Tensor]:
        """Return those of `tensors()` that are held in the host's memory."""
        return [tensor for hosted in self._hosted for tensor in hosted.tensors().values()]

    def prefetch(self, name: str) -> None:
        """Begin to bring what is added to the gradient of tensor `name` to its device, where that is expected soon."""
        stored = self.stored_for(name)
        if stored is not None:
            stored.prefetch()

    def stored_for(self, name: str) -> Stored | None:
        """Return what is read for tensor `name`, if anything is."""
        return None

    def _near(self, shape: tuple[int, ...], like: Tensor) -> Stored:
        if self.dtype in Blocks.LARGEST:
            return Blocks(shape, self.dtype, like.device)
        dtype = like.dtype if self.dtype is None else getattr(torch, self.dtype)
        if torch.promote_types(dtype, like.dtype) != like.dtype:
            raise ConfigError(
                f"residual_dtype: {dtype} is not allowed for gradients of {like.dtype}, which cannot hold its values; "
                "give the gradients' own dtype, a narrower one, or None"
            )
        return Plain(shape, dtype, like.device)

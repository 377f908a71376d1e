"""Every element in few bits, in two phases: messages whose size is bounded at any number of ranks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.compressors.base import Agreeing, Collective, Compressor, State
from resireduce.compressors.quantized import Block4, Block8, Fp8
from resireduce.core.messages import AllGather, AllToAll, Payload, Rounds
from resireduce.kernels.codes import BYTE

BLOCK8, BLOCK4, FP8 = Block8(), Block4(), Fp8()


@dataclass(frozen=True)
class Block8TwoPhase(Agreeing):
    """Sends each part of a tensor to the rank that owns it, and the mean of what an owner receives to all ranks.

    Each rank owns an equal part. Both messages have 8 bits an element, so that a rank sends two bytes an element, and
    scales, however many ranks there are; gathered payloads bring it one from every rank. What a rank's own gradient
    loses by rounding goes into its residual. What the mean loses, its owner remembers in a state of the compressor, in
    float32 (float64 of float64), and adds to the next step's mean.

    Source: Two phases, as 1-bit Adam's compressed all-reduce has them: Tang et al., "1-bit Adam: Communication
    efficient large-scale training with Adam's convergence speed", ICML 2021, section 4.2; with the blocks of `Block8`.
    """

    collective: ClassVar[Collective] = "rounds"
    state_of_ranks: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    quantiser: Compressor = BLOCK8
    """Makes both messages of a part: any compressor whose payloads have one size, and are made without a draw."""
    ranks: int = 1
    """How many parts there are; `for_world` sets it."""

    def for_world(self, world_size: int) -> "Block8TwoPhase":
        return replace(self, ranks=world_size)

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return what is left of the mean of this rank's part of a tensor of `shape`: "owned", 1-D zeros."""
        wide = torch.promote_types(like.dtype, torch.float32)
        return {"owned": torch.zeros(self._size(shape.numel()), dtype=wide, device=like.device)}

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Exchange the parts of `grad`, and gather their means; return this rank's payload, and the means in `known`.

        `state` is changed by `learn_` alone, since the mean is formed even where this rank has no gradient.
        """
        left = (state or self.state(grad.shape, grad))["owned"]
        own = torch.cat([self.quantiser.compress(part, name, step).buffer for part in self._parts(grad.view(-1))])
        nbytes = len(own) // self.ranks
        mean = torch.zeros_like(left)
        for theirs in (yield AllToAll(own, [nbytes] * self.ranks)):
            part = theirs[:nbytes]  # a rank alone, as in a plan, is given all of its own
            self.quantiser.add_(mean, self._payload(part, mean), 1 / self.ranks)
        mean.add_(left)
        sent = self.quantiser.compress(mean, name, step)
        known = torch.cat([*(yield AllGather(sent.buffer, equal_sizes=True))])
        payload = Payload.pack(own, like=grad, known=known, rounds_bytes=sent.buffer.nbytes)
        return replace(payload, learnt={"owned": self.quantiser.error_(mean, sent)})

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        size = self._size(dense.numel())
        for to, part in zip(dense.view(-1).split(size), payload.buffer.chunk(self.ranks), strict=False):
            whole = to if len(to) == size else to.new_zeros(size)  # the last one is shorter
            self.quantiser.add_(whole, self._payload(part, whole), scale)
            if whole is not to:
                to.add_(whole[: len(to)])
        return dense

    def combine_(self, dense: Tensor, payloads: Iterable[Payload], scale: float) -> Tensor:
        """Overwrite `dense` with what all ranks have been sent, which is the mean already; return it."""
        return super().combine_(dense, payloads, 1.0)

    def _size(self, numel: int) -> int:
        """Return the elements of a part: whole bytes of the bits of its elements."""
        return -(-numel // (BYTE * self.ranks)) * BYTE

    def _parts(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield the part of each rank; zeros follow the last element."""
        size = self._size(flat.numel())
        for rank in range(self.ranks):
            part = flat[rank * size : (rank + 1) * size]
            yield part if len(part) == size else pad(part, (0, size - len(part)))

    def _payload(self, buffer: Tensor, like: Tensor) -> Payload:
        return Payload(buffer, _layout(self.quantiser, like.numel(), like.dtype), like.shape, like.dtype)


@cache
def _layout(quantiser: Compressor, numel: int, dtype: torch.dtype) -> tuple[tuple[torch.dtype, int], ...]:
    """Return the parts of what `quantiser` makes of `numel` elements of `dtype`."""
    return quantiser.compress(torch.empty(numel, dtype=dtype, device="meta"), "", 0).layout


@dataclass(frozen=True)
class Block4TwoPhase(Block8TwoPhase):
    """Sends the same two messages as `Block8TwoPhase` with 4 bits an element in each: one byte, and scales."""

    quantiser: Compressor = BLOCK4


@dataclass(frozen=True)
class Fp8TwoPhase(Block8TwoPhase):
    """Sends the same two messages as `Block8TwoPhase` with a float of 8 bits for each element in each."""

    quantiser: Compressor = FP8

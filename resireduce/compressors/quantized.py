"""Every element, rounded: to half precision, to the nearest of few levels, or at random, right on average."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from resireduce import private
from resireduce.compressors.base import Collective, Compressor, add_where_, checked, count
from resireduce.core.messages import Message, Payload, Round, Summed
from resireduce.errors import is_count, is_number
from resireduce.kernels.codes import BYTE, octets, pack_codes, unpack_codes
from resireduce.kernels.ops import in_one_launch, infinity_norm, norms_of_blocks
from resireduce.pieces import generator, is_host, pieces, spread, worth_a_piece
from resireduce.residuals.base import NoResidual

if TYPE_CHECKING:
    from resireduce.core.feedback import Finiteness, Sum

FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Floats of 8 bits, by name."""


@dataclass(frozen=True)
class Fp16(Compressor):
    """Sends every element as float16, summed by an all-reduce; what rounding takes away is the error.

    Values beyond `largest` are sent as `largest`; the rest is error too.

    Source: Half precision: gradients travel and are summed in 16 bits, as Horovod's fp16 compression does.
    """

    collective: ClassVar[Collective] = "all_reduce"
    largest: float = 2.0**15
    """Largest magnitude that one rank sends: a power of two, which every dtype holds exactly."""

    def for_world(self, world_size: int) -> "Fp16":
        """Return the compressor with a limit that keeps any full or partial sum over `world_size` ranks finite."""
        return replace(self, largest=2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / world_size)))

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return all elements as float16, in memory of their own: the sum over the ranks is formed there."""
        halves = grad.view(-1).to(torch.float16, copy=True)  # what is beyond `largest` is rounded to it, or beyond it
        return Payload.pack(halves.clamp_(-self.largest, self.largest), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        return dense.add_(payload.buffer.view(payload.shape).to(dense.dtype), alpha=scale)

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the message of a bucket, whose `sums` are all formed and rounded at once.

        On a GPU the number of launches does not depend on how many there are.
        """
        finiteness.look_later_(sums)
        dense, added = map(list, zip(*[one.addends_() for one in sums], strict=True))
        add_where_(dense, added)
        del added  # an update may free it before it stores anew
        buffer, halves = _joined(dense, torch.float16)
        private.copy_each_(halves, dense)
        buffer.clamp_(-self.largest, self.largest)
        if any(type(one.residual).update is not NoResidual.update for one in sums):
            _add_each_(dense, halves, -1.0)
        payloads = [Payload.pack(half.view(-1), like=one) for half, one in zip(halves, dense, strict=True)]
        sums[0].feedback.keep_rests_(sums, payloads, dense)
        return Summed([one.name for one in sums], self, payloads, buffer)

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        private.zero_each_([*targets])
        _add_each_(targets, [summed.buffer.view(summed.shape) for (summed,) in payloads], scale)


def _joined(shaped: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return a new 1-D tensor of `dtype`, and views of it that are `shaped` like these, one behind the other."""
    sizes = [one.numel() for one in shaped]
    buffer = torch.empty(sum(sizes), dtype=dtype, device=shaped[0].device)
    return buffer, [part.view(one.shape) for part, one in zip(buffer.split(sizes), shaped, strict=True)]


def _add_each_(targets: Sequence[Tensor], halves: Sequence[Tensor], scale: float) -> None:
    """Add `scale` x `halves` to `targets`, in their dtype: on a GPU all at once, which takes memory for them all."""
    together = 1 if is_host(targets[0]) else len(targets)
    for first in range(0, len(targets), together):
        some = slice(first, first + together)
        _, wide = _joined(halves[some], targets[0].dtype)
        private.copy_each_(wide, [*halves[some]])
        private.add_each_([*targets[some]], wide, alpha=scale)


@dataclass(frozen=True)
class Block8(Compressor):
    """Sends every element as the nearest of 255 levels, multiples of its block's largest magnitude / 127: 8 bits.

    Rounding is to the nearest, without a draw. Each rank decodes all payloads: nothing is quantised twice.

    Source: Blocks of few bits, as ZeRO++ sends them: Wang et al., "ZeRO++: Extremely efficient collective communication
    for large model training", ICLR 2024, section 3.3.
    """

    bits: ClassVar[int] = 8
    most: ClassVar[int] = 127
    """The greatest whole number that they hold beside a sign."""

    block: int = checked(
        256, lambda one: is_count(one) and one and not one % BYTE, f"a number of elements, a multiple of {BYTE}"
    )
    """Elements that share a scale, a multiple of 8."""

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the message of a bucket, whose `sums` are all formed and rounded at once: on a GPU in one launch."""
        finiteness.look_later_(sums)
        dense, added = map(list, zip(*[one.addends_() for one in sums], strict=True))
        buffer, payloads = self._unfilled(dense)
        if self._in_one_launch(dense):
            from resireduce.kernels.gpu.blocks import compress_blocks_

            parts = [one.buffer for one in payloads]
            compress_blocks_([*zip(dense, added, strict=True)], parts, self.block, self.bits)
        else:
            for one, more, payload in zip(dense, added, payloads, strict=True):  # each as long as it is in the cache
                if more is not None:
                    one.add_(more)
                self._fill_(payload, one)
                self.error_(one, payload)
        del added  # an update may free it before it stores anew
        sums[0].feedback.keep_rests_(sums, payloads, dense)
        return Message([one.name for one in sums], self, payloads, buffer)

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        if not self._in_one_launch(targets):
            return super().combine_each_(targets, payloads, scale)
        from resireduce.kernels.gpu.blocks import add_blocks_

        add_blocks_(targets, [[one.buffer for one in own] for own in payloads], self.block, self.bits, scale, True)

    def _in_one_launch(self, tensors: Sequence[Tensor]) -> bool:
        """Whether they are on a GPU whose kernels know such levels, and blocks of this size: a power of two."""
        is_known = (self.bits, self.most) in ((8, 127), (4, 7)) and self.block in [1 << power for power in range(4, 13)]
        return is_known and in_one_launch(tensors)

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return levels of all elements, and scales of all blocks in float32 (float64 of float64)."""
        _, (payload,) = self._unfilled([grad])
        self._fill_(payload, grad)
        return payload

    def _unfilled(self, dense: Sequence[Tensor]) -> tuple[Tensor, list[Payload]]:
        """Return the buffer of the payloads of `dense` tensors, and these, whose values have yet to be written."""
        wide = torch.promote_types(dense[0].dtype, torch.float32)
        sizes = [one.numel() for one in dense]
        layouts = [((torch.uint8, math.prod(self._shape(n))), (wide, -(-n // self.block))) for n in sizes]
        return Payload.unfilled(layouts, dense)

    def _fill_(self, payload: Payload, grad: Tensor) -> None:
        flat = grad.view(-1)
        packed, scales = payload.parts()
        scales.copy_(norms_of_blocks(flat, self.block, torch.inf))
        codes = packed.view(self._shape(flat.numel()))
        for piece in pieces(flat.numel(), self.block, worth_a_piece(flat)):
            largest = spread(scales, self.block, piece).clamp(min=torch.finfo(scales.dtype).tiny)
            levels = (flat[piece] / largest).mul_(self.most).round_().add_(self.most).to(torch.uint8)
            codes[:, self._columns(piece)] = levels if self.bits == BYTE else pack_codes(levels, self.bits)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        packed, scales = payload.parts()
        flat = dense.view(-1)
        codes = packed.view(self._shape(flat.numel()))
        for piece in pieces(flat.numel(), self.block, worth_a_piece(flat)):
            part = codes[:, self._columns(piece)]
            whole = part[0] if self.bits == BYTE else unpack_codes(part, piece.stop - piece.start, torch.uint8)
            values = whole.to(scales.dtype).sub_(self.most).div_(self.most).mul_(spread(scales, self.block, piece))
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense

    def _shape(self, numel: int) -> tuple[int, int]:
        """Return the rows and columns of bytes that hold the levels of `numel` elements: of fewer bits, in planes."""
        return (1, numel) if self.bits == BYTE else (self.bits, -(-numel // BYTE))

    def _columns(self, piece: slice) -> slice:
        return piece if self.bits == BYTE else octets(piece)


@dataclass(frozen=True)
class Block4(Block8):
    """Sends every element as the nearest of 15 levels, multiples of its block's largest magnitude / 7: 4 bits."""

    bits: ClassVar[int] = 4
    most: ClassVar[int] = 7


@dataclass(frozen=True)
class Fp8(Compressor):
    """Sends every element as a float of 8 bits, scaled so that its block's largest magnitude is the largest of these.

    Rounding is to the nearest, and relative: small elements of a block keep as many digits as large ones.

    Source: Floats of 8 bits: Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv 2209.05433.
    """

    form: str = checked("e4m3", FLOATS.__contains__, " or ".join(FLOATS))
    """e4m3: three bits of mantissa; e5m2: two, and a wider range."""
    block: int = count(256, 1, "elements")
    """Elements that share a scale."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return floats of all elements, as bytes, and the largest of all blocks in float32 (float64 of float64)."""
        flat, kind = grad.view(-1), FLOATS[self.form]
        wide, largest = torch.promote_types(flat.dtype, torch.float32), torch.finfo(kind).max
        scales = norms_of_blocks(flat, self.block, torch.inf).to(wide)
        codes = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel(), self.block, worth_a_piece(flat)):
            smallest = torch.finfo(scales.dtype).tiny
            scaled = (flat[piece] / spread(scales, self.block, piece).clamp(min=smallest)).mul_(largest)
            codes[piece] = scaled.clamp_(-largest, largest).to(kind).view(torch.uint8)
        return Payload.pack(codes, scales, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        codes, scales = payload.parts()
        flat, kind = dense.view(-1), FLOATS[self.form]
        for piece in pieces(flat.numel(), self.block, worth_a_piece(flat)):
            shares = codes[piece].view(kind).to(scales.dtype).div_(torch.finfo(kind).max)
            values = shares.mul_(spread(scales, self.block, piece))  # at most the largest of the block, which is finite
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense


LEVELS = 127
"""Most levels that int8 can hold, besides the sign."""


@dataclass(frozen=True)
class QSGD(Compressor):
    """Each bucket of elements as its norm and, for each element, a level: 127 |x| / norm, rounded at random, signed.

    Unbiased: the expectation of a level is the exact quotient. All-gathered; one byte per element, four per bucket.

    Source: QSGD: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS
    2017.
    """

    norm: float = checked(2.0, lambda norm: norm in (2, math.inf), "2 or infinity")
    """Which norm a bucket is scaled by: 2 (the paper's) or infinity."""
    bucket: int | None = count(128, 1, "elements", or_none=True)
    """Elements that share a norm, 1 or more; None: the whole tensor."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return levels of all elements (int8) and norms of all buckets (float32). A bucket of zeros stays zero."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        size, wide = self.bucket or flat.numel(), torch.promote_types(flat.dtype, torch.float32)
        norms = norms_of_blocks(flat, size, self.norm, wide).float()
        if not norms.is_meta and not norms.isfinite().all():  # squares overflow: any norm >= max |x| is unbiased
            norms = norms_of_blocks(flat, size, torch.inf, wide).float()
        norms.clamp_(max=torch.finfo(norms.dtype).max)  # those of float64 may be more; the rest is error
        smallest = torch.finfo(norms.dtype).tiny
        levels = torch.empty(flat.numel(), dtype=torch.int8, device=flat.device)
        for piece in pieces(flat.numel(), self.bucket or 1):
            scaled = flat[piece] / self._spread(norms, piece).clamp(min=smallest)
            draw = torch.rand(scaled.shape, dtype=torch.float32, device=flat.device, generator=source)
            # floor(x + u), u in [0, 1), is x on average, for either sign; rounding may take it beyond the last level.
            levels[piece] = scaled.mul_(LEVELS).add_(draw).floor_().clamp_(-LEVELS, LEVELS)
        return Payload.pack(levels, norms, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        levels, norms = payload.parts()
        flat = dense.view(-1)
        largest = min(torch.finfo(flat.dtype).max, torch.finfo(norms.dtype).max)
        for piece in pieces(flat.numel(), self.bucket or 1):
            values = levels[piece] * (self._spread(norms, piece) / LEVELS)
            values.clamp_(-largest, largest)  # a level that was rounded up may be beyond what the dtype holds
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense

    def _spread(self, norms: Tensor, piece: slice) -> Tensor:
        return norms if self.bucket is None else spread(norms, self.bucket, piece)


@dataclass(frozen=True)
class TernGrad(Compressor):
    """Sends -s, 0 or s for every element, in two bits: s its sign with probability |x| / s, s the largest magnitude.

    Magnitudes are first clipped (section 3.3) at 2.5 deviations from zero, sqrt(mean x^2), which is the deviation of
    the paper's gradients, whose mean is zero. Unbiased except for what is clipped.

    Source: TernGrad: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
    NeurIPS 2017.
    """

    clip: float | None = checked(
        2.5, lambda clip: clip is None or (is_number(clip) and clip > 0), "a number of deviations, more than 0, or None"
    )
    """In deviations, more than 0; None: nothing is clipped."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return two planes of bits, "not zero" and "negative", and s, in float32 (float64 for float64)."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        wide = torch.promote_types(flat.dtype, torch.float32)
        largest = infinity_norm(flat).to(wide).view(1)
        if self.clip is not None:
            mean = torch.zeros(1, dtype=torch.float64, device=flat.device)
            for piece in pieces(flat.numel()):
                mean += flat[piece].double().square().div_(flat.numel()).sum()
            limit = mean.sqrt_().mul_(self.clip).to(wide)
            largest = torch.where(limit > 0, torch.minimum(largest, limit), largest)  # squares of the tiniest are zero
        planes = torch.empty(2, -(-flat.numel() // BYTE), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel(), BYTE):
            draw = torch.rand(piece.stop - piece.start, dtype=torch.float32, device=flat.device, generator=source)
            sent = draw < flat[piece].abs() / largest  # beyond s always; not, where s and so all is 0
            planes[:, octets(piece)] = pack_codes(sent | ((flat[piece] < 0) & sent).to(torch.uint8) << 1, 2)
        return Payload.pack(planes.view(-1), largest, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        packed, largest = payload.parts()
        flat, planes = dense.view(-1), packed.view(2, -1)
        for piece in pieces(flat.numel(), BYTE):
            codes = unpack_codes(planes[:, octets(piece)], piece.stop - piece.start, torch.uint8)
            values = torch.where(codes > 1, -largest, largest).mul_(codes > 0)
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense


EXPONENTS = 127
"""Powers of two that seven bits distinguish, besides zero."""
MANTISSA = 23
"""Bits of float32 below its exponent."""


@dataclass(frozen=True)
class Natural(Compressor):
    """Sends every element as one of the two powers of two around it, drawn so that it is right on average: a sign and
    an exponent in 8 bits.

    The exponents are the 127 up to the largest magnitude's. An element below the least of these powers is sent as that
    power or as zero, also right on average; only one beyond the dtype's largest power of two is rounded down.

    Source: Natural compression: Horvath et al., "Natural compression for distributed deep learning", MSML 2022, section
    2.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return one byte per element, and the largest exponent, in 32 bits."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        wide = torch.promote_types(flat.dtype, torch.float32)
        limit = math.frexp(torch.finfo(flat.dtype).max)[1] - 1
        top = torch.frexp(infinity_norm(flat).to(wide).view(1)).exponent.clamp(max=limit)
        half = top // 2  # 2^-top alone may be beyond the dtype
        scales = torch.exp2(-half.to(wide)), torch.exp2((half - top).to(wide))
        codes = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel()):
            scaled = flat[piece].to(wide, copy=True).abs_().mul_(scales[0]).mul_(scales[1]).float()
            draw = torch.randint(1 << MANTISSA, scaled.shape, dtype=torch.int32, device=flat.device, generator=source)
            # Up to 1: exponents are as float32 has them, 127 and less, and a mantissa that overflows adds one.
            exponents = draw.add_(scaled.view(torch.int32)).bitwise_right_shift_(MANTISSA).clamp_(max=EXPONENTS)
            codes[piece] = exponents.add_(flat[piece] < 0, alpha=EXPONENTS + 1)  # the highest bit is the sign
        return Payload.pack(codes, top, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        codes, top = payload.parts()
        flat = dense.view(-1)
        exponents = torch.arange(EXPONENTS + 1, device=flat.device) - EXPONENTS + top
        powers = torch.exp2(exponents.to(torch.promote_types(payload.dtype, torch.float32)))
        powers[0] = 0
        table = torch.cat((powers, -powers)).to(flat.dtype)
        for piece in pieces(flat.numel()):
            flat[piece].add_(table[codes[piece].int()], alpha=scale)
        return dense

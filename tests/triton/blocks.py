"""Levels of few bits for the tensors of a bucket, in Triton's interpreter: `tests/library/test_triton.py` runs this.

The compressors themselves are the oracle, in plain torch.
"""

import pytest
import torch
from torch import Tensor

from resireduce.compressors.quantized import Block4, Block8
from resireduce.kernels.gpu import blocks
from resireduce.kernels.gpu.blocks import add_blocks_, compress_blocks_
from tests.triton.bucket import FLOATS, drawn, kinds, same_bits

KINDS = {8: Block8, 4: Block4}


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ELEMENTS", 256)


def tensors(dtype: torch.dtype) -> list[Tensor]:
    held = [one for name, one in kinds(301, dtype).items() if name != "infinite"]
    return [*held, drawn(1, dtype), drawn(256, dtype), drawn(1000, dtype)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("bits", "block"), [(8, 256), (4, 256), (8, 64), (4, 16)])
def test_what_is_sent_and_left_is_that_of_the_compressor(bits: int, block: int, dtype: torch.dtype) -> None:
    compressor, firsts = KINDS[bits](block=block), tensors(dtype)
    added = [None if number % 3 == 1 else one.flip(0).mul(0.7) for number, one in enumerate(firsts)]
    sums = [one if more is None else one + more for one, more in zip(firsts, added, strict=True)]
    payloads = [compressor.compress(one, "", 0) for one in sums]
    left = [compressor.error_(one.clone(), payload) for one, payload in zip(sums, payloads, strict=True)]
    message = torch.zeros(sum(payload.nbytes for payload in payloads), dtype=torch.uint8)
    parts = message.split([payload.nbytes for payload in payloads])
    held = [one.clone() for one in firsts]
    compress_blocks_([*zip(held, added, strict=True)], parts, block, bits)
    for part, payload, one, other in zip(parts, payloads, held, left, strict=True):
        assert same_bits(part, payload.buffer) and same_bits(one, other)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("bits", "block"), [(8, 256), (4, 64)])
@pytest.mark.parametrize(("zero", "unequal"), [(True, 0), (False, 0), (True, 8)])
def test_what_has_come_is_added_rank_by_rank(
    bits: int, block: int, zero: bool, unequal: int, dtype: torch.dtype
) -> None:
    """Three ranks, whose payloads lie equally far apart, or not. A CPU rounds products of float16 before sums."""
    scale = 0.25 if dtype == torch.float32 else 1.0
    compressor, firsts = KINDS[bits](block=block), tensors(dtype)
    targets = [drawn(one.numel(), dtype, seed=9) for one in firsts]
    sums = [torch.zeros_like(one) if zero else one.clone() for one in targets]
    nbytes = [compressor.compress(one, "", 0).nbytes for one in firsts]
    room, sent = torch.zeros(4 * sum(nbytes) + 64, dtype=torch.uint8), [[] for _ in firsts]  # type: ignore[var-annotated]
    for rank in range(3):
        at = rank * (sum(nbytes) + unequal * rank)
        for place, (one, size) in enumerate(zip(firsts, nbytes, strict=True)):
            payload = compressor.compress(one.roll(rank), "", 0)
            sent[place].append(room[at : at + size].copy_(payload.buffer))
            compressor.add_(sums[place], payload, scale)
            at += size
    add_blocks_(targets, sent, block, bits, scale, zero)
    assert all(map(same_bits, targets, sums))

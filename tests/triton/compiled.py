"""Kernels compiled for NVIDIA GPUs, without one: that they can be, and that no instruction rounds in its own way.

`tests/library/test_triton.py` runs this, without the interpreter.
"""

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from resireduce.kernels.gpu import blocks, bucket, one_pass
from resireduce.kernels.gpu.one_pass import EXACT

BUCKET = {"table": "*i64", "spoilt": "*i64", "answers": "*i32", "counts": "*i32", "until": "*i32", "arrived": "*i64"}
KEYS = (
    BUCKET
    | {"norms": "*fp64"}
    | {"like": "*fp32", "bits": "*i32", "indices": "*i32", "values": "*fp32", "scale": "fp32"}
)
HALF_KEYS = KEYS | {"like": "*fp16", "bits": "*i16"}
BRAIN_KEYS = HALF_KEYS | {"like": "*bf16"}
FOLDED = KEYS | {"weights": "*fp32", "phi": "fp32", "rest": "fp32"}
SENT = KEYS | {"ranks": "i32", "apart": "i32"}
SIZES = {"n": "i32", "width": "i32"}
LOOK = {"TILE": bucket.TILE}
WHOLE = LOOK | {"BITS": 31}
HALF = LOOK | {"BITS": 15}
CODES = {"codes": "*i8", "scales": "*fp32", "drawn": "*fp32"}
PAIRS = CODES | {"codes": "*u8"}
BLOCKS = KEYS | {"codes": "*u8", "ranks": "i32", "distance": "i32", "zero": "i32"}
HALF_BLOCKS = BLOCKS | {"like": "*fp16"}
LEVELS = {"BLOCK": 256, "ROWS": 16}
CROSSING = {"down": "*i32", "across": "*i32", "width": "i32"}
TILED = {"TILE": one_pass.TILE}
ENCODED = {"TINY": one_pass.TINY, "ROWS": one_pass.ROWS}
KERNELS = {
    "look for NaN": (bucket._look_for_non_finite, KEYS, LOOK | {"ROWS": 4}),
    "look for NaN in bfloat16": (bucket._look_for_non_finite, BRAIN_KEYS, LOOK | {"ROWS": 0}),
    "blank": (bucket._blank_spoilt, KEYS, LOOK),
    "blank bfloat16": (bucket._blank_spoilt, BRAIN_KEYS, LOOK),
    "add, and the first bits": (bucket._histogram, KEYS, WHOLE | {"ROW": 0}),
    "add, and the first bits of float16": (bucket._histogram, HALF_KEYS, HALF | {"ROW": 0}),
    "add, and the first bits of bfloat16": (bucket._histogram, BRAIN_KEYS, HALF | {"ROW": 0}),
    "the last bits": (bucket._histogram, KEYS, WHOLE | {"ROW": 3}),
    "count": (bucket._count_selected, KEYS, WHOLE),
    "count float16": (bucket._count_selected, HALF_KEYS, HALF),
    "write": (bucket._write_selected, KEYS, WHOLE | {"TAKE": True}),
    "write float16": (bucket._write_selected, BRAIN_KEYS, HALF | {"TAKE": True}),
    "write indices": (bucket._write_selected, KEYS | {"indices": "*i64"}, WHOLE | {"TAKE": False, "norms": None}),
    "add what was sent": (bucket._add_sent, SENT, {"ZERO": True, "RANKS": 8, "TILE": bucket.SENT_TILE}),
    "add what one has sent": (bucket._add_sent, SENT, {"ZERO": False, "RANKS": 1, "TILE": bucket.SENT_TILE}),
    "encode blocks of 8 bits": (blocks._encode_blocks, BLOCKS, LEVELS | {"BITS": 8, "TINY": one_pass.TINY}),
    "encode blocks of 4 bits": (blocks._encode_blocks, HALF_BLOCKS, LEVELS | {"BITS": 4, "TINY": one_pass.TINY}),
    "add blocks of 8 bits": (blocks._add_blocks, BLOCKS, LEVELS | {"BITS": 8, "zero": 1}),
    "add blocks of 4 bits": (blocks._add_blocks, HALF_BLOCKS, LEVELS | {"BITS": 4}),
    "add a crossing": (one_pass._cross, CROSSING | {"matrix": "*fp16", "values": "*fp16"}, TILED | {"ADD": True}),
    "cut a crossing": (one_pass._cross, CROSSING | {"matrix": "*fp32", "values": "*fp32"}, TILED | {"ADD": False}),
    "sums of chunks": (bucket._sum_chunks, FOLDED, LOOK),
    "sums of chunks of bfloat16": (bucket._sum_chunks, FOLDED | {"like": "*bf16"}, LOOK),
    "fold": (bucket._fold, FOLDED, LOOK | {"TINY": one_pass.TINY}),
    "fold bfloat16 without weights": (
        bucket._fold,
        FOLDED | {"like": "*bf16"},
        LOOK | {"TINY": one_pass.TINY, "phi": None, "rest": None},
    ),
    "encode int8": (one_pass._encode, CODES | {"values": "*fp32"}, ENCODED | {"BITS": 8}),
    "encode int4": (one_pass._encode, PAIRS | {"values": "*fp16"}, ENCODED | {"BITS": 4}),
    "decode int8": (one_pass._decode_add, CODES | {"target": "*fp32"}, TILED | {"BITS": 8}),
    "decode int4": (one_pass._decode_add, PAIRS | {"target": "*fp16"}, TILED | {"BITS": 4}),
}
INEXACT = re.compile(r"\b(?:fma|mad)\.\S*\bb?f(?:16|32|64)\b\S*|\bdiv\.(?:full|approx)\S*|\b\S+\.ftz\S*|\brcp\.\S+")
"""Products that are not rounded before a sum, quotients that are not rounded to nearest, denormals that become zero."""
ONE = re.compile(r"mov\.b16\s+(%\w+), 0x3F80;")
"""A bfloat16 that is 1: an architecture without sums of bfloat16 multiplies by it, which is exact."""


def inexact(ptx: str) -> list[str]:
    """Return the instructions that round in their own way."""
    ones = "|".join(ONE.findall(ptx)) or "none"
    return INEXACT.findall(re.sub(rf"fma\.rn\.bf16\s+%\w+, %\w+, (?:{ones}), %\w+;", "", ptx))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_can_be_compiled_and_is_exact(kernel: str) -> None:
    function, types, values = KERNELS[kernel]
    known = types | SIZES
    signature = {name: "constexpr" if name in values else known[name] for name in function.arg_names}
    constants = {(function.arg_names.index(name),): value for name, value in values.items()}
    source = ASTSource(function, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=dict(EXACT))
    assert "cubin" in made.asm and inexact(made.asm["ptx"]) == []

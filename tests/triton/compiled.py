"""Kernels compiled for NVIDIA GPUs, without one: that they can be, and that no instruction rounds in its own way.

`tests/library/test_triton.py` runs this, without the interpreter.
"""

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from resireduce.kernels.gpu import blocks, crossing, finite, launches, mean_norm, near, once, sent, take_out, weighted
from resireduce.kernels.gpu.language import EXACT

KEYS = {"values": "*i32", "counts": "*i32", "border": "*i32", "found": "*i32", "until": "*i32", "out": "*i64"}
KEYS |= {"near": "*i32", "keys": "*i32", "places": "*i32", "total": "*i32", "total_near": "*i32"}
KEYS |= {"state": "*i32", "added": "*fp32", "taken": "*i32"}
HALF_KEYS = KEYS | {"values": "*i16", "near": "*i16", "keys": "*i16", "added": "*fp16", "taken": "*i16"}
SIZES = {
    "n": "i32",
    "k": "i32",
    "first": "i32",
    "place": "i32",
    "room": "i32",
    "blocks": "i32",
    "row": "i32",
    "rows": "i32",
}
LOOK = {"BITS": 31, "TILE": launches.TILE}
WHOLE = LOOK | {"NEAR": False}
NEAR = LOOK | {"NEAR": True}
ONCE = LOOK | {"NEAR": False, "SUM": False, "TAKE": False, "PROGRAMS": once.PROGRAMS}
CODES = {"codes": "*i8", "scales": "*fp32", "drawn": "*fp32"}
PAIRS = CODES | {"codes": "*u8"}
SENT = {"values": "*fp32", "places": "*i32"}
CROSSING = {"down": "*i32", "across": "*i32", "width": "i32"}
NORM = {
    "sums": "*fp64",
    "arrived": "*i32",
    "mean": "*fp32",
    "phi": "fp32",
    "rest": "fp32",
    "size": "fp32",
    "root": "fp32",
}
NORMED = {"TILE": mean_norm.TILE, "MOST": mean_norm.MOST}
WEIGHTED = {"TINY": blocks.TINY, "TILE": weighted.TILE, "IS_ONE": True, "IS_LAST": True}
FLOATS = dict.fromkeys(("into", "total", "more", "weight", "weights"), "*fp32")
KERNELS = {
    "the next bits": (launches._histogram, KEYS, WHOLE | {"TILES": launches.TILES}),
    "the next bits of float16": (launches._histogram, HALF_KEYS, WHOLE | {"BITS": 15, "TILES": launches.TILES}),
    "settle": (launches._settle, KEYS, {}),
    "count": (launches._count, KEYS, WHOLE),
    "write": (launches._write, HALF_KEYS, WHOLE | {"BITS": 15}),
    "the next bits of those near": (launches._histogram, KEYS, NEAR | {"TILES": launches.TILES}),
    "count those near": (launches._count, HALF_KEYS, NEAR | {"BITS": 15}),
    "write those near": (launches._write, KEYS, NEAR),
    "find how many are near": (near._count_near, KEYS, LOOK | {"SUM": False}),
    "find how many of a sum are near": (near._count_near, KEYS, LOOK | {"SUM": True}),
    "find how many of a sum of float16 are near": (near._count_near, HALF_KEYS, LOOK | {"BITS": 15, "SUM": True}),
    "find those near": (near._write_near, KEYS, LOOK | {"PART": near.PART}),
    "find those near of float16": (near._write_near, HALF_KEYS, LOOK | {"BITS": 15, "PART": near.PART}),
    "select at once": (once._select, KEYS, ONCE),
    "select of those near at once": (once._select, HALF_KEYS, ONCE | {"BITS": 15, "NEAR": True}),
    "select of a sum at once": (once._select, KEYS, ONCE | {"SUM": True}),
    "select of a sum of bfloat16 at once": (
        once._select,
        HALF_KEYS | {"added": "*bf16"},
        ONCE | {"BITS": 15, "SUM": True},
    ),
    "take out the largest of a sum": (once._select, KEYS | {"out": "*i32"}, ONCE | {"SUM": True, "TAKE": True}),
    "take out the largest of float16, of those near": (
        once._select,
        HALF_KEYS | {"out": "*i32"},
        ONCE | {"BITS": 15, "NEAR": True, "TAKE": True},
    ),
    "border at once": (once._border, KEYS, LOOK),
    "finite": (
        finite._zero_unless_finite,
        {"gradient": "*fp32", "states": "*i32", "place": "i32"},
        {"TILE": finite.TILE},
    ),
    "finite bfloat16": (
        finite._zero_unless_finite,
        {"gradient": "*bf16", "states": "*i32", "place": "i32"},
        {"TILE": finite.TILE},
    ),
    "take out": (
        take_out._take_out,
        {"flat": "*bf16", "values": "*bf16", "indices": "*i64"},
        {"TILE": take_out.TILE},
    ),
    "add": (sent._add_sent, SENT | {"dense": "*fp32", "scale": "fp32"}, {"TILE": sent.TILE}),
    "add a crossing": (crossing._add, CROSSING | {"matrix": "*fp16", "values": "*fp16"}, {"TILE": crossing.TILE}),
    "cut a crossing": (crossing._cut, CROSSING | {"matrix": "*fp32", "values": "*fp32"}, {"TILE": crossing.TILE}),
    "mean norm": (mean_norm._mean_norm, NORM | {"flat": "*fp32"}, NORMED),
    "mean norm of bfloat16": (mean_norm._mean_norm, NORM | {"flat": "*bf16"}, NORMED),
    "weighted sum": (weighted._add_weighted, FLOATS, WEIGHTED),
    "weighted sum of float16": (weighted._add_weighted, dict.fromkeys(FLOATS, "*fp16"), WEIGHTED),
    "encode int8": (blocks._encode, CODES | {"values": "*fp32"}, {"TINY": blocks.TINY, "BITS": 8, "ROWS": blocks.ROWS}),
    "encode int4": (blocks._encode, PAIRS | {"values": "*fp16"}, {"TINY": blocks.TINY, "BITS": 4, "ROWS": blocks.ROWS}),
    "decode int8": (blocks._decode_add, CODES | {"target": "*fp32"}, {"BITS": 8, "TILE": blocks.TILE}),
    "decode int4": (blocks._decode_add, PAIRS | {"target": "*fp16"}, {"BITS": 4, "TILE": blocks.TILE}),
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


def test_what_is_inexact_would_be_seen() -> None:
    lines = ("fma.rn.f32 %f1", "div.full.f32 %f1", "div.rn.ftz.f32 %f1", "cvt.rmi.ftz.f32.f32 %f1", "rcp.approx.f32")
    assert all(inexact(line) for line in lines) and not inexact("div.rn.f64 %f1; add.f32; mad.lo.s32 %r1")
    fused = "mov.b16 %rs1, 0x3F80;\nfma.rn.bf16 \t%rs4, %rs2, %rs{}, %rs3;"
    assert not inexact(fused.format(1)) and inexact(fused.format(5))

"""Which compressors go through a whole product of settings, and which through a part that covers them."""

from collections.abc import Sequence
from itertools import product
from typing import TypeVar

A, B, C = TypeVar("A"), TypeVar("B"), TypeVar("C")

CROSSED = (
    "none", "topk", "randomk", "threshold", "dgc", "dgc-simple", "dgc-momentum", "fp16", "qsgd", "qsgd-max"
)  # fmt: skip
"""Compressors that go with everything: of each collective, of even and uneven sizes, exact and not, with momentum.

Others differ from them in what a message holds, of which schemes, lifetimes and backends know nothing.
"""


def lifetimes(compressor: str) -> tuple[str, ...]:
    """Lifetimes of gradients that a compressor is tested with, where another test compares both."""
    return ("kept", "streamed") if compressor in CROSSED else ("streamed",)


def in_turn(first: Sequence[A], second: Sequence[B], third: Sequence[C]) -> list[tuple[A, B, C]]:
    """Each value of `first` with each of `second`, and those of `third` in turn: each with every other one."""
    places = product(enumerate(first), enumerate(second))
    return [(a, b, third[(i + j) % len(third)]) for (i, a), (j, b) in places]

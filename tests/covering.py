"""Which compressors go through a whole product of settings, and which through a part that covers them."""

CROSSED = (
    "none", "topk", "randomk", "threshold", "dgc", "dgc-simple", "dgc-momentum", "fp16", "qsgd", "qsgd-max"
)  # fmt: skip
"""Compressors that go with everything: of each collective, of even and uneven sizes, exact and not, with momentum.

Others differ from them in what a message holds, of which schemes, lifetimes and backends know nothing.
"""


def lifetimes(compressor: str) -> tuple[str, ...]:
    """Lifetimes of gradients that a compressor is tested with, where another test compares both."""
    return ("kept", "streamed") if compressor in CROSSED else ("streamed",)

"""What a cell can observe beside its usual measurements, one file each. This module imports nothing.

A function takes the trained model and its DistributedOptimizer, on rank 0 after the last step, and returns a mapping of
plain values for the record. It leaves both as they are.
"""

OBSERVATIONS: dict[str, str] = {
    "distributions": "benchmarks.observe.distributions:distributions",
}
"""Name, as cells give it in `observe` -> "module:function"."""

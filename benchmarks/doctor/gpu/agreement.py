"""Compare the bytes that a cell measured on a device with its plan. Imports no torch."""

from typing import Any

STATES = ("parameters", "gradients", "residuals", "optimizer_states", "total")
"""States that must be as planned, to the byte."""
BESIDE = ("peak_states", "allocated")
"""Figures that are also compared, with a tolerance."""
ALLOCATED = "allocated"
"""The rung of the ladder that is read at a step boundary, including gradients."""
KNOWN = ("states", "buffers", "workspaces", "rounding")
"""The parts of allocated bytes."""
ALLOCATED_TOLERANCE = 0.01
PEAK_TOLERANCE = 0.05


def disagreement(record: dict[str, Any]) -> str | None:
    """Return where a cell's memory is not as planned, measured of expected; None if all is, or nothing was compared."""
    found = []
    for agreement in record.get("agreement", ()):
        compared = agreement["states"] | {name: one for name, one in agreement.items() if name in BESIDE}
        wrong = {name: one for name, one in compared.items() if not one["agrees"]}
        found += [f"{name} {one['measured']} of {one['expected']}" for name, one in wrong.items()]
    return f"NOT as planned: {', '.join(found)}" if found else None


def compare(outcome: dict[str, Any], planned: dict[str, int | float]) -> dict[str, Any]:
    """Return the agreement of one rank's outcome by name: measured, expected, ratio, and whether they agree.

    `states`: each as planned, to the byte. `peak_states`: at the fullest moment of a step. `allocated`: bytes that the
    allocator has handed out at a step boundary since before the model was built, against the sum of the tensors known
    to be there: the model states on the device, the model's buffers, cuBLAS's workspaces, and the allocator's rounding,
    from its own snapshot. Missing without a GPU.
    """
    memory = outcome["memory"]
    states = {name: _compared(memory[f"{name}_bytes"], planned[name], 0.0) for name in STATES}
    peak = _compared(memory["peak_states_bytes"], planned["peak_states"], PEAK_TOLERANCE)
    found: dict[str, Any] = {"states": states, "peak_states": peak}
    allocated, known = rung_bytes(memory, ALLOCATED), memory.get("difference")
    if allocated is not None and known:
        expected = sum(known[f"{name}_bytes"] for name in KNOWN)
        found["allocated"] = _compared(allocated - known["baseline_bytes"], expected, ALLOCATED_TOLERANCE)
    every = [*states.values(), *(found[name] for name in BESIDE if name in found)]
    return found | {"agrees": all(one["agrees"] for one in every)}


def rung_bytes(memory: dict[str, Any], name: str) -> int | None:
    """Return the bytes of one rung of a rank's ladder; None if it is missing."""
    rungs = (rung for rung in memory.get("ladder") or () if rung.get("name") == name)
    return next((rung.get("bytes") for rung in rungs), None)


def _compared(measured: float, expected: float, tolerance: float) -> dict[str, Any]:
    ratio = measured / expected if expected else None
    agrees = measured == expected or (ratio is not None and abs(ratio - 1) <= tolerance)
    return {"measured": measured, "expected": expected, "ratio": ratio, "agrees": agrees}

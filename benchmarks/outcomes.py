"""From what the ranks of a cell left to its record, and to one line for the screen. Imports no torch."""

from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.files import file_hash
from benchmarks.launch import overall
from benchmarks.measure.provenance import job_facts, provenance
from benchmarks.record import BYTE_FIELDS, CellResult

PARTIAL = ("metric_name", "higher_is_better", "metric_history", "steps", "step_seconds")
"""What a rank that did not come to its end leaves."""


def to_result(
    cell: Cell,
    outcomes: list[dict[str, Any]],
    wall_seconds: float,
    weights: Path | None,
    image: dict[str, Any] | None = None,
) -> CellResult:
    """The record of a cell from its ranks' outcomes: metrics of rank 0, bytes of the rank that holds most.

    `image` is what is known of the image that they ran in.
    """
    said = overall(outcomes)
    values = {key: said[key] for key in ("status", "reason")}
    source = provenance(image) | {"weights_hash": file_hash(weights) if weights else None}
    if facts := [outcome.pop("facts") for outcome in outcomes if "facts" in outcome]:
        source |= job_facts(facts)
    if said["status"] != "ok":
        values |= _until_then(outcomes, said)
    else:
        first, memories = outcomes[0], [outcome.pop("memory") for outcome in outcomes]
        source["resumed_at_steps"] = first.pop("resumed_at_steps", [])
        wall_seconds += first.pop("earlier_seconds", 0.0)
        source |= {"data_hash": first.pop("data_hash"), "threads": first.pop("threads")}
        itemised = [memory.pop("items", {}) for memory in memories]
        rank = max(range(len(memories)), key=lambda rank: memories[rank]["peak_states_bytes"])
        fullest = memories[rank]
        values = {**first, **{name: fullest[name] for name in BYTE_FIELDS}, "per_rank": memories}
        if itemised[rank]:
            values["items"] = {"rank": rank, **itemised[rank]}
        values |= {"ladder": fullest["ladder"], "phase_seconds": memories[0]["phase_seconds"]}
    return CellResult(cell=cell, wall_seconds=wall_seconds, provenance=source, **values)


def _until_then(outcomes: list[dict[str, Any]], said: dict[str, Any]) -> dict[str, Any]:
    """What ranks that did not come to their end had measured, and where the one that says why ended."""
    known = [said, *(outcome for outcome in outcomes if outcome is not said)]
    measured = next((outcome for outcome in known if "steps" in outcome), {})
    values = {name: measured[name] for name in PARTIAL if name in measured}
    residents = [it["peak_resident_bytes"] for it in outcomes if it.get("peak_resident_bytes") is not None]
    where = {**measured.get("failure", {}), **said.get("failure", {}), "rank": outcomes.index(said)}
    # Of a rank that left nothing, the step is that of the others, which waited for it.
    values["failure"] = {name: value for name, value in where.items() if name != "lost_peer"}
    values["peak_resident_bytes"] = max(residents, default=None)
    names = ("status", "reason", "steps", "peak_resident_bytes")
    values["per_rank"] = [{"rank": rank} | {name: it.get(name) for name in names} for rank, it in enumerate(outcomes)]
    return values


def summary(result: CellResult, baseline_bytes: int | None = None) -> str:
    """One line for the screen; `baseline_bytes` is what model states are normalised by."""
    if result.status != "ok":
        return f"{result.cell.name}: {result.status}: {result.reason}"
    total_bytes = result.total_bytes or 0
    share = f", normalised {total_bytes / baseline_bytes:.1%}" if baseline_bytes else ""
    return (
        f"{result.cell.name}: {result.metric_name} {result.metric:.3f}, "
        f"model states {total_bytes / 2**20:.2f} MiB{share}, "
        f"{result.steps_per_second:.1f} steps/s, {result.wall_seconds:.0f} s"
    )

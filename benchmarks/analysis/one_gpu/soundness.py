"""What cannot be true of a record of one GPU: it is of a CPU, of another cell, or its figures contradict each other."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.ladder import rung_problem
from benchmarks.core.record import STATE_FIELDS

TOTAL, IN_FLIGHT, PEAK_STATES = "total_bytes", "in_flight_bytes", "peak_states_bytes"
ITEMISED, ALLOCATED, FREED, PEAK = (
    "model_state_itemised",
    "allocated",
    "allocated_without_gradients",
    "peak_allocated",
)
PARTS = ("baseline_bytes", "states_bytes", "buffers_bytes", "workspaces_bytes", "rounding_bytes", "other_bytes")
"""What `allocated` consists of."""
UUID = ("GPU-", "MIG-")
AHEAD = timedelta(days=1)
"""By how much a clock may be fast."""
Json = Mapping[str, Any]


def wrong_source(source: Json) -> str | None:
    """Return why the provenance of a file is not that of a GPU; None if it is."""
    device = source.get("device")
    if not isinstance(device, str) or device == "cpu" or not str(source.get("uuid")).startswith(UUID):
        return f"it was measured on {device!r}, which is no GPU with a UUID"
    if not source.get("cuda") or str(source.get("torch")).endswith("+cpu"):
        return f"{device!r}, but its torch, {source.get('torch')}, is one for CPUs alone"
    if not source.get("device_memory_bytes"):
        return f"{device!r}, but its memory is not known"
    return _wrong_date(source.get("date"))


def _wrong_date(given: object) -> str | None:
    try:
        date = datetime.fromisoformat(str(given))
    except ValueError:
        return f"date: {given!r} is none"
    if date.tzinfo is None or date > datetime.now(UTC) + AHEAD:
        return f"date: {given!r} has no time zone, or is still to come"
    return None


def wrong_case(cell: Cell, case: Json) -> str | None:
    """Return why the record of a cell that finished cannot have been measured on its GPU; None if it can."""
    try:
        return next(_wrong(cell, case), None)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"its record is damaged ({type(error).__name__}: {error})"


def _wrong(cell: Cell, case: Json) -> Iterator[str]:
    ranks, source = case["ranks"], case["source"]
    if case["name"] != cell.name:
        yield f"it is called {case['name']}"
    if len(ranks) != cell.world_size:
        yield f"{len(ranks)} ranks, its cell has {cell.world_size}"
    if problem := _wrong_date(case["date"]):
        yield problem
    if not str(case["device"]).startswith(UUID):
        yield f"measured on {case['device']}, which is no UUID of a GPU"
    for rank in ranks:
        yield from _wrong_rank(cell, rank, str(case["device"]), source)
        yield from _wrong_memory(rank["memory"])


def _wrong_rank(cell: Cell, rank: Json, uuid: str, source: Json) -> Iterator[str]:
    facts = rank["facts"]
    if rank["status"] != "ok" or rank["steps"] != cell.steps or len(rank["step_seconds"]) != cell.steps:
        yield f"a rank ended as {rank['status']} after {rank['steps']} steps, its cell has {cell.steps}"
    if facts["device"] != source["device"] or not facts["device_memory_bytes"]:
        yield f"a rank was on {facts['device']}, its file is of {source['device']}"
    if facts["gpu_uuid"] != uuid:
        yield f"a rank was on {facts['gpu_uuid']}, its case on {uuid}"


def _wrong_memory(memory: Json) -> Iterator[str]:
    counts = {name: memory[name] for name in (*STATE_FIELDS, TOTAL, IN_FLIGHT, PEAK_STATES)}
    if bad := [name for name, value in counts.items() if type(value) is not int or value < 0]:
        yield f"{bad[0]}: {counts[bad[0]]!r} is no number of bytes"
    if sum(memory[name] for name in STATE_FIELDS) != memory[TOTAL]:
        yield "its model states do not add up"
    if memory[TOTAL] + memory[IN_FLIGHT] != memory[PEAK_STATES]:
        yield f"{PEAK_STATES} is not {TOTAL} and {IN_FLIGHT} together"
    if bad := [problem for rung in memory["ladder"] if (problem := rung_problem(rung))]:
        yield bad[0]
    yield from _wrong_rungs(memory)


def _wrong_rungs(memory: Json) -> Iterator[str]:
    """Compare the ladder's rungs with each other, with the states, and with the parts of what is allocated."""
    read, parts = {rung["name"]: rung["bytes"] for rung in memory["ladder"]}, memory["difference"]
    if len(read) != len(memory["ladder"]):
        yield "a rung is there twice"
    if read[ITEMISED] != memory[TOTAL]:
        yield f"{ITEMISED} is {read[ITEMISED]}, {TOTAL} {memory[TOTAL]}"
    if read[ALLOCATED] is None or not isinstance(parts, dict):
        yield "without figures of the allocator, as on a CPU"
    if read[ALLOCATED] != parts["allocated_bytes"] or sum(parts[name] for name in PARTS) != read[ALLOCATED]:
        yield f"{ALLOCATED} is {read[ALLOCATED]}, which its parts do not add up to"
    if parts["states_bytes"] > memory[TOTAL]:
        yield "more model states on the device than there are"
    if read[FREED] is not None and read[FREED] > read[ALLOCATED]:
        yield f"{FREED} is more than {ALLOCATED}"
    if read[PEAK] is not None and read[PEAK] < parts["states_bytes"] + parts["buffers_bytes"]:
        yield f"{PEAK} is less than what is held between two steps"

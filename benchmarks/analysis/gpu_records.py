"""Reads what `python -m benchmarks measure gpu` has measured on one GPU, and refuses what is no evidence of one."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.rank_memory import rung_problem
from benchmarks.core.record import STATE_FIELDS
from resireduce.errors import ConfigError

# --- What was measured on one GPU, and what of it can be compared ---

Json = Mapping[str, Any]
NVML_PROCESS = "nvml_process"
HARMLESS = ("pid-namespace", "nvml-v1")
"""Flags of a rung that leave it comparable; with any other it decides nothing."""
USUAL: Json = {"compressor": "topk", "residual_dtype": None, "world_size": 1}
BASELINE: Json = {**USUAL, "scheme": "baseline", "gradients": "kept"}
"""Fields of the cell that savings are measured against."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell that the check has trained."""

    cell: Cell
    status: str
    reason: str | None
    ranks: tuple[Json, ...] = ()
    """What each rank measured: the `memory` of its outcome. Empty unless it finished and nothing is wrong with it."""
    doubt: str | None = None
    """Why it is no evidence; None if it is."""

    @property
    def memory(self) -> Json:
        """What the fullest rank measured."""
        return max(self.ranks, key=lambda memory: int(memory["peak_states_bytes"]))


@dataclass(frozen=True, kw_only=True)
class Device:
    """What was measured on one GPU."""

    name: str
    """The name of the folder with its records, such as nvidia-h200."""
    source: Json
    """Device, driver, versions, commit and date of the last stretch."""
    cases: tuple[Case, ...] = ()
    known: tuple[Json, ...] = ()
    """Readings of known allocations, a rung each."""
    commits: tuple[str, ...] = ()
    """Those at which its cells were measured, oldest first."""
    notes: tuple[str, ...] = ()
    """What of its folder does not count, and why."""

    @property
    def origin(self) -> str:
        """GPU, driver, torch, commits of the code of all cells, and date, in words."""
        source, commits = self.source, self.commits or (str(self.source.get("commit")),)
        dirty = " with uncommitted changes" if source.get("dirty") else ""
        return (
            f"{source['device']}, driver {source.get('driver')}, torch {source.get('torch')}, "
            f"commit{'s' if len(commits) > 1 else ''} {', '.join(one[:7] for one in commits)}{dirty}, "
            f"{str(source.get('date'))[:10]}"
        )


class Unread(ValueError):
    """A rung has no figure, or none that can be compared; the text says why."""


def matching(device: Device, model: str, wanted: Mapping[str, Any]) -> list[Case]:
    """Return the cells of a model with these fields."""
    found = [one for one in device.cases if one.cell.model == model]
    return [one for one in found if all(getattr(one.cell, name) == value for name, value in wanted.items())]


def bytes_at(one: Case, name: str) -> int:
    """Return the bytes of a rung, of the fullest rank. Raises Unread if there are none that can be compared."""
    rung = next((rung for rung in one.memory["ladder"] if rung["name"] == name), {"reason": "no such rung"})
    if flags := spoilt(rung):
        raise Unread(f"{one.cell.name}: {name} is flagged {flags}")
    if not rung.get("bytes"):
        raise Unread(f"{one.cell.name}: {name}: {rung['reason'] or 'nothing read'}")
    return int(rung["bytes"])


def spoilt(rung: Mapping[str, Any]) -> str:
    """Return the flags of a rung or of a reading that leave it not comparable; "" if it has none."""
    flags = rung.get("flags") or ()
    known = flags if isinstance(flags, list | tuple) else [flags]
    return ", ".join(str(flag) for flag in known if flag not in HARMLESS)


# --- What cannot be true of a record: it is of a CPU, of another cell, or its figures contradict each other ---

TOTAL, IN_FLIGHT, PEAK_STATES = "total_bytes", "in_flight_bytes", "peak_states_bytes"
ITEMISED, ALLOCATED, PEAK = "model_state_itemised", "allocated", "peak_allocated"
PARTS = ("baseline_bytes", "states_bytes", "buffers_bytes", "workspaces_bytes", "rounding_bytes", "other_bytes")
"""What `allocated` consists of."""
UUID = ("GPU-", "MIG-")


def wrong_source(source: Json) -> str | None:
    """Return why the provenance of a file is not that of a GPU; None if it is."""
    device = source.get("device")
    if not isinstance(device, str) or device == "cpu" or not str(source.get("uuid")).startswith(UUID):
        return f"it was measured on {device!r}, which is no GPU with a UUID"
    if not source.get("cuda"):
        return f"{device!r}, but its torch, {source.get('torch')}, is one for CPUs alone"
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
    if not str(case["device"]).startswith(UUID):
        yield f"measured on {case['device']}, which is no UUID of a GPU"
    for rank in ranks:
        if rank["status"] != "ok" or rank["steps"] != cell.steps or len(rank["step_seconds"]) != cell.steps:
            yield f"a rank ended as {rank['status']} after {rank['steps']} steps, its cell has {cell.steps}"
        if rank["facts"]["device"] != source["device"]:
            yield f"a rank was on {rank['facts']['device']}, its file is of {source['device']}"
        yield from _wrong_memory(rank["memory"])


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
    # The ladder's rungs beside the states, and beside the parts of what is allocated.
    read, parts = {rung["name"]: rung["bytes"] for rung in memory["ladder"]}, memory["difference"]
    if read[ITEMISED] != memory[TOTAL]:
        yield f"{ITEMISED} is {read[ITEMISED]}, {TOTAL} {memory[TOTAL]}"
    if read[ALLOCATED] is None or not isinstance(parts, dict):
        yield "without figures of the allocator, as on a CPU"
    if read[ALLOCATED] != parts["allocated_bytes"] or sum(parts[name] for name in PARTS) != read[ALLOCATED]:
        yield f"{ALLOCATED} is {read[ALLOCATED]}, which its parts do not add up to"
    if read[PEAK] is not None and read[PEAK] < parts["states_bytes"] + parts["buffers_bytes"]:
        yield f"{PEAK} is less than what is held between two steps"


# --- The records of one GPU, in results/reference/<device>, and what is wrong about them ---

REFERENCE = ROOT / "results/reference"
MEMORY, KNOWN = "memory", "known"
"""Groups of the one-GPU check whose files are read."""


def read_devices(folder: Path = REFERENCE) -> list[Device]:
    """Return the devices whose records lie below a folder, in the order of their names.

    A folder with neither of the two files is none of a device. One whose files are broken, or not those of a GPU, is
    returned without cases, and its notes say why.
    """
    paths = sorted({path.parent for group in (MEMORY, KNOWN) for path in folder.glob(f"*/{group}.json")})
    return [read_device(path) for path in paths]


def read_device(folder: Path) -> Device:
    """Return the records of one device, in the folder that has its name."""
    folder = folder.resolve()
    (source, trained, note), (other, known, more) = (_of_group(folder, group) for group in (MEMORY, KNOWN))
    cases = tuple(_cases(trained))
    doubts = (f"{folder.name}: {one.cell.name}: {one.doubt}" for one in cases if one.doubt)
    dated = sorted(trained, key=lambda case: str(case.get("date")))
    return Device(
        name=folder.name,
        source=source or other or {},
        cases=cases,
        known=tuple(_readings(known)),
        commits=tuple(dict.fromkeys(str(case.get("commit")) for case in dated)),
        notes=(*filter(None, (note, more)), *doubts),
    )


def _of_group(folder: Path, group: str) -> tuple[Json | None, list[Json], str | None]:
    """Return the source of a file, and its cases with the facts of that in each; else why it is no evidence."""
    path = folder / f"{group}.json"
    if not path.exists():
        return None, [], None
    try:
        values = load_json(path)
        source = values["provenance"]
        if values["group"] != group:
            raise ValueError(f"it is of the group {values['group']!r}")
        if problem := wrong_source(source):
            raise ValueError(problem)
        if re.sub(r"[^a-z0-9]+", "-", source["device"].lower()).strip("-") != folder.name:
            raise ValueError(f"it was measured on {source['device']}, and lies in {folder.name}")
        return source, [{**case, "source": source} for case in values["cases"]], None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return None, [], f"{folder.name}: {path.name} does not count: {error}"


def _cases(found: list[Json]) -> Iterator[Case]:
    """Yield all cells; those with an impossible record, or with two, have no ranks."""
    twice = Counter(str(case.get("name")) for case in found)
    for case in found:
        try:
            cell = Cell.from_dict(case["cell"])
        except (ConfigError, LookupError, TypeError, AttributeError):
            continue  # no claim is about it
        status, reason = str(case.get("status")), case.get("reason")
        doubt = wrong_case(cell, case) if status == "ok" else None
        doubt = "it is there twice" if twice[str(case.get("name"))] > 1 else doubt
        ranks = tuple(rank["memory"] for rank in case["ranks"]) if status == "ok" and not doubt else ()
        yield Case(cell=cell, status=status, reason=reason and str(reason), ranks=ranks, doubt=doubt)


def _readings(found: list[Json]) -> Iterator[Json]:
    for case in found:
        result = case.get("result") if case.get("status") == "ok" else None
        yield from (one for one in result if isinstance(one, dict)) if isinstance(result, list) else ()

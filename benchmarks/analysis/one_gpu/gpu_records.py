"""Reads the records of one GPU, in results/reference/<device>, and says what is wrong about them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.one_gpu.measured_device import Case, Device, Json
from benchmarks.analysis.one_gpu.soundness import UUID, wrong_case, wrong_source
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError

REFERENCE = ROOT / "results/reference"
MEMORY, KNOWN = "memory", "known"
"""Groups of the one-GPU check whose files are read."""


def read_devices(folder: Path = REFERENCE) -> list[Device]:
    """Return the devices whose records lie below a folder, in the order of their names.

    A folder with neither of the two files is none of a device. One whose files are broken, or not those of a GPU, is
    returned without cases, and its notes say why. So is one that names the GPU of another folder: at least one of the
    two is a copy.
    """
    paths = sorted({path.parent for group in (MEMORY, KNOWN) for path in folder.glob(f"*/{group}.json")})
    found = [read_device(path) for path in paths]
    return [_unless_copied(one, [other for other in found if other is not one]) for one in found]


def _unless_copied(one: Device, others: Sequence[Device]) -> Device:
    names = [other.name for other in others if other.uuids & one.uuids]
    note = f"{one.name} does not count: its GPU has the identifier of that in {', '.join(names)}"
    return replace(one, cases=(), known=(), notes=(*one.notes, note)) if names else one


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
        uuids=frozenset(uuid for case in (*trained, *known) if (uuid := str(case.get("device"))).startswith(UUID)),
        notes=(*filter(None, (note, more)), *doubts),
    )


def with_results(folder: Path, group: str) -> list[Json]:
    """Return the steps of a group that left results on a GPU, as they lie in a device's folder.

    One that failed, or was stopped, has results if it is of many parts: they say which were right.
    """
    _, cases, _ = _of_group(folder.resolve(), group)
    found = [case for case in cases if str(case.get("device")).startswith(UUID)]
    return [case for case in found if case.get("status") == "ok" or case.get("result")]


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
        if problem := wrong_source(source) or _misplaced(folder, source):
            raise ValueError(problem)
        return source, [{**case, "source": source} for case in values["cases"]], None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return None, [], f"{folder.name}: {path.name} does not count: {error}"


def _misplaced(folder: Path, source: Json) -> str | None:
    name = re.sub(r"[^a-z0-9]+", "-", str(source["device"]).lower()).strip("-")
    return None if name == folder.name else f"it was measured on {source['device']}, and lies in {folder.name}"


def _cases(found: list[Json]) -> Iterator[Case]:
    """Yield all cells; those with an impossible record, or one that stands for several, have no ranks."""
    twice = Counter(str(case.get("name")) for case in found)
    times = grouped((tuple(_seconds(case)), str(case.get("name"))) for case in found if _seconds(case)).values()
    alike = {name: other for those in times for other in those for name in those if name != other}
    for case in found:
        try:
            cell = Cell.from_dict(case["cell"])
        except (ConfigError, LookupError, TypeError, AttributeError):
            continue  # no claim is about it
        status, reason = str(case.get("status")), case.get("reason")
        doubt = None
        if twice[str(case.get("name"))] > 1:
            doubt = "it is there twice"
        elif other := alike.get(str(case.get("name"))):
            doubt = f"each step took the seconds of {other}: one training, not two"
        elif status == "ok":
            doubt = wrong_case(cell, case)
        ranks = tuple(rank["memory"] for rank in case["ranks"]) if status == "ok" and not doubt else ()
        yield Case(cell=cell, status=status, reason=reason and str(reason), ranks=ranks, doubt=doubt)


def _seconds(case: Json) -> list[float]:
    """Return the seconds of the steps of rank 0; nothing if there are too few to tell trainings apart."""
    ranks = case.get("ranks")
    first = ranks[0] if isinstance(ranks, list) and ranks and isinstance(ranks[0], dict) else {}
    found = first.get("step_seconds")
    is_told = isinstance(found, list) and len(found) > 1 and all(isinstance(one, float) for one in found)
    return found if is_told else []


def _readings(found: list[Json]) -> Iterator[Json]:
    for case in found:
        result = case.get("result") if case.get("status") == "ok" else None
        yield from (one for one in result if isinstance(one, dict)) if isinstance(result, list) else ()

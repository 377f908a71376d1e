"""Claims that one GPU can show, judged by the committed records of the one-GPU check. Imports no torch.

Each GPU with records is judged by itself: all of them must show a claim, and one that shows the contrary refutes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.analysis.claims.claim import NOT_RUN, Claim, Undecided, Verdict, combined, number, shown, unless_doubted
from benchmarks.analysis.claims.sound import planned_bytes
from benchmarks.analysis.gpu_records import (
    ALLOCATED,
    BASELINE,
    ITEMISED,
    NVML_PROCESS,
    PARTS,
    PEAK,
    USUAL,
    Case,
    Device,
    Unread,
    bytes_at,
    matching,
    spoilt,
)
from benchmarks.core.cell import CELL_FIELDS
from benchmarks.core.record import STATE_FIELDS

ONE_GPU = "one_gpu"
"""The kind of these claims, which need no cells of a run."""
ON_ONE_GPU = "one GPU"
"""Their scope."""
RUNGS = (ITEMISED, ALLOCATED, PEAK, NVML_PROCESS)
"""Rungs of the ladder that a claim may name: those that other processes on the GPU do not change."""
NO_RECORDS = "no records of a GPU"


@dataclass(frozen=True)
class Found:
    """The verdict on a claim, the GPUs it comes from, and the names of the cells."""

    verdict: Verdict
    hardware: str | None = None
    cells: tuple[str, ...] = ()


def one_gpu(claim: Claim, devices: Sequence[Device]) -> Found:
    """Return what the records of all GPUs show about a claim."""
    judged = []
    for device in devices:
        try:
            judged.append((MEASURES[claim.paper.limits["measure"]][0](claim, device), device))
        except Undecided as why:
            judged.append((Found(why.verdict), device))
    tested = [(found, device) for found, device in judged if found.verdict.status != NOT_RUN]
    if not tested:
        reasons = dict.fromkeys(found.verdict.reason for found, _ in judged)
        return Found(Verdict(status=NOT_RUN, reason="; ".join(reasons) or NO_RECORDS))
    verdict = combined([found.verdict for found, _ in tested], [device.name for _, device in tested])
    cells = dict.fromkeys(name for found, _ in tested for name in found.cells)
    return Found(verdict, "; ".join(device.origin for _, device in tested), tuple(cells))


def saving(claim: Claim, device: Device) -> Found:
    """Judge how much less than the baseline a setting takes at a rung: as published, or at least so much."""
    limits = claim.paper.limits
    against = sound_case(device, limits["model"], BASELINE)
    tested = sound_case(device, limits["model"], USUAL | limits["tested"])
    free = [name for name in CELL_FIELDS if name not in BASELINE]
    if others := [name for name in free if getattr(tested.cell, name) != getattr(against.cell, name)]:
        raise Undecided(f"the cells compared differ in {', '.join(others)}")
    if problem := next(chain(unplanned(against), unplanned(tested, or_more=True)), None):
        raise Undecided(problem)
    mine, theirs = (bytes_of(one, limits["rung"]) for one in (tested, against))
    value, published = 100 * (1 - mine / theirs), claim.published.get("value")
    if published is None:
        agrees, says = value >= limits["at_least"], f"at least {limits['at_least']:g} %"
        text = says
    else:
        agrees = abs(value - published.value) <= limits["tolerance"]
        says = f"{published.value:g} % within {limits['tolerance']:g} points"
        apart = round(value - published.value, 2)
        text = f"published {published.value:g} %, {abs(apart):.2f} points {'more' if apart >= 0 else 'less'}"
    where = f"{limits['rung']} of {theirs / 2**20:,.1f} MiB, one rank on {device.source['device']}"
    reason, status = f"{number(value)} %, {text}; {where}", shown(agrees)
    verdict = Verdict(status=status, reason=reason, value=value, unit="%", tolerance=says, seeds=1)
    return Found(unless_doubted(verdict, unplanned(tested)), cells=(tested.cell.name, against.cell.name))


def as_planned(claim: Claim, device: Device) -> Found:
    """Judge whether all cells of a model hold the model states that were planned, to the byte."""
    cases = sound_cases(device, claim.paper.limits["model"])
    wrong = [problem for one in cases for problem in unplanned(one)]
    text = wrong[0] if wrong else f"{len(cases)} cells as planned, to the byte"
    return _of_cases(cases, not wrong, f"{text}, on {device.source['device']}", "every byte")


def added_up(claim: Claim, device: Device) -> Found:
    """Judge whether the allocator has given out what is known to be there: states, buffers, workspaces, rounding."""
    cases, within = sound_cases(device, claim.paper.limits["model"]), float(claim.paper.limits["within"])
    apart = {}
    for one in cases:
        bytes_of(one, ALLOCATED)
        parts = [memory["difference"] for memory in one.ranks]
        known = [sum(of[name] for name in PARTS if name not in ("baseline_bytes", "other_bytes")) for of in parts]
        others = [abs(of["other_bytes"]) for of in parts]
        apart[one.cell.name] = max(100 * more / there for more, there in zip(others, known, strict=True))
    most = max(apart, key=lambda name: apart[name])
    text = f"{len(cases)} cells, at most {apart[most]:.4f} % apart ({most}), on {device.source['device']}"
    return _of_cases(cases, apart[most] <= within, text, f"{within:g} %", apart[most])


def known(claim: Claim, device: Device) -> Found:
    """Judge whether each rung reads allocations of known size."""
    within = float(claim.paper.limits["within"])
    readings = [one for one in device.known if one.get("rung") in RUNGS]
    if not readings:
        raise Undecided(f"{device.name} has no readings of known allocations", NOT_RUN)
    errors: dict[str, float] = {}
    read = {(one["rung"], str(one.get("expected_bytes"))) for one in readings}
    for one in readings:
        if flags := spoilt(one):
            raise Undecided(f"{one['rung']} is flagged {flags}")
        measured, expected = one.get("measured_bytes"), one.get("expected_bytes")
        if type(measured) is not int or type(expected) is not int or expected <= 0:
            raise Undecided(f"{one['rung']}: {one.get('reason') or 'not read'}")
        errors[one["rung"]] = max(errors.get(one["rung"], 0.0), 100 * abs(measured / expected - 1))
    if missing := [(rung, size) for _, size in sorted(read) for rung in RUNGS if (rung, size) not in read]:
        raise Undecided(f"{missing[0][0]} of {missing[0][1]} bytes was not read")
    most = max(errors, key=lambda rung: errors[rung])
    text = f"{len(readings)} readings, at most {errors[most]:.2f} % off ({most}), on {device.source['device']}"
    verdict = Verdict(status=shown(errors[most] <= within), reason=text, value=errors[most], unit="%")
    return Found(verdict)


def _of_cases(cases: Sequence[Case], agrees: bool, text: str, says: str, value: float | None = None) -> Found:
    unit = None if value is None else "%"
    verdict = Verdict(status=shown(agrees), reason=text, value=value, unit=unit, tolerance=says, seeds=1)
    return Found(verdict, cells=tuple(one.cell.name for one in cases))


MEASURES: dict[str, tuple[Callable[[Claim, Device], Found], tuple[str, ...]]] = {
    "saving": (saving, ("model", "tested", "rung")),
    "as_planned": (as_planned, ("model",)),
    "added_up": (added_up, ("model", "within")),
    "known": (known, ("within",)),
}
"""The names that `measure` may have in a claim of one GPU, each with the other names it needs in `test`."""


# --- The cells of one GPU that a claim compares: those with a sound record, and what the plan says of them ---


def sound_cases(device: Device, model: str) -> list[Case]:
    """Return all cells of a model. Raises Undecided unless each has finished, and could be measured."""
    found = [one for one in device.cases if one.cell.model == model]
    if not found:
        raise Undecided(f"{device.name} has no cells of {model}", NOT_RUN)
    for one in found:
        _refuse(one)
    return found


def sound_case(device: Device, model: str, wanted: Mapping[str, Any]) -> Case:
    """Return the cell of a model with these fields. Raises Undecided if there is no sound record of it."""
    found = matching(device, model, wanted)
    if not found:
        setting = f"{wanted['scheme']}, {wanted['gradients']}"
        raise Undecided(f"{device.name} has no cell of {model} with {setting}", NOT_RUN)
    if len(found) > 1:
        raise Undecided(f"{device.name} has {len(found)} cells for {found[0].cell.name}")
    _refuse(found[0])
    return found[0]


def _refuse(one: Case) -> None:
    if one.doubt or one.status != "ok":
        raise Undecided(f"{one.cell.name}: {one.doubt or f'{one.status}, {one.reason}'}")


def bytes_of(one: Case, rung: str) -> int:
    """Return what a cell takes at a rung. Raises Undecided if that could not be read."""
    try:
        return bytes_at(one, rung)
    except Unread as why:
        raise Undecided(str(why)) from None


def unplanned(one: Case, or_more: bool = False) -> Iterator[str]:
    """Yield the states of a cell's ranks that are not those of the committed plan.

    or_more: let residuals take more, since a scheme that saves less than it should is a result, if not a claim's proof.
    """
    planned = {name: nbytes for name in STATE_FIELDS if (nbytes := planned_bytes(one.cell, name)) is not None}
    if len(planned) < len(STATE_FIELDS):
        yield f"{one.cell.name} has no plan"
        return
    for memory in one.ranks:
        for name, value in planned.items():
            more = or_more and name == "residuals_bytes" and memory[name] > value
            if memory[name] != value and not more:
                yield f"{name} of {one.cell.name} is {memory[name]:,}, by plan {value:,}"

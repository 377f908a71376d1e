"""Claims that one GPU can show, judged by the committed records of the one-GPU check. Imports no torch.

Each GPU with records is judged by itself: all of them must show a claim, and one that shows the contrary refutes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from benchmarks.analysis import gpu_records as gpu
from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_RUN,
    Claim,
    Undecided,
    Verdict,
    allowed,
    beside,
    combined,
    number,
    shown,
    unless_doubted,
)
from benchmarks.analysis.claims.sound import unplanned

RUNGS = (gpu.ITEMISED, gpu.ALLOCATED, gpu.PEAK, gpu.NVML_PROCESS)
"""Rungs of the ladder that a claim may name: those that other processes on the GPU do not change."""
Judge = Callable[[Claim, gpu.Device], Verdict]


def on_all(judge: Judge, claim: Claim, devices: Sequence[gpu.Device]) -> Verdict:
    """Return what the records of all GPUs show about a claim."""
    verdicts = {device.name: _on_one(judge, claim, device) for device in devices}
    tested = {name: one for name, one in verdicts.items() if one.status != NOT_RUN}
    if not tested:
        reasons = dict.fromkeys(one.reason for one in verdicts.values())
        return Verdict(status=NOT_RUN, reason="; ".join(reasons) or "no records of a GPU")
    return combined([*tested.values()], [*tested])


def _on_one(judge: Judge, claim: Claim, device: gpu.Device) -> Verdict:
    try:
        verdict = judge(claim, device)
    except Undecided as why:
        verdict = why.verdict
    except gpu.Unread as why:
        verdict = Verdict(status=INCONCLUSIVE, reason=str(why))
    return verdict if verdict.status == NOT_RUN else replace(verdict, hardware=device.origin)


def gpu_saving(claim: Claim, device: gpu.Device) -> Verdict:
    """Judge how much less than the baseline a setting takes at a rung: as published, or at least so much."""
    limits = claim.paper.limits
    against, tested = (_cells(device, claim, one)[0] for one in (gpu.BASELINE, gpu.USUAL | limits["tested"]))
    if problem := next(chain(_unplanned(against, exact=True), _unplanned(tested, exact=False)), None):
        raise Undecided(problem)
    mine, theirs = (gpu.bytes_at(one, limits["rung"]) for one in (tested, against))
    value, stated = 100 * (1 - mine / theirs), claim.published.get("value")
    low, high, says = allowed(stated.value if stated else None, limits)
    text = beside(value, stated.value, "%") if stated else says
    where = f"{limits['rung']} of {theirs / 2**20:,.1f} MiB, one rank on {device.source['device']}"
    verdict = _verdict((tested, against), low <= value <= high, f"{number(value)} %, {text}; {where}", says, value)
    return unless_doubted(verdict, _unplanned(tested, exact=True))


def gpu_as_planned(claim: Claim, device: gpu.Device) -> Verdict:
    """Judge whether all cells of a model hold the model states that were planned, to the byte."""
    cases = _cells(device, claim)
    wrong = [problem for one in cases for problem in _unplanned(one, exact=True)]
    text = wrong[0] if wrong else f"{len(cases)} cells as planned, to the byte"
    return _verdict(cases, not wrong, f"{text}, on {device.source['device']}", "every byte")


def gpu_added_up(claim: Claim, device: gpu.Device) -> Verdict:
    """Judge whether the allocator has given out what is known to be there: states, buffers, workspaces, rounding."""
    cases, within = _cells(device, claim), float(claim.paper.limits["within"])
    apart = {}
    for one in cases:
        gpu.bytes_at(one, gpu.ALLOCATED)
        parts = [memory["difference"] for memory in one.ranks]
        known = [sum(of[name] for name in gpu.PARTS if name not in ("baseline_bytes", "other_bytes")) for of in parts]
        apart[one.cell.name] = max(100 * abs(of["other_bytes"]) / there for of, there in zip(parts, known, strict=True))
    most = max(apart, key=lambda name: apart[name])
    text = f"{len(cases)} cells, at most {apart[most]:.4f} % apart ({most}), on {device.source['device']}"
    return _verdict(cases, apart[most] <= within, text, f"{within:g} %", apart[most])


def gpu_known(claim: Claim, device: gpu.Device) -> Verdict:
    """Judge whether each rung reads allocations of known size."""
    readings = [one for one in device.known if one.get("rung") in RUNGS]
    if not readings:
        raise Undecided(f"{device.name} has no readings of known allocations", NOT_RUN)
    errors: dict[str, float] = {}
    for one in readings:
        if flags := gpu.spoilt(one):
            raise Undecided(f"{one['rung']} is flagged {flags}")
        measured, expected = one.get("measured_bytes"), one.get("expected_bytes")
        if type(measured) is not int or type(expected) is not int or expected <= 0:
            raise Undecided(f"{one['rung']}: {one.get('reason') or 'not read'}")
        errors[one["rung"]] = max(errors.get(one["rung"], 0.0), 100 * abs(measured / expected - 1))
    most = max(errors, key=lambda rung: errors[rung])
    text = f"{len(readings)} readings, at most {errors[most]:.2f} % off ({most}), on {device.source['device']}"
    return Verdict(
        status=shown(errors[most] <= claim.paper.limits["within"]), reason=text, value=errors[most], unit="%"
    )


MEASURES = (gpu_saving, gpu_as_planned, gpu_added_up, gpu_known)
"""The kinds of claims of one GPU, each under its own name."""


def _verdict(cases: Sequence[gpu.Case], agrees: bool, text: str, says: str, value: float | None = None) -> Verdict:
    names = tuple(one.cell.name for one in cases)
    unit = None if value is None else "%"
    return Verdict(status=shown(agrees), reason=text, value=value, unit=unit, tolerance=says, seeds=1, cells=names)


def _cells(device: gpu.Device, claim: Claim, wanted: Mapping[str, Any] = {}) -> list[gpu.Case]:
    """Return the cells of the claim's model with these fields. Raises Undecided unless each could be measured."""
    found = gpu.matching(device, claim.paper.models[0], wanted)
    if not found:
        with_these = f" with {wanted['scheme']}, {wanted['gradients']}" if wanted else ""
        raise Undecided(f"{device.name} has no cell of {claim.paper.models[0]}{with_these}", NOT_RUN)
    for one in found:
        if one.doubt or one.status != "ok":
            raise Undecided(f"{one.cell.name}: {one.doubt or f'{one.status}, {one.reason}'}")
    return found


def _unplanned(one: gpu.Case, *, exact: bool) -> Iterator[str]:
    """Yield for each rank of a cell whose states are not those of the committed plan the first that is not."""
    yield from filter(None, (unplanned(one.cell, memory, exact=exact) for memory in one.ranks))

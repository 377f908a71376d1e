"""The cells of one GPU that a claim compares: those with a sound record, and what the plan says of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.analysis.claims.planned import planned_bytes
from benchmarks.analysis.claims.verdict import NOT_RUN, Undecided
from benchmarks.analysis.one_gpu.measured_device import Case, Device, Unread, bytes_at, matching
from benchmarks.core.record import STATE_FIELDS


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

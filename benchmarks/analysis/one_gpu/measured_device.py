"""What was measured on one GPU, and what of it can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.core.cell import Cell

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
    uuids: frozenset[str] = frozenset()
    """Identifiers of the GPU that its cases name."""
    notes: tuple[str, ...] = ()
    """What of its folder does not count, and why."""

    @property
    def origin(self) -> str:
        """GPU, driver, torch, commit and date, in words."""
        source = self.source
        dirty = " with uncommitted changes" if source.get("dirty") else ""
        return (
            f"{source['device']}, driver {source.get('driver')}, torch {source.get('torch')}, "
            f"{self._commits()}{dirty}, {str(source['date'])[:10]}"
        )

    def _commits(self) -> str:
        """Name the code of all cells; stretches may have had different commits."""
        found = self.commits or (str(self.source.get("commit")),)
        return f"commit{'s' if len(found) > 1 else ''} {', '.join(one[:7] for one in found)}"


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

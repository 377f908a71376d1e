"""Find the cells of a setting among a GPU's records, and the bytes of a rung that nothing has spoilt."""

from collections.abc import Mapping
from typing import Any

from benchmarks.analysis.one_gpu.gpu_records import Case, Device

NVML_PROCESS = "nvml_process"
HARMLESS = ("pid-namespace", "nvml-v1")
"""Flags of a rung that leave it comparable; with any other it decides nothing."""
USUAL: Mapping[str, Any] = {"compressor": "topk", "residual_dtype": None, "slices": None, "world_size": 1}
BASELINE: Mapping[str, Any] = {**USUAL, "scheme": "baseline", "gradients": "kept"}
"""Fields of the cell that savings are measured against."""


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
    return ", ".join(str(flag) for flag in rung.get("flags") or () if flag not in HARMLESS)

"""How fast cells ran and what they stored: from records, committed intervals and one-GPU checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.files import load_json
from benchmarks.core.record import LARGEST, CellResult
from resireduce.errors import ConfigError, is_number

PLACES = ("results/runs/*", "results/reference/*")
"""Where to look for recorded runs, relative to the root of the project."""


@dataclass(frozen=True)
class Speed:
    """One recorded cell."""

    cell: Cell
    device: str
    on_gpu: bool
    threads: int
    """Threads per rank."""
    steps: int
    steps_per_second: float
    wall_seconds: float
    """The whole run: start, steps, evaluation, measurements."""
    source: str
    """The folder or file of the record."""
    record_bytes: int | None = None
    checkpoint_bytes: int | None = None
    """Parameters and optimizer states once, plus the residuals of every rank."""

    @property
    def other_seconds(self) -> float:
        """Time outside of the steps: start, evaluation, measurements."""
        return max(0.0, self.wall_seconds - self.steps / self.steps_per_second)


def read_speeds(places: list[Path]) -> list[Speed]:
    """Return the speeds recorded in or below these folders and files, skipping all that is no finished record.

    Raises ConfigError, with one line, if a place does not exist.
    """
    missing = next((place for place in places if not place.exists()), None)
    if missing is not None:
        raise ConfigError(f"records: {missing} is not there; give folders of results/runs or results/reference")
    paths = {path for place in places for path in ([place] if place.is_file() else place.rglob("*.json"))}
    skipped = ("specs", "earlier")  # folders of a run with plain cells, and with records that were replaced
    found = [speed for path in sorted(paths) if path.parent.name not in skipped for speed in _read(path)]
    return [speed for speed in found if _is_usable(speed)]


def _is_usable(speed: Speed) -> bool:
    """Return whether its figures can be computed with: files other than records are read without a check of types."""
    figures = (speed.steps, speed.steps_per_second, speed.wall_seconds)
    return all(is_number(one) and 0 < one <= LARGEST for one in figures)


def _read(path: Path) -> Iterator[Speed]:
    try:
        values = load_json(path)
        if not isinstance(values, dict):
            return
        if "cell" in values:
            yield from _of_record(path, CellResult.from_dict(values))
        for row in values.get("rows", []):
            yield from _of_row(path, row, values["measured"])
        for case in values.get("cases", []):
            yield from _of_case(path, case, values["provenance"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return  # another kind of file, or half written: it has no usable record


def _of_record(path: Path, result: CellResult) -> Iterator[Speed]:
    if result.status != "ok" or not result.steps_per_second or not result.wall_seconds:
        return
    yield Speed(
        cell=result.cell,
        **_where(result.provenance, result.provenance.get("threads")),
        steps=result.steps,
        steps_per_second=float(result.steps_per_second),
        wall_seconds=float(result.wall_seconds),
        source=str(path.parent.parent),
        record_bytes=path.stat().st_size,
        checkpoint_bytes=_checkpoint_bytes(result.per_rank),
    )


def _of_row(path: Path, row: dict[str, Any], measured: dict[str, list[str]]) -> Iterator[Speed]:
    """Yield a setting from a JSON of `python -m benchmarks intervals`: means over seeds."""
    if "steps_per_second" not in row or any(len(measured[key]) != 1 for key in ("Processor", "Cores")):
        return
    facts = {"device": "Device", "cpu": "Processor", "cores": "Cores"}
    yield Speed(
        cell=Cell.from_dict({name: row[name] for name in CELL_FIELDS if name in row}),
        **_where({key: measured[name][0] for key, name in facts.items()}, measured["Threads a rank"][0]),
        steps=row["steps_taken"],
        steps_per_second=row["steps_per_second"],
        wall_seconds=row["wall_seconds"],
        source=str(path),
    )


def _of_case(path: Path, case: dict[str, Any], where: dict[str, Any]) -> Iterator[Speed]:
    """Yield a case of `python -m benchmarks gpu-check`; none if ranks share the GPU, where speeds mean nothing."""
    cell = Cell.from_dict(case["cell"])
    if case["status"] != "ok" or cell.world_size != 1:
        return
    rank = case["ranks"][0]
    yield Speed(
        cell=cell,
        **_where(where, rank.get("threads")),
        steps=rank["steps"],
        steps_per_second=rank["steps_per_second"],
        wall_seconds=case["wall_seconds"],
        source=str(path),
        checkpoint_bytes=_checkpoint_bytes([rank["memory"]]),
    )


def _where(where: dict[str, Any], threads: Any) -> dict[str, Any]:
    """Return what a speed belongs to: the GPU, or processor and cores; and the threads per rank."""
    on_gpu = where.get("device") not in (None, "cpu")
    device = str(where["device"]) if on_gpu else f"{where.get('cpu')}, {where.get('cores')} cores"
    return {"device": device, "on_gpu": on_gpu, "threads": int(threads or 1)}


def _checkpoint_bytes(ranks: list[dict[str, Any]]) -> int | None:
    try:
        own = sum(rank["residuals_bytes"] for rank in ranks)
        return int(own + ranks[0]["parameters_bytes"] + ranks[0]["optimizer_states_bytes"])
    except (KeyError, IndexError, TypeError):
        return None

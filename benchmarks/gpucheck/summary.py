"""All parts of a one-GPU check as one table: bytes against plan and allocator, and times. Imports no torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.files import load_json, save_json, save_text
from benchmarks.gpucheck.agreement import ALLOCATED, rung_bytes
from benchmarks.gpucheck.cases import FLOAT32, list_cases
from benchmarks.measure.clock import StepClock
from benchmarks.report.labels import ABSENT, mebibytes, percent
from benchmarks.report.load import Hole
from benchmarks.report.table import Table
from benchmarks.report.write import to_markdown
from resireduce.errors import ConfigError

PATTERN = "gpu-check-*.json"
PEAK, FREED = "peak_allocated", "allocated_without_gradients"
HEAD = [
    "Model",
    "Compressor, scheme",
    "Gradients",
    "Residuals",
    "Model states, MiB",
    "Saved",
    "By plan",
    "Allocated (gradients freed), MiB",
    "Allocated / itemised",
    "Peak allocated, MiB",
    "Saved",
    "Step, ms",
    "Time ratio",
    "Units/s",
]
READING = (
    "Saved: against top-k with a full float32 residual and kept gradients, of the same model. Model states are those "
    "at a step boundary; by plan: what `python -m resireduce plan` says, marked ≠ where any state differs by a byte. "
    "Allocated: by torch's allocator at the boundary, in brackets after zero_grad(set_to_none=True). "
    "Allocated / itemised: what the allocator has given out at the boundary, of what the tensors known to be there add "
    "up to (model states, buffers, cuBLAS's workspaces). Step: median after warm-up, and its ratio to the same "
    "baseline's. Inputs are random."
)


def summarise(folder: Path) -> str:
    """Merge the parts in `folder` into its summary.json and summary.md, and return the latter's text.

    Of a case that is in several files the last run counts. Raises ConfigError, one line, if there are none.
    """
    parts = _read(folder)
    try:
        values, text = _merge(parts)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"summary: {folder} holds a part that is damaged ({type(error).__name__}: {error}); run its parts again"
        ) from None
    save_json(values, folder / "summary.json")
    save_text(text, folder / "summary.md")
    return text


def _merge(parts: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Plain values of all cases, and their table as text."""
    records = {case["name"]: case for part in parts for case in part["cases"]}
    order = {case.name: number for number, case in enumerate(list_cases())}
    by_name = sorted(records.values(), key=lambda record: order.get(record["name"], len(order)))
    ordered = sorted(by_name, key=lambda record: _model_order(record["cell"]["model"], order))
    rows = [_row(record, _baseline(record, ordered)) for record in ordered]
    holes = [*_holes(parts, records), *_never_run(parts, records)]
    sources = [part["provenance"] for part in parts]
    missing = {hole.name: f"{hole.status}: {hole.reason}" for hole in holes}
    values = {"cases": rows, "missing": missing, "provenance": sources}
    return values, to_markdown(_table(rows, sources), holes)


def _read(folder: Path) -> list[dict[str, Any]]:
    """The parts, the one that was written last at the end."""
    try:
        parts = [load_json(path) for path in sorted(folder.glob(PATTERN))]
        parts.sort(key=lambda part: part["provenance"]["date"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"summary: {folder} holds a part that cannot be read ({error}); run that part again"
        ) from None
    if not parts:
        raise ConfigError(f"summary: {folder} holds no {PATTERN}; run: python -m benchmarks gpu-check --part 1 first")
    return parts


def _model_order(model: str, order: dict[str, int]) -> int:
    return min((number for name, number in order.items() if name.split(".")[0] == model), default=len(order))


def _baseline(record: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What a case is compared with: same model and length of run, top-k, full residual, kept, float32, one rank."""
    wanted = dict(zip(("compressor", "scheme", "gradients", "residual_dtype"), FLOAT32[0], strict=True))
    wanted |= {name: record["cell"][name] for name in ("model", "steps")} | {"world_size": 1}
    same = (one for one in records if one["status"] == "ok" and wanted.items() <= one["cell"].items())
    return next(same, None)


def _row(record: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, Any]:
    """What is said of one case: raw values, None where there is none. Of several ranks that of the fullest."""
    cell = Cell.from_dict(record["cell"])
    row = {**record["cell"], "name": cell.name, "status": record["status"], "reason": record["reason"]}
    row |= {name: record.get(name) for name in ("wall_seconds", "date", "device", "code")}
    if record["status"] != "ok":
        return row
    own, first = _measures(record), _measures(baseline) if baseline else {}
    row |= {**own, "saved": _saved(own, first, "total_bytes")}
    row |= {"planned_saved": 1 - record["planned"]["normalised"], "planned_bytes": record["planned"]["total"]}
    row |= {"peak_allocated_saved": _saved(own, first, "peak_allocated_bytes")}
    row["step_ratio"] = own["step_seconds"] / first["step_seconds"] if first else None
    return row | {"agreement": record["agreement"]}


def _measures(record: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case that ended well."""
    rank = max(record["ranks"], key=lambda one: one["memory"]["peak_states_bytes"])
    memory = rank["memory"]
    return {
        **memory,
        "allocated_bytes": rung_bytes(memory, ALLOCATED),
        "allocated_without_gradients_bytes": rung_bytes(memory, FREED),
        "peak_allocated_bytes": rung_bytes(memory, PEAK),
        "step_seconds": 1 / StepClock(rank["step_seconds"]).steps_per_second,
        "units_per_second": rank.get("units_per_second"),
        "unit": rank.get("unit"),
    }


def _saved(own: dict[str, Any], first: dict[str, Any], name: str) -> float | None:
    mine, theirs = own.get(name), first.get(name)
    return None if mine is None or not theirs else 1 - mine / theirs


def _holes(parts: list[dict[str, Any]], records: dict[str, Any]) -> Iterator[Hole]:
    """Cases without a result: those that ended otherwise, and those that had no time."""
    for record in records.values():
        if record["status"] != "ok":
            yield Hole(record["name"], record["status"], record["reason"], "")
    for part in parts:
        for name, reason in part["not_run"].items():
            if name not in records:
                yield Hole(name, "not run", reason, "")


def _never_run(parts: list[dict[str, Any]], records: dict[str, Any]) -> Iterator[Hole]:
    """Parts that have left no file."""
    known = {part["part"] for part in parts}
    for number in range(1, max(part["parts"] for part in parts) + 1):
        if number not in known:
            yield Hole(f"part {number}", "not run", f"run: python -m benchmarks gpu-check --part {number}", "")


def _table(rows: list[dict[str, Any]], sources: list[dict[str, Any]]) -> Table:
    good = [row for row in rows if row["status"] == "ok"]
    places = dict.fromkeys(
        f"{one.get('device')}, driver {one.get('driver')}, torch {one.get('torch')}, CUDA {one.get('cuda')}, "
        f"NCCL {one.get('nccl')}, commit {str(one.get('commit'))[:12]}{' (changed)' if one.get('dirty') else ''}, "
        f"{one.get('date', '')[:10]}"
        for one in sources
    )
    return Table(
        name="gpu-check",
        title="One GPU, models of full size",
        reading=READING,
        records=good,
        head=HEAD,
        body=[_texts(row) for row in good],
        panel="",
        text_columns=4,
        notes=["Measured on: " + "; ".join(places) + "."],
    )


def _texts(row: dict[str, Any]) -> list[str]:
    ranks = f", {row['world_size']} ranks" if row["world_size"] > 1 else ""
    states = all(one["agrees"] for rank in row["agreement"] for one in rank["states"].values())
    allocated = row["agreement"][0].get("allocated")
    return [
        row["model"],
        ("no compression" if row["compressor"] == "none" else f"{row['compressor']}, {row['scheme']}") + ranks,
        row["gradients"],
        ABSENT if row["compressor"] == "none" else row["residual_dtype"] or "float32",
        mebibytes(row["total_bytes"]),
        percent(row["saved"]),
        percent(row["planned_saved"]) + ("" if states else " ≠"),
        f"{mebibytes(row['allocated_bytes'])} ({mebibytes(row['allocated_without_gradients_bytes'])})",
        ABSENT if allocated is None else f"{allocated['ratio']:.4f}",
        mebibytes(row["peak_allocated_bytes"]),
        percent(row["peak_allocated_saved"]),
        f"{1000 * row['step_seconds']:.1f}",
        ABSENT if row["step_ratio"] is None else f"{row['step_ratio']:.2f}",
        ABSENT if row["units_per_second"] is None else f"{row['units_per_second']:.0f}",
    ]

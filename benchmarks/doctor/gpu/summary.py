"""Merge all stretches of a one-GPU check: memory against plan and allocator as a table, then all else. No torch."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import ABSENT, markdown_table, mebibytes, percent, with_half
from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.table import BASELINE, Table
from benchmarks.analysis.tables import compression
from benchmarks.analysis.write import to_markdown
from benchmarks.core.files import finite, save_json, save_text
from benchmarks.core.provenance import provenance
from benchmarks.doctor.gpu.steps import GROUPS, MODELS, memory_cells
from benchmarks.doctor.gpu.stretch import ALLOCATED, FINISHED, code_of, read_files, rung_bytes
from resireduce.errors import ConfigError

# --- a table for each group beside memory ---


Records = list[dict[str, Any]]


def other_tables(groups: dict[str, Records]) -> Iterator[str]:
    """Yield a table with its title for each of these groups that has results, by name."""
    for group, (title, head, align, rows) in TABLES.items():
        body = [row for record in groups.get(group, []) if record.get("result") for row in rows(record["result"])]
        if body:
            yield f"## {title}\n\n{markdown_table(head, body, align)}\n"


def _known_rows(readings: Any) -> Iterator[list[str]]:
    for one in readings:
        error = one["reason"] if one["error"] is None else f"{one['error']:+.2%}"
        yield [one["rung"], mebibytes(one["expected_bytes"]), mebibytes(one["measured_bytes"]), error]


def _contracts_rows(result: Any) -> Iterator[list[str]]:
    """Yield how many tests passed, and a row for each that did not."""
    tests = result["tests"]
    passed = sum(one["outcome"] == "passed" for one in tests.values())
    yield ["passed", f"{passed} of {len(tests)}", f"{result['seconds']:.0f} s"]
    for name, one in tests.items():
        if one["outcome"] != "passed":
            lines = [text.removeprefix("E").strip() for text in (one["reason"] or "").splitlines() if text.strip()]
            said = next((text for text in reversed(lines) if "Error" in text), lines[-1] if lines else ABSENT)
            yield [one["outcome"], f"`{name}`", said.replace("|", "\\|")[:300]]


def _throughput_rows(result: Any) -> Iterator[list[str]]:
    for row in result["rows"]:
        other = row["against"]
        yield [
            row["model"],
            f"{row['scheme']}, {row['gradients']}",
            f"{other['scheme']}, {other['gradients']}",
            with_half(row["ratio"], row["half_width"], 3),
            f"{1000 * row['step_seconds']:.1f}",
            f"{1000 * other['step_seconds']:.1f}",
            str(row["pairs"]),
        ]


def _kernels_rows(result: Any) -> Iterator[list[str]]:
    for row in result["rows"]:
        times = [row.get(f"{name}_seconds") for name in ("plain", "kernel", "copy")]
        same = row["reason"] or ("yes" if row["same"] else "NO")
        shown = (ABSENT if seconds is None else f"{1000 * seconds:.3f}" for seconds in times)
        yield [row["kernel"], row["dtype"], f"{row['elements']:,}", same.replace("|", "\\|"), *shown]


TABLES: dict[str, tuple[str, list[str], str, Callable[[Any], Iterator[list[str]]]]] = {
    "known": ("Known allocations", ["Rung", "Expected, MiB", "Measured, MiB", "Error"], "lrrr", _known_rows),
    "contracts": (
        "The library's contracts with tensors of the device",
        ["Outcome", "Test", "Said"],
        "lll",
        _contracts_rows,
    ),
    "micro": (
        "Compression of a gradient, in turn in the same process",
        compression.HEAD,
        compression.ALIGN,
        lambda result: map(compression.cells_of, result["rows"]),
    ),
    "throughput": (
        "Speed, in turn in the same process, ± half of the 95 % interval",
        ["Model", "Setting", "Against", "Ratio of speeds", "Least step, ms", "Least step of the other, ms", "Rounds"],
        "lllrrrr",
        _throughput_rows,
    ),
    "kernels": (
        "Kernels in Triton beside plain torch, the least of rounds in turn",
        ["Kernel", "Of", "Elements", "Same bits", "Plain torch, ms", "Triton, ms", "Copy, ms"],
        "llrlrrr",
        _kernels_rows,
    ),
}
"""For each group: the title of its table, the head, the alignment, and the function from a result to rows."""


# --- memory, and the merging ---


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
]
READING = (
    "Saved: against top-k with a full float32 residual and kept gradients, of the same model. Model states are those "
    "at a step boundary; by plan: what `python -m resireduce plan` says, marked ≠ where any state differs by a byte. "
    "Allocated: by torch's allocator at the boundary, in brackets after zero_grad(set_to_none=True). "
    "Allocated / itemised: what the allocator has given out at the boundary, of what the tensors known to be there add "
    "up to (model states, buffers, cuBLAS's workspaces, what the allocator rounds up by). Inputs are random."
)


def merge(folders: Sequence[Path], output: Path) -> Iterator[str]:
    """Merge the stretches below `folders` into a folder of `output` for each device; yield their tables.

    If several files have a step, the last successful result counts, or else the last one. Besides the groups' files,
    summary.json and summary.md are written. Raises ConfigError, with one line, if there are no results or they are
    damaged.
    """
    names = sorted({path.parent.name for one in folders for group in GROUPS for path in one.glob(f"*/{group}.json")})
    if not names:
        raise ConfigError(
            f"summary: {', '.join(map(str, folders))} holds no results of a device; "
            "run: python -m benchmarks measure gpu --everything first"
        )
    for name in names:
        groups = _groups([one / name for one in folders])
        try:
            values, text = _summary(groups)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"summary: results of {name} are damaged ({type(error).__name__}: {error}); run their steps again"
            ) from None
        for group, found in groups.items():
            save_json(found, output / name / f"{group}.json")
        save_json(finite(values), output / name / "summary.json")
        save_text(text, output / name / "summary.md")
        yield text


def _groups(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the merged groups of one device."""
    files = [values for folder in folders for values in read_files(folder)]
    files.sort(key=lambda values: str(values["provenance"].get("date")))
    found: dict[str, dict[str, Any]] = {}
    for values in files:
        earlier = found.get(values["group"], {"cases": []})
        cases = {case["name"]: case for case in earlier["cases"]}
        for case in sorted(values["cases"], key=lambda case: str(case["date"])):
            before = cases.get(case["name"])
            if before is None or case["status"] in FINISHED or before["status"] not in FINISHED:
                cases[case["name"]] = case
        not_run = {name: reason for name, reason in values.get("not_run", {}).items() if name not in cases}
        found[values["group"]] = values | {"cases": list(cases.values()), "not_run": not_run}
    for group, values in found.items():
        _name_commit(group, values)
    return {group: found[group] for group in GROUPS if group in found}


def _name_commit(group: str, values: dict[str, Any]) -> None:
    """Set the commit of cases measured without git, if the present code is the same as theirs."""
    code, here = code_of(group), provenance()
    for case in values["cases"]:
        if case.get("commit") is None and case["code"] == code:
            case["commit"] = here["commit"]
            values["provenance"] |= {"commit": here["commit"], "dirty": here["dirty"]}


def _summary(groups: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return plain values, and all tables as text."""
    records = {group: values["cases"] for group, values in groups.items()}
    memory = records.get("memory", [])
    order = {cell.name: (MODELS.index(cell.model), number) for number, cell in enumerate(memory_cells())}
    memory = sorted(memory, key=lambda record: order.get(record["name"], (len(MODELS), 0)))
    rows = [_row(record, _baseline(record, memory)) for record in memory]
    holes = [hole for values in groups.values() for hole in _holes(values)]
    sources = [values["provenance"] for values in groups.values()]
    texts = [to_markdown(_table(rows, sources), holes), *other_tables(records)]
    missing = {hole.name: f"{hole.status}: {hole.reason}" for hole in holes}
    return {"memory": rows, "missing": missing, "provenance": sources}, "\n".join(texts)


def _baseline(record: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the baseline of a case: same model and length of run, top-k, full residual, kept, float32, one rank."""
    wanted = BASELINE | {name: record["cell"][name] for name in ("model", "steps")} | {"world_size": 1}
    same = (one for one in records if one["status"] == "ok" and wanted.items() <= one["cell"].items())
    return next(same, None)


def _row(record: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, Any]:
    """Return the raw values of one case, None where missing; with several ranks, those of the fullest."""
    row = {**record["cell"], "name": record["name"], "status": record["status"], "reason": record["reason"]}
    row |= {name: record.get(name) for name in ("wall_seconds", "date", "device", "code", "commit")}
    if record["status"] != "ok":
        return row
    own, first = _measures(record), _measures(baseline) if baseline else {}
    row |= {**own, "saved": _saved(own, first, "total_bytes")}
    planned = record["planned"]
    row |= {"planned_saved": 1 - planned["normalised"] if planned else None}
    row |= {"planned_bytes": planned["total"] if planned else None}
    row |= {"peak_allocated_saved": _saved(own, first, "peak_allocated_bytes")}
    return row | {"agreement": record["agreement"]}


def _measures(record: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a case that finished."""
    memory = max((one["memory"] for one in record["ranks"]), key=lambda one: one["peak_states_bytes"])
    return memory | {f"{name}_bytes": rung_bytes(memory, name) for name in (ALLOCATED, FREED, PEAK)}


def _saved(own: dict[str, Any], first: dict[str, Any], name: str) -> float | None:
    mine, theirs = own.get(name), first.get(name)
    return None if mine is None or not theirs else 1 - mine / theirs


def _holes(values: dict[str, Any]) -> Iterator[Hole]:
    """Yield the steps of a group that did not succeed or were not run."""
    for record in values["cases"]:
        if record["status"] != "ok":
            yield Hole(record["name"], record["status"], record["reason"], "")
    for name, reason in values.get("not_run", {}).items():
        yield Hole(name, "not run", reason, "")


def _table(rows: list[dict[str, Any]], sources: list[dict[str, Any]]) -> Table:
    good = [row for row in rows if row["status"] == "ok"]
    places = dict.fromkeys(
        f"{one.get('device')}, driver {one.get('driver')}, torch {one.get('torch')}, CUDA {one.get('cuda')}, "
        f"NCCL {one.get('nccl')}, commit {str(one.get('commit'))[:12]}{' (changed)' if one.get('dirty') else ''}, "
        f"{one.get('date', '')[:10]}"
        for one in sources
    )
    return Table(
        name="memory",
        title="One GPU, models of full size",
        reading=READING,
        records=good,
        head=HEAD,
        body=[_texts(row) for row in good],
        text_columns=4,
        notes=["Measured on: " + "; ".join(places) + "."],
    )


def _texts(row: dict[str, Any]) -> list[str]:
    ranks = f", {row['world_size']} ranks" if row["world_size"] > 1 else ""
    states = all(one["agrees"] for rank in row["agreement"] for one in rank["states"].values())
    allocated = row["agreement"][0].get("allocated") if row["agreement"] else None
    return [
        row["model"],
        ("no compression" if row["compressor"] == "none" else f"{row['compressor']}, {row['scheme']}") + ranks,
        row["gradients"] + (", in slices" if row.get("slices") else ""),
        ABSENT if row["compressor"] == "none" else row["residual_dtype"] or "float32",
        mebibytes(row["total_bytes"]),
        percent(row["saved"]),
        percent(row["planned_saved"]) + ("" if states else " ≠"),
        f"{mebibytes(row['allocated_bytes'])} ({mebibytes(row['allocated_without_gradients_bytes'])})",
        ABSENT if allocated is None else f"{allocated['ratio']:.4f}",
        mebibytes(row["peak_allocated_bytes"]),
        percent(row["peak_allocated_saved"]),
    ]

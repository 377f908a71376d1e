"""Findings of the one-GPU check beside memory: a Markdown table for each group that was run. Imports no torch."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.analysis.labels import ABSENT, markdown_table, mebibytes, with_half
from benchmarks.analysis.tables import compression

Records = list[dict[str, Any]]


def other_tables(groups: dict[str, Records]) -> Iterator[str]:
    """Yield a table with its title for each of these groups that has results, by name."""
    for group, (title, head, align, rows) in TABLES.items():
        body = [row for record in groups.get(group, []) if record.get("result") for row in rows(record["result"])]
        if body:
            yield f"## {title}\n\n{markdown_table(head, body, align)}\n"


def _known(readings: Any) -> Iterator[list[str]]:
    for one in readings:
        error = one["reason"] if one["error"] is None else f"{one['error']:+.2%}"
        yield [one["rung"], mebibytes(one["expected_bytes"]), mebibytes(one["measured_bytes"]), error]


def _contracts(result: Any) -> Iterator[list[str]]:
    """Yield how many tests passed, and a row for each that did not."""
    tests = result["tests"]
    passed = sum(one["outcome"] == "passed" for one in tests.values())
    yield ["passed", f"{passed} of {len(tests)}", f"{result['seconds']:.0f} s"]
    for name, one in tests.items():
        if one["outcome"] != "passed":
            lines = [text.removeprefix("E").strip() for text in (one["reason"] or "").splitlines() if text.strip()]
            said = next((text for text in reversed(lines) if "Error" in text), lines[-1] if lines else ABSENT)
            yield [one["outcome"], f"`{name}`", said.replace("|", "\\|")[:300]]


def _throughput(result: Any) -> Iterator[list[str]]:
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


def _kernels(result: Any) -> Iterator[list[str]]:
    for row in result["rows"]:
        times = [row.get(f"{name}_seconds") for name in ("plain", "kernel", "copy")]
        same = row["reason"] or ("yes" if row["same"] else "NO")
        shown = (ABSENT if seconds is None else f"{1000 * seconds:.3f}" for seconds in times)
        yield [row["kernel"], row["dtype"], f"{row['elements']:,}", same.replace("|", "\\|"), *shown]


def _training(result: Any) -> Iterator[list[str]]:
    for row in result["rows"]:
        metric = ABSENT if row["metric"] is None else f"{row['metric']:.2f}"
        yield [result["cell"]["model"], row["dtype"], row["metric_name"], metric, str(row["overflows"])]


TABLES: dict[str, tuple[str, list[str], str, Callable[[Any], Iterator[list[str]]]]] = {
    "known": ("Known allocations", ["Rung", "Expected, MiB", "Measured, MiB", "Error"], "lrrr", _known),
    "contracts": ("The library's contracts with tensors of the device", ["Outcome", "Test", "Said"], "lll", _contracts),
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
        _throughput,
    ),
    "kernels": (
        "Kernels in Triton beside plain torch, the least of rounds in turn",
        ["Kernel", "Of", "Elements", "Same bits", "Plain torch, ms", "Triton, ms", "Copy, ms"],
        "llrlrrr",
        _kernels,
    ),
    "training": (
        "Trained under autocast, w+2d, streamed",
        ["Model", "Computed in", "Metric", "Value", "Steps skipped for overflow"],
        "lllrr",
        _training,
    ),
}
"""For each group: the title of its table, the head, the alignment, and the function from a result to rows."""

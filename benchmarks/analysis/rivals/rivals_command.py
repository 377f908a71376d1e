"""`python -m benchmarks rivals`: compare compressors, as JSON and as a table, from the records of a run."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis import labels
from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.rivals.rivals_add import Row, Sources, add_rows, add_sources
from benchmarks.analysis.rivals.rivals_rows import rivals_rows
from benchmarks.core.files import load_json, save_json, writable
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS

SETTING = ("Compressor", "Density", "Scheme", "Seeds")
MEASURED = ("Metric", "Lost", "KiB a step", "Sent", "Contraction", "Cosine", "Model states, MiB")
MILLISECONDS, SPEED = "ms a step", "Speed"
Speeds = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""Rows of `benchmarks pace --config` by model, compressor, scheme and density."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/rivals"), help="a run of config/rivals.yaml")
    parser.add_argument("--output", type=Path, help="JSON file (default: rivals.json in the run's folder)")
    text = "keep what the file has of other models and seeds: a comparison may be measured in several runs"
    parser.add_argument("--add", action="store_true", help=text)


def main(args: argparse.Namespace) -> int:
    """Write the rows of all settings and print them as a table. Raises ConfigError if no cell has finished."""
    run = load_run(args.run)
    if run.notes:
        raise ConfigError(f"run: {str(args.run)!r}: {run.notes[0]} Copy the run's config there, or measure anew")
    rows = rivals_rows(run)
    if not rows:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=rivals")
    output = args.output or args.run / "rivals.json"
    writable("output", output)
    sources = dict(provenance_rows(run.results.values()))
    if args.add and output.exists():
        rows, sources = _added(output, rows, sources)
    save_json({"rows": rows, "measured": sources}, output)
    print_doubts(run)
    print("\n".join(_tables(rows)))
    if run.holes:
        print(f"\nMissing: {len(run.holes)} of {len(run.cells)} cells")
    print(output)
    return 0


def _added(path: Path, rows: list[Row], sources: Sources) -> tuple[list[Row], Sources]:
    try:
        before = load_json(path)
        added = add_rows(before["rows"], rows), add_sources(before["measured"], sources)
        _tables(added[0])  # damaged rows fail here, before the file is written
        return added
    except ConfigError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"add: {path} is no file of rivals ({problem}); leave out --add to write it anew") from None


def _tables(rows: Sequence[Row]) -> list[str]:
    return [rivals_table(its) for its in grouped((row["model"], row) for row in rows).values()]


def rivals_table(rows: Sequence[Mapping[str, Any]], speeds: Speeds | None = None) -> str:
    """Return the rows of one model as a Markdown table, in the order of bytes sent per step.

    `speeds`: speeds of settings timed in turn, which replace the steps' own times in the last column.
    """
    ordered = sorted(rows, key=lambda row: row["sent_bytes"])
    heads = (*SETTING, *MEASURED, MILLISECONDS if speeds is None else SPEED)
    return labels.markdown_table(heads, [[*_texts(row), _time(row, speeds)] for row in ordered], "lrlrrrrrrrrr")


def _time(row: Mapping[str, Any], speeds: Speeds | None) -> str:
    if speeds is None:
        return f"{1000 * row['step_seconds']:.0f}"
    timed = speeds.get(tuple(row[name] for name in ("model", "compressor", "scheme", "density")))
    return labels.ABSENT if timed is None else labels.with_half(timed["ratio"], timed["half_width"], 2)


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [
        f"`{row['compressor']}`",
        f"{row['density']:g}" if COMPRESSORS[row["compressor"]].selects else labels.ABSENT,
        row["scheme"],
        str(row["seeds"]),
        labels.with_half(row["metric_mean"], row["metric_half_width"], 2),
        _or_absent(row["lost_mean"], lambda mean: labels.signed_with_half(mean, row["lost_half_width"], 2)),
        f"{row['sent_bytes'] / 1024:,.1f}",
        share_sent(row["density_sent"]),
        *(
            _or_absent(row[name], lambda value: f"{value:.3f}" if value < 10 else f"{value:.1e}")
            for name in ("contraction", "cosine")
        ),
        f"{row['total_bytes'] / 2**20:.2f}",
    ]


def share_sent(share: float | None) -> str:
    """Return the share of elements that were sent, in per cent."""
    return _or_absent(share, lambda known: f"{100 * known:.2g} %" if known < 0.1 else labels.percent(known))


def _or_absent(value: float | None, text: Any) -> str:
    return labels.ABSENT if value is None else str(text(value))

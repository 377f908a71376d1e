"""`python -m benchmarks beside`: this library beside other ways to train, measured on the CPU. Imports no torch."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.beside.measure import MALLOCS, RANKS, Failed, measure
from benchmarks.beside.ways import FORMS, RESIDENT, WAYS
from benchmarks.files import load_json, save_json, writable
from benchmarks.measure.provenance import provenance
from resireduce.errors import choose

MODEL, RESIDENT_MODEL = "bert-base", "stack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("results/runs/beside.json"), help="default: %(default)s"
    )
    only = "just these, the others stay as they are in the file; resident: memory with and without malloc's settings"
    parser.add_argument("--only", metavar="NAME[,NAME]", help=f"{only}: {', '.join([*WAYS, *FORMS, 'resident'])}")


def main(args: argparse.Namespace) -> int:
    """Measure, and write the figures after each way. 1 if one could not be measured."""
    every = [*WAYS, *FORMS, "resident"]
    chosen = every if args.only is None else [choose("only", name.strip(), every) for name in args.only.split(",")]
    writable("output", args.output)
    known = load_json(args.output)["rows"] if args.output.is_file() else []
    rows = {_key(row): row for row in known}
    for row in _measured(chosen):
        rows[_key(row)] = row
        print(f"{row['name']}, {row['model']}, malloc {row['malloc']}: {row.get('reason') or 'measured'}", flush=True)
        save_json(report(list(rows.values())), args.output)
    return int(any("reason" in row for row in rows.values()))


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the file holds."""
    places = _places([*WAYS, *FORMS, "resident"])
    return {
        "world_size": RANKS,
        "malloc": MALLOCS,
        "rows": sorted(rows, key=lambda row: places.index(_key(row))),
        "measured": provenance(),
    }


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["name"], row["model"], row["malloc"]


def _places(names: list[str]) -> list[tuple[str, str, str]]:
    """Way, model and malloc of each measurement."""
    places = [(name, MODEL, "exact") for name in names if name != "resident"]
    if "resident" in names:
        places += [(name, RESIDENT_MODEL, malloc) for name in RESIDENT for malloc in ("default", "cells")]
    return places


def _measured(names: list[str]) -> Iterator[dict[str, Any]]:
    for name, model, malloc in _places(names):
        try:
            yield measure(name, model, malloc)
        except Failed as failed:
            yield {"name": name, "model": model, "malloc": malloc, "reason": str(failed)}

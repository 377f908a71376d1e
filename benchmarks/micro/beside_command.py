"""`python -m benchmarks measure beside`: this library beside other ways to train, on the CPU. Imports no torch."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json, writable
from benchmarks.core.provenance import provenance
from benchmarks.core.ways import FORMS, FULLEST, FULLEST_MODEL, RESIDENT, WAYS, way
from benchmarks.launching.processes import MALLOC, measure
from resireduce.errors import ConfigError, choose

MODEL, RESIDENT_MODEL = "bert-base", "stack"
GROUPS = ("resident", "fullest")
"""Measurements of several ways with another model: what else may be chosen by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("results/runs/beside.json"), help="default: %(default)s"
    )
    only = f"just these, the others stay as they are in the file: {', '.join([*WAYS, *FORMS])}; resident: memory with "
    only += f"and without malloc's settings; fullest: the fullest moment of a step of {FULLEST_MODEL}, one rank"
    parser.add_argument("--only", metavar="NAME[,NAME]", help=only)


def main(args: argparse.Namespace) -> int:
    """Measure, and write the figures after each way; return 1 if one could not be measured."""
    every = [*WAYS, *FORMS, *GROUPS]
    chosen = every if args.only is None else [choose("only", name.strip(), every) for name in args.only.split(",")]
    writable("output", args.output)
    known = load_json(args.output)["rows"] if args.output.is_file() else []
    rows, places = {_key(row): row for row in known}, _places(every)

    def order(row: dict[str, Any]) -> int:
        return places.index(_key(row))

    for name, model, malloc in _places(chosen):
        try:
            row = measure_way(name, model, malloc)
        except ConfigError as failed:
            row = {"name": name, "model": model, "malloc": malloc, "reason": str(failed)}
        rows[_key(row)] = row
        print(f"{row['name']}, {row['model']}, malloc {row['malloc']}: {row.get('reason') or 'measured'}", flush=True)
        found = {"world_size": RANKS, "malloc": MALLOCS, "rows": sorted(rows.values(), key=order)}
        save_json({**found, "measured": provenance()}, args.output)
    return int(any("reason" in row for row in rows.values()))


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["name"], row["model"], row["malloc"]


def _places(names: list[str]) -> list[tuple[str, str, str]]:
    """Return way, model and malloc of each measurement."""
    places = [(name, MODEL, "exact") for name in names if name not in GROUPS]
    if "resident" in names:
        places += [(name, RESIDENT_MODEL, malloc) for name in RESIDENT for malloc in ("default", "cells")]
    if "fullest" in names:
        places += [(name, FULLEST_MODEL, "cells") for name in FULLEST]
    return places


RANKS = 2
"""Ranks that train together; the model of `fullest` has one, as a machine has no memory for two."""
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Every block from 64 KiB on has its own pages, returned when it is freed: resident memory equals live memory."""
MALLOCS: dict[str, Mapping[str, str]] = {"exact": EXACT, "default": {}, "cells": MALLOC}
"""Variables of glibc's malloc that ranks are started with."""


def measure_way(name: str, model: str, malloc: str = "exact", timeout_seconds: float = 3600.0) -> dict[str, Any]:
    """Return the measurements of the fullest rank; see `benchmarks.training.beside.beside_rank`. Raises ConfigError."""
    size = 1 if model == FULLEST_MODEL else RANKS
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "THP_", "GLIBC_"))}
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **MALLOCS[malloc]}
    settings = {"way": name, "model": model}
    found = measure("beside", settings, size, environment=plain, quiet_seconds=timeout_seconds, variables=alone)
    most: dict[str, Any] = max(found, key=lambda values: values["peak_bytes"])
    return {"name": name, "title": way(name).title, "model": model, "malloc": malloc, **most}

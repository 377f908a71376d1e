"""What is missing for a row, why, and the command that fills it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cell import Cell
from benchmarks.report.load import Run

NOT_RUN = "not run"
WORDS = {"node-fail": "node lost"}


def missing_cells(run: Run, setting: Cell, seeds: Sequence[int], part: str) -> list[dict[str, Any]]:
    """Return seed, status, reason and command of each cell of a setting without a measurement."""
    found = []
    for seed in seeds:
        cell = replace(setting, seed=seed)
        if cell in run.results:
            continue
        hole = run.holes.get(cell)
        found.append(
            {
                "seed": seed,
                "status": hole.status if hole else NOT_RUN,
                "reason": hole.reason if hole else "no cell of this run",
                "command": hole.command if hole else part_command(part),
            }
        )
    return found


def part_command(part: str) -> str:
    """Return the command that measures a part of config/paper.yaml on this machine."""
    return f"make run RUN=paper PART={part}"


def cluster_command(part: str) -> str:
    """Return the same for a cluster."""
    return f"snakemake --profile slurm --config part={part}"


def missing_text(missing: Sequence[dict[str, Any]], seeds: int) -> str:
    """Return the statuses in a few words: one for all seeds, or each with its seeds."""
    by_status: dict[str, list[int]] = {}
    for one in missing:
        by_status.setdefault(WORDS.get(one["status"], one["status"]), []).append(one["seed"])
    if len(by_status) == 1 and len(missing) == seeds:
        return next(iter(by_status))
    words = [f"{status} (seed {', '.join(map(str, found))})" for status, found in by_status.items()]
    return ", ".join(words)

"""The cells that the paper's tables and figures are made of: the parts of config/paper.yaml."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from benchmarks.cell import Cell
from benchmarks.cells import read_config
from benchmarks.matrix import KEYS, expand_parts
from benchmarks.workloads import SMALL

CONFIG = Path(__file__).parents[2] / "config/paper.yaml"
SMALL_MODELS = tuple(workload.model for workload in SMALL)
"""Models of the quick matrices: they stand in for the paper's in rows of their own."""


@lru_cache
def paper_parts() -> dict[str, dict[Cell, tuple[int, ...]]]:
    """Return the settings of each part, cells with seed 0, with the seeds that they are run with."""
    config = read_config(CONFIG)
    found: dict[str, dict[Cell, tuple[int, ...]]] = {}
    for part, cells in expand_parts({key: config[key] for key in KEYS if key in config}).items():
        settings = found.setdefault(part, {})
        for cell in cells:
            setting = replace(cell, seed=0)
            settings[setting] = (*settings.get(setting, ()), cell.seed)
    return found

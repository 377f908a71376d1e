"""Write a run's config, from which it can be run again, and one spec a cell, for `python -m benchmarks run`."""

from pathlib import Path
from typing import Any

from benchmarks.files import save_json


def write_specs(params: Any, output: Any) -> None:
    """Write params.config to output.config and params.cells to output.specs."""
    save_json(params.config, Path(output.config))
    for cell, path in zip(params.cells, output.specs, strict=True):
        save_json(cell, Path(path))


write_specs(snakemake.params, snakemake.output)  # type: ignore[name-defined]  # noqa: F821

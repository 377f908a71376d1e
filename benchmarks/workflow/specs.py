"""Write the run's config, from which it can be run again, and one spec a cell: what `python -m benchmarks run` reads."""

from pathlib import Path

from snakemake.script import snakemake

from benchmarks.files import save_json

save_json(snakemake.params.config, Path(snakemake.output.config))
for cell, path in zip(snakemake.params.cells, snakemake.output.specs, strict=True):
    save_json(cell, Path(path))

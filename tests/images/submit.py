"""One cell as a job of the cluster on one machine."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json
from benchmarks.core.paths import ROOT
from tests.slurm.cluster import Cluster


def submit(
    folder: Path,
    cluster: Cluster,
    cell: dict[str, Any],
    site: dict[str, Any],
    job: Sequence[str],
    options: Sequence[object],
) -> dict[str, Any]:
    """Run a cell in a folder as a job, and return its record.

    Args:
        folder: gets the files of the cell and of the site, and the record.
        cluster: where it runs.
        cell: its fields.
        site: what Slurm offers there, as in the site's file.
        job: nodes and tasks, as salloc's options say them.
        options: of `python -m benchmarks run`, beside the launcher and the site.
    """
    save_json(cell, folder / "cell.json")
    (folder / "site.yaml").write_text(json.dumps({"partitions": {}, "site": site}))
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", "cell.json", "--output", "cells/out.json"]
    done = cluster.run(
        ["salloc", "--quiet", *job, *line, "--launcher", "srun", "--site", "site.yaml", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout_seconds=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = load_json(folder / "cells/out.json")
    return record

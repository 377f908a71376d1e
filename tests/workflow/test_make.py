"""The commands of the Makefile, as far as they can be called without setting anything up."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mistake", ["CONFIG=benchmarks/config/no.yaml", "RUN=no"])
def test_a_missing_config_file_ends_make_run_in_one_line(mistake):
    target = ["make", "--silent", "--assume-old=.venv/installed", "run", mistake]
    done = subprocess.run(target, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: CONFIG: 'benchmarks/config/no.yaml' is not a file; there are: ")
    assert "benchmarks/config/smoke.yaml" in first
    assert all(re.match(r"make(\[\d+\])?: ", line) for line in rest)

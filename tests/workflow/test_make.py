"""The commands of the Makefile, as far as they can be called without setting anything up."""

import re
import shlex
import subprocess
from pathlib import Path

from snakemake.cli import parse_config

ROOT = Path(__file__).parents[2]


def test_a_missing_config_file_ends_make_run_in_one_line():
    target = ["make", "--silent", "--assume-old=.venv/installed", "run", "RUN=no"]
    done = subprocess.run(target, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: CONFIG: 'benchmarks/config/no.yaml' is not a file; there are: ")
    assert "benchmarks/config/smoke.yaml" in first
    assert all(re.match(r"make(\[\d+\])?: ", line) for line in rest)


def test_names_that_look_like_numbers_stay_names():
    target = ["make", "--dry-run", "--assume-old=.venv/installed", "run", "RUN=007", "PART=1e3"]
    done = subprocess.run([*target, "CONFIG=Makefile"], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if "/snakemake " in line)
    words = shlex.split(line)
    start = words.index("--config") + 1
    assert parse_config(words[start : start + 2]) == {"run": "007", "part": "1e3"}

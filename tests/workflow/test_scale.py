"""The largest config: what it holds, and what Snakemake needs to look at all of it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import load_json
from benchmarks.core.matrix import expand
from benchmarks.core.run_config import find_cell, get_cells, write_specs
from resireduce.errors import ConfigError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/config"
MOST_BYTES = 2e9


@dataclass(frozen=True)
class Used:
    """What a process and those that it started took."""

    cpu_seconds: float
    """Not of the wall: other tests may run beside it."""
    bytes: int
    """The largest of them, resident."""
    output: str


def cells(name: str) -> dict[str, Cell]:
    return get_cells(read_config(FOLDER / f"{name}.yaml"))


# A process counts as large as the one that it was forked from, and this one may be: a small one starts it, and is told.
METER = """
import json, resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stderr=subprocess.STDOUT)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
json.dump([code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss], open(sys.argv[1], "w"))
"""


def snakemake(output: Path, *arguments: str) -> Used:
    command = [sys.executable, "-m", "snakemake", "--dry-run", *arguments]
    environment, told = {**os.environ, "PYTHONPATH": str(ROOT)}, output.with_suffix(".json")
    with output.open("w", encoding="utf-8") as file:
        subprocess.run(
            [sys.executable, "-c", METER, told, *command], cwd=ROOT, env=environment, stdout=file, check=True
        )
    said = output.read_text(encoding="utf-8")
    code, cpu_seconds, largest = json.loads(told.read_text(encoding="utf-8"))
    assert code == 0, said
    return Used(cpu_seconds, largest * (1 if sys.platform == "darwin" else 1024), said)


def test_the_full_config_has_5000_cells_and_all_of_the_papers() -> None:
    full, paper = cells("full"), cells("paper")
    assert len(full) >= 5000
    assert len(set(full.values())) == len({cell.name for cell in full.values()}) == len(full)
    assert full.items() >= paper.items(), "the paper's cells, under their names"


def test_it_is_read_in_no_time(benchmark: BenchmarkFixture) -> None:
    config = {key: value for key, value in read_config(FOLDER / "full.yaml").items() if key != "run"}
    found = benchmark.pedantic(expand, args=(config,), rounds=3)
    assert len(found) == len(cells("full"))


def test_a_dry_run_of_all_of_it_takes_less_than_ten_times_one_of_36_cells_and_2_gb(tmp_path: Path) -> None:
    small = snakemake(tmp_path / "smoke.txt", "--config", "run=scale-smoke")
    full = snakemake(
        tmp_path / "full.txt", "--quiet", "rules", "--configfile", str(FOLDER / "full.yaml"), "--config", "run=scale"
    )
    assert ["cell", str(len(cells("full")))] in [line.split() for line in full.output.splitlines()]
    # Of a slow machine too: 4 times what 36 cells take, where it was measured; 18 times before patterns were short.
    assert full.cpu_seconds < 10 * small.cpu_seconds
    assert full.bytes < MOST_BYTES


def test_specs_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    some = list(cells("smoke").values())[:2]
    write_specs(str(tmp_path), {"run": "scale"}, some)
    changed, left = (tmp_path / f"specs/{cell.name}.json" for cell in some)
    changed.write_text("{")
    before = left.stat().st_ino
    write_specs(str(tmp_path), {"run": "scale"}, some)
    assert left.stat().st_ino == before
    assert Cell.from_dict(load_json(changed)) == some[0]


def test_a_cell_that_is_not_in_the_config_is_named() -> None:
    known = cells("smoke")
    assert find_cell(known, next(iter(known))) in known.values()
    with pytest.raises(ConfigError, match=r"cell: 'mine' is not in this config; .* lists them"):
        find_cell(known, "mine")

"""The largest config: what it holds, and what Snakemake needs to look at all of it."""

import resource
import subprocess
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import load_json
from benchmarks.core.run_config import get_cells, write_specs
from tests.workflow.trees import ROOT, SNAKEMAKE, environment

FOLDER = ROOT / "benchmarks/config"


def cells(name: str) -> dict[str, Cell]:
    return get_cells(read_config(FOLDER / f"{name}.yaml"))


def dry_run(*arguments: str) -> tuple[float, str]:
    """Seconds of CPU, not of the wall (other tests may run beside it), and what was said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*SNAKEMAKE, "--dry-run", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout + done.stderr


def test_the_full_config_has_5000_cells() -> None:
    full = cells("full")
    assert len(full) >= 5000
    assert len(set(full.values())) == len({cell.name for cell in full.values()}) == len(full)


def test_a_dry_run_of_all_of_it_takes_less_than_ten_times_one_of_36_cells() -> None:
    small, _ = dry_run("--config", "run=scale-smoke")
    file = str(FOLDER / "full.yaml")
    full, said = dry_run("--quiet", "rules", "--configfile", file, "--config", "run=scale")
    assert ["cell", str(len(cells("full")))] in [line.split() for line in said.splitlines()]
    # Of a slow machine too: 4 times what 36 cells take, where it was measured; 18 times before patterns were short.
    assert full < 10 * small


def test_specs_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    some = list(cells("smoke").values())[:2]
    write_specs(str(tmp_path), {"run": "scale"}, some)
    changed, left = (tmp_path / f"specs/{cell.name}.json" for cell in some)
    changed.write_text("{")
    before = left.stat().st_ino
    write_specs(str(tmp_path), {"run": "scale"}, some)
    assert left.stat().st_ino == before
    assert Cell.from_dict(load_json(changed)) == some[0]

"""Snakemake itself, on copies of the tree in which cells are made by arithmetic instead of training."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.load_run import load_run
from benchmarks.core.cell import Cell
from benchmarks.core.content import PACKAGES, TRAINING, content_hash, get_packages, get_pretrained
from benchmarks.core.record import RecordError
from benchmarks.core.run_config import check_records
from tests.records import make_result
from tests.workflow.trees import QUIET, ROOT, SNAKEMAKE, environment, jobs, make_tree, run

RUN = [*SNAKEMAKE, "--cores", "2", "--keep-going", "--rerun-incomplete", "--nolock", *QUIET]
CONFIG = """
matrix:
  - model: [gpt2-bytes, vgg-digits]
    scheme: [baseline, w]
"""
SLOW = Cell(model="vgg-digits", scheme="w").name


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path, CONFIG)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A tree in which all cells have been run, and what was said; tests change copies of it."""
    tree, other = make_tree(tmp_path_factory.mktemp("whole"), CONFIG), tmp_path_factory.mktemp("other")
    (other / "results/runs/mine/cells").mkdir(parents=True)
    (tree / "results/runs/mine").mkdir(parents=True)
    (tree / "results/runs/mine/cells").symlink_to(tmp_path_factory.mktemp("scratch"))  # records on another disk
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDPATH", str(other))  # where a shell's `cd` looks first
        done = call(tree, *MINE)
    assert done.returncode == 0, done.stderr
    return tree, done.stdout


@pytest.fixture
def finished(whole_run, tmp_path):
    """A copy of that tree, in which nothing is to be done."""
    return shutil.copytree(whole_run[0], tmp_path / "tree")


def call(tree, *arguments, command=RUN):
    return run(tree, *command, *arguments)


def dry_run(tree, *arguments):
    return call(tree, "--dry-run", "--quiet", "host", *arguments, command=SNAKEMAKE).stdout


def planned(tree, *arguments):
    """How many jobs of each rule a dry run would start."""
    return jobs(dry_run(tree, *arguments))


MINE = ("--configfile", "my.yaml", "--config", "run=mine")


def test_content_hashes_see_content_and_nothing_else(tmp_path):
    (tmp_path / "package/__pycache__").mkdir(parents=True)
    file = tmp_path / "package/code.py"
    file.write_text("x = 1")
    first = content_hash(("package", "missing.py"), tmp_path)
    os.utime(file, (1, 1))
    (tmp_path / "package/__pycache__/code.py").write_text("")
    assert content_hash(("package", "missing.py"), tmp_path) == first
    file.write_text("x = 2")
    (tmp_path / "package/other.py").write_text("x = 1")
    assert content_hash(("package", "missing.py"), tmp_path) != first


def test_the_code_that_trains_a_cell_is_in_its_hash():
    loaded = "print(*(module for module in sys.modules if module.startswith('benchmarks.')))"
    code = f"import sys, benchmarks.launching.run, benchmarks.training.rank; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {name.replace(".", "/") for name in done.stdout.split()}
    assert sorted(path for path in paths if not path.startswith(TRAINING)) == []


def test_weights_are_made_again_with_another_version_of_what_they_are_computed_with(tmp_path, monkeypatch):
    before = get_pretrained("gpt2-bytes")
    monkeypatch.syspath_prepend(tmp_path)
    for package in PACKAGES:
        metadata = tmp_path / f"{package.replace('-', '_')}-99.0.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Name: {package}\nVersion: 99.0\n")
        assert f"{package} 99.0" in get_packages()
        assert get_pretrained("gpt2-bytes") != before
        before = get_pretrained("gpt2-bytes")


def test_the_default_is_the_smoke_matrix(tree):
    assert planned(tree) == {"pretrained": 2, "cell": 36, "report": 1, "all": 1}
    mini = ("--configfile", "benchmarks/config/mini.yaml", "--config", "part=distributions")
    assert planned(tree, *mini) == {"pretrained": 2, "cell": 8, "report": 1, "all": 1}
    assert not (tree / "results/runs").exists()


def test_a_new_table_is_expected_from_the_report(tree):
    with (tree / "benchmarks/analysis/tables/table_list.py").open("a") as file:
        file.write('TABLES["extra"] = throughput\n')
    lines = dry_run(tree, *MINE)
    assert all(name in lines for name in ("tables/memory.csv", "tables/extra.csv", "figures/extra.png"))


def test_a_run_and_what_makes_its_cells_run_again(whole_run, finished):
    tree, (_, said) = finished, whole_run
    folder = tree / "results/runs/mine"
    assert "4 cells, 4 to run" in said
    assert "[4/4] " in said
    assert len(load_run(folder).results) == 4
    for name in ("report.html", "tables/memory.csv", "tables/accuracy.md", "figures/memory.png"):
        assert (folder / name).stat().st_size > 100

    patterns = ("my.yaml", "resireduce/*.py", "results/cache/*", "results/runs/mine/specs/*")
    for file in [file for pattern in patterns for file in tree.glob(pattern)]:
        os.utime(file)
    assert "Nothing to be done" in dry_run(tree, *MINE)

    (folder / f"cells/{SLOW}.json").unlink()
    assert planned(tree, *MINE) == {"cell": 1, "report": 1, "all": 1}
    command = load_run(folder).holes[Cell(model="vgg-digits", scheme="w")].command.split()
    assert command[0] == ".venv/bin/snakemake"
    assert (
        call(tree, *[str(word).replace(str(tree) + "/", "") for word in command[1:]], command=SNAKEMAKE).returncode == 0
    )
    assert (folder / f"cells/{SLOW}.json").exists()

    (tree / "my.yaml").write_text(CONFIG.replace("[baseline, w]", "[baseline, w, 2d]"))
    assert planned(tree, *MINE) == {"cell": 2, "report": 1, "all": 1}
    (tree / "my.yaml").write_text(CONFIG)

    metadata = tree / "numpy-99.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: numpy\nVersion: 99.0\n")
    said = dry_run(tree, *MINE)
    assert jobs(said) == {"cell": 4, "pretrained": 1, "report": 1, "all": 1}
    assert "numpy 99.0" in said.partition("Params have changed since last execution")[2]
    shutil.rmtree(metadata.parent)
    with (tree / "resireduce/errors.py").open("a") as file:
        file.write("# a comment\n")
    said = dry_run(tree, *MINE)
    assert jobs(said) == {"cell": 4, "report": 1, "all": 1}
    assert "Params have changed since last execution" in said


def test_failed_cells_leave_partial_tables_with_reasons(tree):
    (tree / "fail.txt").write_text(SLOW)
    done = call(tree, *MINE)
    assert done.returncode != 0
    assert f"FAILED {SLOW}" in done.stdout
    assert f"{SLOW}: error, rank 1 was killed (SIGKILL)" in done.stdout
    assert "MEMORY" in done.stdout
    assert "Traceback" not in done.stderr
    found = load_run(tree / "results/runs/mine")
    assert len(found.results) == 3
    assert "rank 1 was killed" in (found.folder / "report.html").read_text()
    (tree / "fail.txt").unlink()
    done = call(tree, *MINE)
    assert done.returncode == 0
    assert "4 cells, 1 to run" in done.stdout
    assert not load_run(found.folder).holes


def test_finished_records_outlive_cells_that_fail_when_they_run_again(finished):
    tree = finished
    folder, source = tree / "results/runs/mine", tree / "resireduce/pieces.py"
    records = {path: path.read_bytes() for path in folder.glob("cells/*.json")}
    source.write_text(f"{source.read_text()}# a comment\n")
    (tree / "fail.txt").write_text(" ".join(path.stem for path in records))
    assert call(tree, *MINE).returncode != 0
    assert not any(path.exists() for path in records)
    assert {path.name: path.read_bytes() for path in folder.glob("earlier/*.json")} == {
        path.name: content for path, content in records.items()
    }


def test_one_run_of_a_folder_at_a_time_and_a_kill_loses_nothing(tree):
    (tree / "slow.txt").write_text(SLOW)
    folder = tree / "results/runs/mine"
    first = subprocess.Popen(
        [*RUN, "--cores", "4", *MINE],
        cwd=tree,
        env=environment(tree),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while len(list(folder.glob("cells/*.json"))) < 3:
            assert first.poll() is None
            time.sleep(0.1)
        second = call(tree, *MINE)
        assert second.returncode == 2
        owner = f"process {first.pid} on {socket.gethostname()}"
        assert second.stderr.strip() == f"error: results/runs/mine is in use by {owner}; wait for it, or end that"
        while not (jobs_left := planned(tree, *MINE)):  # for a moment the third record counts as incomplete
            assert first.poll() is None
        assert jobs_left["cell"] == 1
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    finished = {path: path.read_bytes() for path in folder.glob("cells/*.json")}
    assert len(finished) == 3
    (tree / "slow.txt").unlink()
    done = call(tree, *MINE)
    assert done.returncode == 0, done.stderr
    assert "4 cells, 1 to run" in done.stdout
    assert all(path.read_bytes() == content for path, content in finished.items())
    assert len((tree / "trained.txt").read_text().split()) == 4


def test_a_folder_or_a_record_that_a_run_cannot_use_is_named(tmp_path):
    cell, other = Cell(model="vgg-digits", scheme="w"), Cell(model="vgg-digits", scheme="none")
    make_result(other).save(tmp_path / f"mine/cells/{cell.name}.json")
    with pytest.raises(RecordError, match=rf"the record is of another cell, {re.escape(other.name)}; delete it and"):
        check_records(str(tmp_path / "mine"), {cell.name: cell})
    (tmp_path / f"mine/cells/{cell.name}.json").write_text('{"cell": {')
    with pytest.raises(RecordError, match="half written"):
        check_records(str(tmp_path / "mine"), {cell.name: cell})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matrix: [\n", ", line 2, column 1: expected the node content"),
        ("- 1\n", " holds no mapping; give run, defaults and matrix"),
        ("run: a/b\nmatrix: [{model: vgg-digits}]\n", ": run: 'a/b' is not allowed"),
        ("matrix: [{model: vgg-digit}]\n", ": matrix entry 1: model: 'vgg-digit' is not known"),
        ("matrix: [{model: gpt2-bytes}]\nmodels: 3", ": config key: 'models' is not known"),
    ],
)
def test_a_config_is_checked_with_the_place_of_the_mistake(tmp_path, capsys, text, message):
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    assert main(["cells", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and f"{config}{message}" in said and said.count("\n") == 1


def test_bad_input_ends_in_one_line(tmp_path):
    """As a key that is there twice, of which Snakemake itself would take the last."""
    config = tmp_path / "bad.yaml"
    config.write_text("matrix: [{model: gpt2-bytes, seed: 1, seed: 2}]")
    done = call(ROOT, "--configfile", str(config), command=[*SNAKEMAKE, "--dry-run"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "'seed' is there twice" in done.stderr and done.stderr.count("\n") == 1

"""What is left of a run when its Snakemake is killed, with programs that stand in for Slurm's."""

import json
import logging
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.core.run_config import write_specs
from benchmarks.core.stop_policy import content_of
from benchmarks.launching.slurm import queue
from benchmarks.launching.slurm.queue import cell_comment
from benchmarks.launching.slurm.working import find_kept, keep
from benchmarks.workflow.resume import (
    HERE,
    check_leftovers,
    end_leftovers,
    find_leftovers,
    lock_folder,
    move_damaged,
    remember_start,
)
from benchmarks.workflow.run_progress import FailedTries
from resireduce.errors import ConfigError
from tests.records import make_result
from tests.stand_ins import HEAD

CELL, OTHER = Cell(model="vgg-digits", scheme="w+2d"), Cell(model="vgg-digits", scheme="baseline")
CELLS = {cell.name: cell for cell in (CELL, OTHER)}
MATRIX = {"matrix": [{"model": "vgg-digits", "scheme": ["w+2d", "baseline"]}]}
STAND_IN = """
import os, sys
folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
queue, program = os.path.join(folder, "queue"), os.path.basename(sys.argv[0])
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(" ".join([program, *sys.argv[1:]]) + "\\n")
if os.path.exists(os.path.join(folder, "down")):
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
# user|looks until it is gone|number|state|comment|folder
jobs = [line.rstrip("\\n").split("|", 5) for line in open(queue)]
if program == "squeue":
    assert sys.argv[1:3] == ["--noheader", "--all"] and sys.argv[4] == "--format=%i|%T|%k|%Z"
    user = sys.argv[3].removeprefix("--user=")
    print(*("|".join(job[2:]) for job in jobs if job[0] == user), sep="\\n")
    jobs = [[job[0], str(int(job[1]) - (job[3] == "COMPLETING")), *job[2:]] for job in jobs]
    jobs = [job for job in jobs if int(job[1]) > 0]
else:
    asked = sys.argv[1:]
    jobs = [[*job[:3], "COMPLETING", *job[4:]] if job[2] in asked else job for job in jobs]
open(queue, "w").writelines("|".join(job) + "\\n" for job in jobs)
"""


class Slurm:
    """What stands in for it."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "queue").touch()
        for name in ("squeue", "scancel"):
            (folder / f"bin/{name}").write_text(HEAD + STAND_IN)
            (folder / f"bin/{name}").chmod(0o755)

    def add(self, number, comment, *, state="RUNNING", user=None, place=None, looks=1):
        user = os.getuid() if user is None else user
        with (self.folder / "queue").open("a") as file:
            file.write(f"{user}|{looks}|{number}|{state}|{comment}|{place or Path.cwd()}\n")

    @property
    def jobs(self):
        return [line.split("|")[2] for line in (self.folder / "queue").read_text().splitlines()]

    @property
    def cancelled(self):
        calls = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [number for call in calls if call.startswith("scancel") for number in call.split()[1:]]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "LOOK_SECONDS", 0.01)
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    return Slurm(folder)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run, relative to a project's, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").touch()
    folder = Path("results/runs/mine")
    (folder / "cells").mkdir(parents=True)
    write_specs(str(folder), {"run": "mine", "site": "slurm/partitions.yaml", **MATRIX}, CELLS.values())
    return folder


def test_only_this_runs_jobs_of_this_user_and_folder_are_its_leftovers(slurm, run, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    slurm.add(11, cell_comment("mine", CELL.name))
    slurm.add(9, cell_comment("mine", OTHER.name), state="PENDING", place=tmp_path / "link")
    slurm.add(12, cell_comment("mine2", CELL.name))
    slurm.add(13, cell_comment("not_mine", CELL.name))
    slurm.add(14, cell_comment("mine", CELL.name + ".n1"))
    slurm.add(15, cell_comment("mine", CELL.name), user=os.getuid() + 1)
    slurm.add(16, cell_comment("mine", CELL.name), place=tmp_path / "another")
    slurm.add(17, "rule_report")
    slurm.add(18, "")
    assert [job.number for job in find_leftovers(run, [CELL.name])] == ["9", "11"]
    (run / f"specs/{OTHER.name}.json").unlink()
    assert [job.number for job in find_leftovers(run, [CELL.name])] == ["11"]
    assert [job.number for job in find_leftovers(run, CELLS)] == ["9", "11"], "before it has written specs"


def test_a_comment_is_what_the_executor_writes(run):
    """A rule's wildcards, in their order in the output's name, joined by an underline."""
    rules = (Path(__file__).parents[3] / "benchmarks/workflow/cells.smk").read_text()
    assert 'f"{RUNS}/{{run}}/cells/{{cell}}.json"' in rules
    from snakemake_executor_plugin_slurm import utils

    wildcards = utils.get_job_wildcards(SimpleNamespace(wildcards=["mine", CELL.name]))
    assert cell_comment("mine", CELL.name) == f"rule_cell_wildcards_{wildcards}"


def test_leftovers_are_cancelled_and_waited_for(slurm, run, capsys, monkeypatch):
    slurm.add(3, cell_comment("mine", CELL.name), looks=3)
    slurm.add(4, cell_comment("mine", OTHER.name), state="PENDING")
    slurm.add(5, cell_comment("mine2", CELL.name))
    slurm.add(6, cell_comment("mine", CELL.name), state="COMPLETING", looks=2)
    with pytest.raises(
        ConfigError, match=r"^run: mine has 3 jobs \(1 completing, 1 pending, 1 running\): 3, 4, 6, left "
    ):
        check_leftovers(run, CELLS)
    assert not slurm.cancelled, "a plain start names them and the cure"
    end_leftovers(run, CELLS)
    assert slurm.jobs == ["5"] and slurm.cancelled == ["3", "4"]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{run}: cancelling 3 jobs (1 completing, 1 pending, 1 running): 3, 4, 6; ")
    check_leftovers(run, CELLS)
    slurm.add(7, cell_comment("mine", CELL.name), looks=10**6)
    monkeypatch.setattr(queue, "GONE_SECONDS", 0.05)
    with pytest.raises(ConfigError, match=r"^slurm: 1 job \(1 completing\): 7 not gone 0.05 s after scancel; "):
        end_leftovers(run, CELLS)


def test_damaged_records_are_put_aside_and_nothing_else(run, capsys):
    record, failed = (run / f"cells/{CELL.name}{suffix}.json" for suffix in ("", ".failed"))
    record.write_text('{"half')
    failed.write_text("")
    make_result(OTHER).save(run / f"cells/{OTHER.name}.json")
    (run / "cells/of an older matrix.json").write_text("{")
    keep(make_result(CELL), run / f"finished/{CELL.name}.json")
    move_damaged(run, CELLS)
    assert {path.name for path in (run / "cells").iterdir()} == {
        f"{CELL.name}.json.damaged",
        f"{CELL.name}.failed.json.damaged",
        f"{OTHER.name}.json",
        "of an older matrix.json",
    }
    assert len(capsys.readouterr().out.splitlines()) == 2
    make_result(OTHER).save(record)
    move_damaged(run, CELLS)
    assert f"it is of another cell, {OTHER.name}; it is now {record.name}.damaged2" in capsys.readouterr().out
    assert CellResult.load(run / f"cells/{record.name}.damaged2").cell == OTHER
    assert (run / f"finished/{CELL.name}.json").exists()


@pytest.fixture
def replaced(monkeypatch):
    """The command lines that this process would have become."""
    lines = []
    monkeypatch.setattr("os.execv", lambda program, line: lines.append(line) or sys.exit(0))
    return lines


def resume(*arguments):
    try:
        return main(["resume", *arguments])
    except SystemExit as end:
        return end.code


def test_a_run_goes_on_the_way_it_was_started(slurm, run, replaced):
    slurm.add(3, cell_comment("mine", CELL.name))
    remember_start(run, ["--profile", "site"])
    assert resume("--run", "mine", "--", "--jobs", "3") == 0
    own = ["--configfile", "results/runs/mine/config.json", "--config", "run=!!str mine"]
    assert replaced.pop() == [sys.executable, "-m", "snakemake", *own, "--profile", "site", "--jobs", "3"]
    assert slurm.cancelled == ["3"]
    (slurm.folder / "down").touch()
    with pytest.raises(ConfigError, match=r"^slurm: jobs .* cannot be told: squeue: .*Unable to contact .*failure\)$"):
        check_leftovers(run, CELLS)
    remember_start(run, None)
    assert resume("--run", "results/runs/mine/") == 0
    assert replaced.pop() == [sys.executable, "-m", "snakemake", *own, *HERE]
    (run / "start.json").unlink()
    (slurm.folder / "down").unlink()
    assert resume("--run", str(run.absolute())) == 0
    assert replaced.pop() == [sys.executable, "-m", "snakemake", *own, "--profile", "slurm"], "its config has a site"


def test_a_run_that_is_being_worked_on_is_left_alone(slurm, run, replaced, capsys):
    slurm.add(3, cell_comment("mine", CELL.name))
    with lock_folder(run):
        assert resume("--run", "mine") == 2
    said, host = capsys.readouterr(), socket.gethostname()
    assert (
        said.err.startswith(f"error: run: {run} is in use by process {os.getpid()} on {host};")
        and said.err.count("\n") == 1
    )
    assert not replaced and not slurm.cancelled


def test_what_is_no_run_is_named(run, replaced, capsys):
    (run.parent / "half").mkdir()
    (run.parent / "half/config.json").write_text('{"run"')
    for given, message in (
        ("other", "run: 'other' was never started; there are: "),
        ("/tmp/mine", "run: '/tmp/mine' is not in results/runs; "),
        ("half", "run: results/runs/half/config.json cannot be read ("),
    ):
        assert resume("--run", given) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not replaced


def test_a_cell_that_was_finished_unseen_is_not_trained_again_unless_it_or_the_code_is_another(
    run, monkeypatch, capsys
):
    monkeypatch.setattr("benchmarks.launching.run.launch", lambda *_: pytest.fail("it was trained again"))
    monkeypatch.setattr("benchmarks.launching.run.check_prepared", lambda *_: None)
    record, copy, output = make_result(CELL), run / f"finished/{CELL.name}.json", run / f"cells/{CELL.name}.json"
    source = {"content": content_of(CELL, None)}
    keep(CellResult(**{**record.__dict__, "provenance": record.provenance | source}), copy)
    line = ["run", "--cell", f"{run}/specs/{CELL.name}.json", "--output", str(output), "--keep", str(copy)]
    assert main(line) == 0
    assert output.read_bytes() == copy.read_bytes()
    assert capsys.readouterr().out.endswith("(finished before, not trained again)\n")
    whole = json.loads(copy.read_text())
    for key in ("resireduce", "cell"):
        content = whole["provenance"]["content"] | {key: "another"}
        copy.write_text(json.dumps(whole | {"provenance": whole["provenance"] | {"content": content}}))
        assert find_kept(copy, source["content"]) is None
    copy.write_text(json.dumps(whole)[:500])
    assert find_kept(copy, source["content"]) is None


SLURM_LOG = "results/slurm-logs/rule_cell/x/7.log"


def test_a_failed_try_has_a_line_with_its_reason_and_what_comes_next(run, capsys):
    log = run / f"logs/{CELL.name}.log"
    log.parent.mkdir()
    handler = FailedTries(retries=1)
    fields = {"jobid": 5, "log": [str(log)], "output": [f"{run}/cells/{CELL.name}.json"], "rule_name": "cell"}
    emit(handler, "JOB_INFO", **fields, rule_msg=None)
    log.write_text(f"Traceback\n{CELL.name}: error: rank 1 was killed\n")
    failed = {**fields, "log": [str(log), SLURM_LOG]}
    emit(handler, "JOB_ERROR", **failed, rule_msg="SLURM-job '7' failed, SLURM status is: 'TIMEOUT'.")
    reason = "error: rank 1 was killed; its job was TIMEOUT; it is tried again"
    assert capsys.readouterr().out == f"FAILED {CELL.name}, try 1 of 2: {reason} (see {log})\n"
    log.unlink()
    emit(handler, "JOB_INFO", **fields, rule_msg=None)
    emit(handler, "JOB_ERROR", **failed, rule_msg="SLURM sbatch failed. The error message was 'sbatch: error: Q\n'.")
    said = capsys.readouterr().out
    assert said == f"FAILED {CELL.name}, try 2 of 2: sbatch: error: Q; it is not tried again (see {SLURM_LOG})\n"
    emit(handler, "JOB_ERROR", jobid=1, log=[], output=[], rule_name="report", rule_msg=None)
    emit(handler, None)
    assert capsys.readouterr().out == "", "others are left to others"


def emit(handler, event, **fields):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "said", (), None)
    record.__dict__.update(fields, event=SimpleNamespace(name=event))
    handler.emit(record)

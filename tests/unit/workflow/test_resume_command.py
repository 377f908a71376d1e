"""What is left of a run when its Snakemake is killed, with programs that stand in for Slurm's."""

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.load_run import load_run
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
    is_locked,
    lock_folder,
    move_damaged,
    profile_options,
    remember_start,
    started_with,
)
from benchmarks.workflow.run_progress import FailedTries, Finished
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


def test_leftovers_are_cancelled_and_waited_for(slurm, run, capsys):
    slurm.add(3, cell_comment("mine", CELL.name), looks=3)
    slurm.add(4, cell_comment("mine", OTHER.name), state="PENDING")
    slurm.add(5, cell_comment("mine2", CELL.name))
    slurm.add(6, cell_comment("mine", CELL.name), state="COMPLETING", looks=2)
    end_leftovers(run, CELLS)
    assert slurm.jobs == ["5"] and slurm.cancelled == ["3", "4"]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{run}: cancelling 3 jobs (1 completing, 1 pending, 1 running): 3, 4, 6; ")
    assert said[1].startswith(f"{run}: they have ended, after ")
    end_leftovers(run, CELLS)
    assert capsys.readouterr().out == ""


def test_a_job_that_does_not_end_is_named_in_one_line(slurm, run, monkeypatch):
    slurm.add(3, cell_comment("mine", CELL.name), looks=10**6)
    monkeypatch.setattr(queue, "GONE_SECONDS", 0.05)
    with pytest.raises(ConfigError) as error:
        end_leftovers(run, CELLS)
    assert str(error.value).startswith("slurm: 1 job (1 completing): 3 not gone 0.05 s after scancel; ")


def test_a_plain_start_names_leftovers_and_the_cure(slurm, run):
    check_leftovers(run, CELLS)
    for number in range(20, 30):
        slurm.add(number, cell_comment("mine", CELL.name))
    with pytest.raises(ConfigError) as error:
        check_leftovers(run, CELLS)
    numbers = ", ".join(map(str, range(20, 28)))
    assert str(error.value) == (
        f"run: mine has 10 jobs (10 running): {numbers}, ..., left by an earlier start; end them and go on: "
        "make resume RUN=mine"
    )
    assert not slurm.cancelled


def test_where_squeue_does_not_answer_nothing_is_started(slurm, run, monkeypatch):
    (slurm.folder / "down").touch()
    with pytest.raises(ConfigError, match=r"^slurm: jobs .* cannot be told: squeue: .*Unable to contact .*failure\)$"):
        check_leftovers(run, CELLS)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"^slurm: jobs .*: squeue: not on PATH"):
        check_leftovers(run, CELLS)


def test_jobs_that_train_weights_may_be_another_runs(slurm, run):
    slurm.add(3, "rule_pretrained_wildcards_gpt2-bytes_0123456789ab")
    slurm.add(4, "rule_pretrained_in_image_wildcards_gpt2-bytes_0123456789ab")
    with lock_folder(run):
        assert [job.number for job in find_leftovers(run, CELLS)] == ["3", "4"]
        with lock_folder(run.parent / "another"):
            assert find_leftovers(run, CELLS) == []
    assert not is_locked(run.parent / "another") and not is_locked(run.parent / "none")


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
    remember_start(run, None)
    (slurm.folder / "down").touch()
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
    for given, message in (
        ("other", "run: 'other' was never started; there are: mine"),
        ("/tmp/mine", "run: '/tmp/mine' is not in results/runs; "),
        ("", "run: '' was never started"),
    ):
        assert resume("--run", given) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    (run / "config.json").write_text('{"run"')
    assert resume("--run", "mine") == 2
    assert capsys.readouterr().err.startswith(f"error: run: {run}/config.json cannot be read (")
    Path("Snakefile").unlink()
    assert resume("--run", "mine") == 2
    assert "has no Snakefile; run this in the project's folder" in capsys.readouterr().err
    assert not replaced


def test_the_profile_is_read_from_the_command_line(run):
    line = ["-n", "--profile", "slurm", "--config", "run=x", "site=y", "--jobs", "3"]
    assert profile_options(line, {}) == ["--profile", "slurm"]
    assert profile_options(["--workflow-profile=my"], {}) == ["--workflow-profile", "my"]
    assert profile_options([], {"SNAKEMAKE_PROFILE": "ours"}) == ["--profile", "ours"]
    assert profile_options([], {}) == ["--profile", "slurm"]
    remember_start(run, None)
    assert started_with(run) is None
    (run / "start.json").write_text("half")
    assert started_with(run) == ["--profile", "slurm"]


# --- records that were finished, unseen ---


@pytest.fixture
def finished(run, monkeypatch):
    """The options of `benchmarks run` for a cell of which there is a copy of a finished record, and the copy."""
    monkeypatch.setattr("benchmarks.launching.run.launch", lambda *_: pytest.fail("it was trained again"))
    monkeypatch.setattr("benchmarks.launching.run.check_prepared", lambda *_: None)
    source = {"content": content_of(CELL, None)}
    record, copy = make_result(CELL), run / f"finished/{CELL.name}.json"
    keep(CellResult(**{**record.__dict__, "provenance": record.provenance | source}), copy)
    output = run / f"cells/{CELL.name}.json"
    line = ["run", "--cell", f"{run}/specs/{CELL.name}.json", "--output", str(output), "--keep", str(copy)]
    return line, copy, output


def test_a_cell_that_was_finished_unseen_is_not_trained_again(finished, capsys):
    line, copy, output = finished
    assert main(line) == 0
    assert output.read_bytes() == copy.read_bytes()
    said = capsys.readouterr().out
    assert said.startswith(f"{CELL.name}: accuracy") and said.endswith("(finished before, not trained again)\n")


@pytest.mark.parametrize("how", ["half", "code", "cell"])
def test_a_copy_that_is_not_of_this_cell_and_code_is_not_taken(finished, monkeypatch, how):
    line, copy, _ = finished
    record = json.loads(copy.read_text())
    if how == "half":
        copy.write_text(copy.read_text()[:500])
    else:
        record["provenance"]["content"]["resireduce" if how == "code" else "cell"] = "another"
        copy.write_text(json.dumps(record))
    monkeypatch.setattr(
        "benchmarks.launching.run.launch", lambda *_: (_ for _ in ()).throw(ConfigError("it is trained"))
    )
    assert main(line) == 2


def test_copies_are_compared_as_json_has_them(tmp_path):
    cell = Cell(model="gpt2-bytes", scheme="w")
    content = content_of(cell, None)
    record = make_result(cell)
    keep(
        CellResult(**{**record.__dict__, "provenance": {"content": content | {"ratios": {3: 0.1}}}}),
        tmp_path / "x.json",
    )
    assert find_kept(tmp_path / "x.json", content | {"ratios": {3: 0.1}}) is not None
    assert find_kept(tmp_path / "x.json", content | {"ratios": {3: 0.2}}) is None
    assert find_kept(None, content) is None and find_kept(tmp_path / "none.json", content) is None


# --- the screen of the main process ---


def test_finished_cells_have_a_line_and_lose_their_copies(run, capsys):
    done = set()
    make_result(CELL).save(run / f"cells/{CELL.name}.json")
    (run / "logs").mkdir()
    (run / f"logs/{OTHER.name}.log").write_text(f"noise\n{OTHER.name}: accuracy 97, 3 s\n\n")
    for name, cell in CELLS.items():
        keep(make_result(cell), run / f"finished/{name}.json")
    watcher = Finished(run, {name: lambda name=name: name in done for name in CELLS}, say=True)
    watcher.look()
    assert capsys.readouterr().out == "" and len(list((run / "finished").iterdir())) == 2
    done.add(CELL.name)
    watcher.look()
    assert capsys.readouterr().out.startswith(f"[1/2] {CELL.name}: accuracy 0.9")
    assert [path.stem for path in (run / "finished").iterdir()] == [OTHER.name]
    done.add(OTHER.name)
    end = time.monotonic() + 10
    while (said := capsys.readouterr().out) == "" and time.monotonic() < end:
        time.sleep(0.05)
    assert said == f"[2/2] {OTHER.name}: accuracy 97, 3 s\n", "the thread has seen it"


SLURM_LOG = "results/slurm-logs/rule_cell/x/7.log"
SBATCH = (
    "SLURM sbatch failed. The error message was 'sbatch: error: QOSMax\nsbatch: error: not allowed'.\n    sbatch call:"
)
FAILURES = [
    ("SLURM-job '7' failed, SLURM status is: 'FAILED'. Detailed", True, "error: rank 1 was killed; it is tried again"),
    (
        "SLURM-job '7' failed due to a node failure, SLURM status is: 'NODE_FAIL'.",
        False,
        "its job was NODE_FAIL; it is",
    ),
    ("SLURM-job '7' failed, SLURM status is: 'TIMEOUT'.", True, "error: rank 1 was killed; its job was TIMEOUT; it is"),
    ("SLURM-job '7' failed, SLURM status is: 'FAILED'.", False, "its job was FAILED; it is"),
    (SBATCH, False, "sbatch: error: not allowed; it is"),
]


@pytest.mark.parametrize(("message", "writes_log", "reason"), FAILURES)
def test_a_failed_try_has_a_line_with_its_reason_and_what_comes_next(run, capsys, message, writes_log, reason):
    log = run / f"logs/{CELL.name}.log"
    log.parent.mkdir()
    log.write_text("of an earlier start")
    os.utime(log, (1, 1))
    handler = FailedTries(retries=1)
    fields = {"jobid": 5, "log": [str(log)], "output": [f"{run}/cells/{CELL.name}.json"], "rule_name": "cell"}
    said = []
    for _ in range(2):
        emit(handler, "JOB_INFO", **fields, rule_msg=None)
        if writes_log:
            log.write_text(f"Traceback\n{CELL.name}: error: rank 1 was killed\n")
            os.utime(log, (2 + len(said), 2))
        emit(handler, "JOB_ERROR", **{**fields, "log": [str(log), SLURM_LOG]}, rule_msg=message)
        said += capsys.readouterr().out.splitlines()
        os.utime(log, (1, len(said) + 5))
    assert len(said) == 2
    assert said[0].startswith(f"FAILED {CELL.name}, try 1 of 2: {reason}"), said[0]
    assert said[0].endswith(f"(see {log if writes_log else SLURM_LOG})")
    assert "try 2 of 2: " in said[1] and "; it is not tried again (see " in said[1]


def test_messages_of_other_forms_and_of_jobs_here_are_left_to_others(capsys):
    handler = FailedTries(retries=0)
    for fields in ({}, {"jobid": 1, "log": [], "output": [], "rule_name": "report", "rule_msg": None}):
        emit(handler, "JOB_INFO", **fields)
        emit(handler, "JOB_ERROR", **fields)
    emit(handler, None)
    assert capsys.readouterr().out == ""


def emit(handler, event, **fields):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "said", (), None)
    record.__dict__.update(fields, event=SimpleNamespace(name=event))
    handler.emit(record)


def test_the_report_of_a_clusters_run_names_what_is_missing(run):
    found = load_run(run)
    assert not found.notes and set(found.holes) == set(CELLS.values())
    assert all("snakemake --profile slurm --configfile" in hole.command for hole in found.holes.values())

"""How a stopped run goes on; Slurm itself is in tests/slurm."""

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.files import lock
from benchmarks.core.record import CellResult
from benchmarks.core.run_config import write_specs
from benchmarks.core.stop_policy import content_of
from benchmarks.launching.slurm.queue import cell_comment
from benchmarks.launching.slurm.working import find_kept, keep
from benchmarks.workflow.resume import HERE
from benchmarks.workflow.run_progress import FailedTries
from tests.records import make_result

CELL = Cell(model="vgg-digits", scheme="w+2d")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run, relative to a project's, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/runs/mine")
    write_specs(str(folder), {"run": "mine", "matrix": [{"model": "vgg-digits", "scheme": "w+2d"}]}, [CELL])
    return folder


def test_a_comment_is_what_the_executor_writes():
    """A rule's wildcards, in their order in the output's name, joined by an underline."""
    rules = (Path(__file__).parents[3] / "benchmarks/workflow/cells.smk").read_text()
    assert 'f"{RUNS}/{{run}}/cells/{{cell}}.json"' in rules
    from snakemake_executor_plugin_slurm import utils

    wildcards = utils.get_job_wildcards(SimpleNamespace(wildcards=["mine", CELL.name]))
    assert cell_comment("mine", CELL.name) == f"rule_cell_wildcards_{wildcards}"


def test_a_run_goes_on_the_way_it_was_started_unless_it_is_being_worked_on(run, monkeypatch, capsys):
    lines = []
    monkeypatch.setattr("os.execv", lambda program, line: lines.append(line) or sys.exit(0))
    with pytest.raises(SystemExit):
        main(["resume", "--run", "mine", "--", "--jobs", "3"])
    own = ["--configfile", "results/runs/mine/config.json", "--config", "run=!!str mine"]
    assert lines.pop() == [sys.executable, "-m", "snakemake", *own, *HERE, "--jobs", "3"]
    capsys.readouterr()
    with lock(run / ".lock", str(run)):
        assert main(["resume", "--run", "mine"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {run} is in use by process {os.getpid()} on ")
    assert main(["resume", "--run", "other"]) == 2
    assert "run: 'other' is not known; allowed: mine" in capsys.readouterr().err
    assert not lines


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


def test_a_failed_job_of_a_cluster_has_a_line_with_its_reason(capsys):
    fields = {"log": ["a.log", "b.log"], "output": [f"cells/{CELL.name}.json"], "rule_name": "cell"}
    emit("JOB_ERROR", **fields, rule_msg="SLURM sbatch failed. The error message was 'sbatch: error: Q\n'.")
    said = "SLURM sbatch failed. The error message was 'sbatch: error: Q '."
    assert capsys.readouterr().out == f"FAILED {CELL.name}: {said} (see a.log, b.log)\n"
    emit("JOB_ERROR", log=[], output=[], rule_name="report", rule_msg=None)
    emit(None)
    assert capsys.readouterr().out == "", "others are left to others"


def emit(event, **fields):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "said", (), None)
    record.__dict__.update(fields, event=SimpleNamespace(name=event))
    FailedTries().emit(record)

"""The command that trains one cell: real ranks that end in time, hang, or fail, and the record each leaves."""

import errno
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.core.stop_policy import Limits
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.launching import launch as launch_module
from benchmarks.launching.containers.runtime import passed
from benchmarks.launching.launch import launch, starting
from benchmarks.launching.outcomes import overall, summary, to_result
from benchmarks.launching.processes import MALLOC, THRESHOLD
from benchmarks.training.measure.rank_facts import relevant_environment
from benchmarks.training.rank import run_rank
from resireduce.comm.local import LocalCommunicator
from resireduce.plan import plan
from resireduce.planning.models import find_builder
from tests.records import make_result
from tests.stand_ins import HEAD

CELL = Cell(model="vgg-digits", scheme="w", steps=2)
ENDS = {
    "ok": "save({'status': 'ok', 'reason': None})",
    "diverged": "save({'status': 'diverged', 'reason': 'the loss was nan in step 3 of 9'})",
    "crashed": "sys.exit(3)",
    "hung": "time.sleep(60)",
    "ok, but stays": "save({'status': 'ok', 'reason': None}); time.sleep(60)",
    "slow to end": "save({'status': 'timeout', 'reason': 'stopped before', 'failure': {}}); time.sleep(60)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "saves": (
        "import signal; leave = lambda *_: (save({'status': 'timeout', 'reason': 'stopped by SIGTERM', 'steps': 3,"
        "'failure': {'interrupted': True, 'step': 3}}), sys.exit());"
        "signal.signal(signal.SIGTERM, leave); time.sleep(60)"
    ),
}
STAND_IN = """
import json, os, sys, time
from pathlib import Path
output = Path(sys.argv[sys.argv.index("--output") + 1])
save = lambda outcome: output.write_text(json.dumps(outcome))
exec({ends}[int(os.environ["RANK"])])
"""
"""Stands in for the interpreter of a rank."""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(CELL.to_dict()))
    return path


def run(spec: Path, *options: str) -> int:
    return main(["run", "--cell", str(spec), "--output", str(spec.parent / "out/cell.json"), *options])


def launch_ranks(
    monkeypatch, folder: Path, *ends: str, grace_seconds: float = 2.0, **options: Any
) -> list[dict[str, Any]]:
    """Outcomes of ranks that end as told, as soon as they can."""

    program = folder / "python"
    program.write_text(HEAD + STAND_IN.format(ends=[ENDS[end] for end in ends]))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", grace_seconds)
    started = time.monotonic()
    outcomes = launch(Cell(model="vgg-digits", world_size=len(ends)), folder, None, folder, **options)
    assert time.monotonic() - started < 30, "a rank that hangs was waited for"
    return outcomes


CRASHED = "rank 1 ended with exit status 3 and left no result; its log says more"


@pytest.mark.parametrize(
    ("ends", "options", "statuses", "reason"),
    [
        (("ok", "ok"), {}, "ok ok", None),
        (("ok", "crashed"), {}, "ok error", CRASHED),
        (("hung", "crashed"), {"grace_seconds": 60.0, "timeout_seconds": 3}, "error error", CRASHED),
        (("diverged", "ok", "hung"), {}, "diverged ok error", "the loss was nan in step 3 of 9"),
        (("ok, but stays", "ok"), {"grace_seconds": 0.2}, "ok ok", None),
    ],
)
def test_ranks_that_wait_for_one_that_failed_are_stopped(monkeypatch, tmp_path, ends, options, statuses, reason):
    outcomes = launch_ranks(monkeypatch, tmp_path, *ends, **options)
    assert [outcome.status for outcome in outcomes] == statuses.split()
    assert overall(outcomes).reason == reason


def test_a_cell_whose_time_is_over_is_not_to_be_gone_on_with(monkeypatch, tmp_path):
    record = to_result(CELL, launch_ranks(monkeypatch, tmp_path, "hung", "hung", timeout_seconds=2), 2.0, None)
    assert (record.status, record.reason) == ("timeout", "not done after 2 s; its log says how far it came")
    assert record.failure == {"rank": 0}


def test_ranks_that_are_there_at_the_deadline_are_ended_and_what_they_said_stays(monkeypatch, tmp_path):
    limits = Limits(ends_at=time.time() + 2)
    outcomes = launch_ranks(monkeypatch, tmp_path, "slow to end", "hung", limits=limits)
    assert [it.reason for it in outcomes] == ["stopped before", "had not stopped by its deadline; run again"]
    assert {it.status for it in outcomes} == {"timeout"}


@pytest.mark.parametrize(("before", "after", "status"), [(4, 5, "oom"), (None, None, "error")])
def test_a_rank_that_the_kernel_killed_was_out_of_memory(monkeypatch, tmp_path, before, after, status):
    counts = iter([before, after])
    monkeypatch.setattr(launch_module, "count_oom_kills", lambda: next(counts))
    outcomes = launch_ranks(monkeypatch, tmp_path, "hung", "killed", grace_seconds=0.2)
    assert [outcome.status for outcome in outcomes] == ["error", status]
    assert overall(outcomes).reason.startswith("rank 1 was killed by ")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("saves", "stopped by SIGTERM"),
        ("hung", "stopped by SIGTERM before it could write a checkpoint; run again"),
    ],
)
def test_a_signal_goes_to_the_ranks_and_leaves_an_unfinished_cell(monkeypatch, tmp_path, end, reason):
    before = signal.getsignal(signal.SIGTERM)
    timer = threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    outcomes = launch_ranks(monkeypatch, tmp_path, end, end)
    timer.join()
    assert {(it.status, it.reason, it.failure["interrupted"]) for it in outcomes} == {("timeout", reason, True)}
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_ends_badly_leaves_a_record_and_does_not_replace_a_finished_one(spec, capsys):
    output = spec.parent / "out/cell.json"
    assert run(spec, "--timeout", "0.2") == 0
    record = CellResult.load(output)
    assert (record.status, record.reason) == ("timeout", "not done after 0.2 s; its log says how far it came")
    assert capsys.readouterr().out == f"{CELL.name}: timeout: {record.reason}\n"
    make_result(CELL).save(output)
    finished = output.read_bytes()
    assert run(spec, "--timeout", "0.2") == 1
    assert output.read_bytes() == finished
    assert CellResult.load(output.with_suffix(".failed.json")).status == "timeout"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ('{"model": "vgg-digits", "model": "gpt2-bytes"}', [], "cell: {} is no JSON: key 'model' is there twice"),
        ('{"model": "vgg-digits"}', ["--launcher", "srun"], "launcher: 'srun' works within a Slurm job only; start it"),
        (
            '{"model": "vgg-digits", "world_size": 2, "nodes": 2}',
            [],
            "nodes: 2 needs several machines; run it on a clu",
        ),
        ('{"model": "vgg-digits"}', ["--timeout=nan"], "timeout: 'nan' is not allowed; give seconds, a number greater"),
        ('{"model": "vgg-digits"}', ["--output", "."], "output: . is not a file; give the name of one"),
        ('{"model": "vgg-digits"}', ["--output", "README.md/x"], "output: README.md/x cannot be written: "),
        ('{"model": "gpt2-bytes"}', ["--weights", "no.pt"], "weights: no.pt is not there; make it with"),
    ],
)
def test_what_cannot_be_run_is_named_in_one_line_before_training(spec, monkeypatch, capsys, text, options, message):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    spec.write_text(text)
    assert run(spec, *[option.format(spec) for option in options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message.format(spec)}") and said.count("\n") == 1
    assert spec.read_text() == text and not list((spec.parent / "out").glob("*"))


def test_a_record_that_cannot_be_written_is_left_elsewhere(spec, tmp_path, monkeypatch, capsys):
    save = CellResult.save
    output = tmp_path / "out/cell.json"

    def full(result: CellResult, path: Path) -> None:
        if path.parent == output.parent:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(result, path)

    monkeypatch.setattr(CellResult, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(spec, "--timeout", "0.2") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {output} cannot be written (No space left on device); the record is in ")
    assert CellResult.load(Path(said.split(" is in ")[1])).status == "timeout"


@pytest.mark.parametrize(("scheme", "gradients"), [("w+2d", "streamed"), ("baseline", "kept")])
@pytest.mark.parametrize("model", [workload.model for workload in SMALL])
def test_a_record_holds_the_bytes_that_plan_says(own_settings, monkeypatch, model, scheme, gradients):
    # Takes nearly all of the time, and holds nothing at a step boundary.
    monkeypatch.setattr("benchmarks.training.trainer.Trainer.evaluate", lambda trainer: {trainer.task.metric: 0.5})
    cell = Cell(model=model, scheme=scheme, gradients=gradients, backend="local", world_size=1, steps=2)
    outcome = run_rank(cell, LocalCommunicator(), None, Path("data"))
    baseline_bytes = outcome.baseline_bytes
    record = to_result(cell, [outcome], 1.0, None)
    optimizer = WORKLOADS[model].optimizer
    planned = plan(find_builder(model), optimizer=optimizer, scheme=scheme, gradients=gradients, world_size=1)
    for state in ("parameters", "gradients", "residuals", "optimizer_states", "total"):
        assert getattr(record, f"{state}_bytes") == planned[state], state
    assert baseline_bytes == planned["baseline_total"]
    assert f" MiB, normalised {planned['normalised']:.1%}, " in summary(record, baseline_bytes)


def test_ranks_have_malloc_s_settings_unless_the_user_has_others(tmp_path, monkeypatch):
    """And records say so."""
    for name in MALLOC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(THRESHOLD, "65536")
    code = f"import os; open({str(tmp_path / 'out')!r}, 'w').write(str([os.environ.get(it) for it in {list(MALLOC)}]))"
    with starting(None, tmp_path, [], []) as start, start(["-c", code], {}) as process:
        while process.poll() is None:
            time.sleep(0.05)
    assert (tmp_path / "out").read_text() == str(["65536", *list(MALLOC.values())[1:]])
    assert passed(MALLOC) == sorted(MALLOC), "all of it reaches a container"
    monkeypatch.delenv(THRESHOLD)
    for name, value in MALLOC.items():
        monkeypatch.setenv(name, value)
    assert relevant_environment().items() >= MALLOC.items()

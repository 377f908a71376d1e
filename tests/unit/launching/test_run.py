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
from benchmarks.launching.launch import launch
from benchmarks.launching.outcomes import overall, summary, to_result
from benchmarks.launching.processes import holding_back, start_here
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


@pytest.mark.parametrize(
    ("ends", "statuses", "reason"),
    [
        (("ok", "ok"), "ok ok", None),
        (("ok", "crashed"), "ok error", "rank 1 ended with exit status 3 and left no result; its log says more"),
        (("hung", "crashed"), "error error", "rank 1 ended with exit status 3 and left no result; its log says more"),
        (("hung", "diverged"), "error diverged", "the loss was nan in step 3 of 9"),
        (("diverged", "ok", "hung"), "diverged ok error", "the loss was nan in step 3 of 9"),
    ],
)
def test_ranks_that_wait_for_one_that_failed_are_stopped(monkeypatch, tmp_path, ends, statuses, reason):
    outcomes = launch_ranks(monkeypatch, tmp_path, *ends, grace_seconds=2.0 if "ok" in ends else 0.2)
    assert [outcome.status for outcome in outcomes] == statuses.split()
    assert overall(outcomes).reason == reason


def test_a_rank_that_hangs_after_another_has_failed_does_not_outlive_the_time_limit(monkeypatch, tmp_path):
    outcomes = launch_ranks(monkeypatch, tmp_path, "hung", "crashed", grace_seconds=60.0, timeout_seconds=3)
    assert overall(outcomes).reason == "rank 1 ended with exit status 3 and left no result; its log says more"


def test_ranks_that_have_left_their_results_need_not_end_by_themselves(monkeypatch, tmp_path):
    outcomes = launch_ranks(monkeypatch, tmp_path, "ok, but stays", "ok", grace_seconds=0.2)
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


def test_ranks_that_hang_are_stopped_when_the_time_is_over(monkeypatch, tmp_path):
    outcomes = launch_ranks(monkeypatch, tmp_path, "hung", "ok", timeout_seconds=2)
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok"]


def test_what_ranks_measured_until_their_time_was_over_is_kept(monkeypatch, tmp_path):
    outcomes = launch_ranks(monkeypatch, tmp_path, "hung", "saves", timeout_seconds=2)
    record = to_result(Cell(model="vgg-digits"), outcomes, 2.0, None)
    assert (record.status, record.reason) == ("timeout", "not done after 2 s; its log says how far it came")
    assert record.steps == 3
    assert record.failure == {"rank": 0, "step": 3}, "it is not to be gone on with: its time is over"


def test_ranks_that_are_there_at_the_deadline_are_ended_and_what_they_said_stays(monkeypatch, tmp_path):
    limits = Limits(ends_at=time.time() + 2)
    outcomes = launch_ranks(monkeypatch, tmp_path, "slow to end", "hung", limits=limits)
    assert [it.reason for it in outcomes] == ["stopped before", "had not stopped by its deadline; run again"]
    assert {it.status for it in outcomes} == {"timeout"}


@pytest.mark.parametrize(("before", "after", "status"), [(4, 5, "oom"), (4, 4, "error"), (None, None, "error")])
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
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    outcomes = launch_ranks(monkeypatch, tmp_path, end, end)
    timer.join()
    assert {(it.status, it.reason, it.failure["interrupted"]) for it in outcomes} == {("timeout", reason, True)}
    assert signal.getsignal(signal.SIGTERM) == before


def test_ranks_that_cannot_meet_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "none0"}
    monkeypatch.setattr(launch_module, "place_variables", lambda *_: place)
    (outcome,) = launch(Cell(model="vgg-digits", world_size=1), tmp_path, None, tmp_path)
    assert outcome.status == "error" and str(outcome.reason).endswith("Unable to find address for: none0")


def test_a_cell_that_takes_too_long_leaves_a_record(spec, capsys):
    assert run(spec, "--timeout", "0.2") == 0
    record = CellResult.load(spec.parent / "out/cell.json")
    assert (record.status, record.reason) == ("timeout", "not done after 0.2 s; its log says how far it came")
    assert capsys.readouterr().out == f"{CELL.name}: timeout: {record.reason}\n"


def test_pretraining_that_fails_leaves_a_record(spec, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.launching.run.get_pretrained", lambda *_: str(tmp_path / "weights.pt"))
    monkeypatch.setattr(sys, "executable", "false")
    assert run(spec) == 1
    record = CellResult.load(tmp_path / "out/cell.failed.json")
    assert record.status == "error"
    assert record.reason.startswith("pretraining of vgg-digits ended with exit status 1 ")
    assert capsys.readouterr() == ("", f"{CELL.name}: error: {record.reason}\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cell.failed.json"]


def test_a_trained_cell_is_summed_up_in_one_line(spec, capsys):
    cell = Cell(model="vgg-digits", backend="local", world_size=1, steps=1)
    spec.write_text(json.dumps(cell.to_dict()))
    assert run(spec) == 0
    line = capsys.readouterr().out
    total_bytes = CellResult.load(spec.parent / "out/cell.json").total_bytes
    assert f"model states {total_bytes / 2**20:.2f} MiB, normalised 100.0%, " in line
    assert line.count("\n") == 1


def test_a_run_that_ends_badly_does_not_replace_a_finished_record(spec, capsys):
    output = spec.parent / "out/cell.json"
    make_result(CELL).save(output)
    finished = output.read_bytes()
    assert run(spec, "--timeout", "0.2") == 1
    assert output.read_bytes() == finished
    assert CellResult.load(output.with_suffix(".failed.json")).status == "timeout"
    assert "timeout: not done after 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "output: . is not a file; give the name of one"),
        ("README.md/x.json", "output: README.md/x.json cannot be written: "),
    ],
)
def test_an_output_that_cannot_be_written_is_named_before_training(spec, capsys, output, message):
    for command in (["run", "--cell", str(spec)], ["data", "pretrain", "--model", "gpt2-bytes"]):
        assert main([*command, "--output", output]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_what_is_read_is_not_written_over(spec, capsys):
    content = spec.read_bytes()
    assert main(["run", "--cell", str(spec), "--output", str(spec)]) == 2
    assert capsys.readouterr().err == f"error: output: {spec} is the file given as --cell; give another one\n"
    assert spec.read_bytes() == content


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


def test_a_checkpoint_that_holds_no_weights_is_named_before_training(spec, capsys):
    spec.write_text(json.dumps(Cell(model="gpt2-bytes").to_dict()))
    assert run(spec, "--weights", str(spec)) == 2
    assert f"error: weights: {spec} holds no weights; make them with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": "vgg-digits", "model": "gpt2-bytes"}', "key 'model' is there twice"),
        ("\x00", "is no JSON"),
    ],
)
def test_a_cell_file_that_is_no_json_is_named_in_one_line(spec, capsys, text, message):
    spec.write_text(text)
    assert run(spec) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: cell: {spec} is no JSON: ") and message in said and said.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "nan", "soon"])
def test_a_bad_timeout_is_named_in_one_line(spec, capsys, value):
    assert run(spec, f"--timeout={value}") == 2
    assert capsys.readouterr().err == (
        f"error: timeout: {value!r} is not allowed; give seconds, a number greater than 0\n"
    )
    assert not (spec.parent / "out").exists()


def test_what_the_data_cannot_give_is_named_in_the_record(own_settings):
    cell = Cell(model="resnet20", data="synthetic", backend="local", world_size=1, steps=1, batch_per_rank=10_000)
    outcome = run_rank(cell, LocalCommunicator(), None, Path("data"))
    assert (outcome.status, outcome.failure) == ("error", {"phase": "building"})
    assert outcome.reason == (
        "batch_per_rank: 10000 x 1 ranks is more than the 8192 samples of an epoch; give a smaller one, or fewer ranks"
    )


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


def test_ctrl_c_while_a_rank_starts_ends_it_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with holding_back():
        rank = start_here(["-m", "benchmarks.training.rank"], {})
    rank.send_signal(signal.SIGINT)
    assert rank.wait(timeout=60) == -signal.SIGINT
    assert capfd.readouterr().err == ""
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

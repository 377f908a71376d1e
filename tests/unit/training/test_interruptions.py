"""Out of memory, divergence, a deadline, a checkpoint that cannot be used: what a cell leaves in each case."""

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.analysis.load_run import load_run
from benchmarks.core.cell import Cell
from benchmarks.core.outcome import Outcome
from benchmarks.core.record import CellResult
from benchmarks.core.stop_policy import MANIFEST, Limits, saved_step
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.outcomes import overall, to_result
from benchmarks.launching.processes import count_oom_kills
from benchmarks.training.deadline import Watch
from benchmarks.training.rank import describe, run_rank
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator

CELL = Cell(model="vgg-digits", backend="local", world_size=1, steps=4, batch_per_rank=2)


@pytest.fixture(autouse=True)
def quick(own_settings, monkeypatch):
    """Evaluation takes most of the time, more threads the rest."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("benchmarks.training.trainer.Trainer.evaluate", lambda trainer: {trainer.task.metric: 0.5})


def train(cell: Cell = CELL, **limits: Any) -> CellResult:
    """The record of a cell whose only rank is this process."""
    outcome = run_rank(cell, LocalCommunicator(), None, Path("data"), watch=Watch(Limits(**limits), signals=[]))
    return to_result(cell, [outcome], 1.0, None)


def test_a_rank_out_of_memory_says_where_and_keeps_what_it_measured(monkeypatch):
    step = iter([False, False, True])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    virtual_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    usual = Trainer.batch

    def larger(trainer, indices, number):
        """In the third step the machine is full, and the batch is of many times the size."""
        if next(step):
            resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes + 2**30, hard))
            found = usual(trainer, indices, number)
            return {**found, "images": found["images"].repeat(16000, 1, 1, 1)}
        return usual(trainer, indices, number)

    monkeypatch.setattr(Trainer, "batch", larger)
    try:
        record = train()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert record.status == "oom", record.reason
    assert "\n" not in record.reason and "allocate" in record.reason
    assert {key: record.failure[key] for key in ("rank", "step", "phase")} == {"rank": 0, "step": 3, "phase": "forward"}
    assert record.steps == len(record.step_seconds) == 2
    assert record.peak_resident_bytes > 0


def test_a_training_that_diverges_keeps_what_it_measured_and_a_ruined_last_step_is_a_divergence(monkeypatch):
    usual = WORKLOADS["vgg-digits"]
    monkeypatch.setitem(WORKLOADS, "vgg-digits", replace(usual, learning_rate=1e20))
    record = train()
    assert record.status == "diverged" and "nan" in record.reason.lower()
    assert 0 < record.steps < 4 and record.failure["step"] == record.steps + 1

    def ruin(trainer):
        """Where the last evaluation would be, which may see nothing: accuracy is finite all the same."""
        next(trainer.model.parameters()).data.view(-1)[0] = torch.nan
        return {trainer.task.metric: 0.5}

    monkeypatch.setitem(WORKLOADS, "vgg-digits", usual)
    monkeypatch.setattr(Trainer, "evaluate", ruin)
    record = train(replace(CELL, steps=1))
    assert record.status == "diverged"
    assert record.reason == "features.0.weight held NaN or infinity after the last of 1 steps"


def _other_code(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["content"]["resireduce"] = "another"
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_other_code, "cannot be used (of other content: resireduce); the cell starts afresh"),
        (lambda folder: os.truncate(folder / "step2.rank0.pt", 999), "cannot be used ("),
        (lambda folder: (folder / "step2.shared.pt").unlink(), "cannot be used ([Errno 2] No such file or directory"),
    ],
    ids=["code", "cut off", "missing"],
)
def test_a_checkpoint_that_cannot_be_used_is_named_and_the_cell_starts_afresh(
    tmp_path, capsys, monkeypatch, spoil, says
):
    _stop_after(monkeypatch, 2, tmp_path)
    spoil(tmp_path)
    record = train(folder=tmp_path, content={"resireduce": "this"})
    said = [line for line in capsys.readouterr().err.splitlines() if "checkpoint" in line]
    assert record.status == "ok" and record.provenance["resumed_at_steps"] == []
    assert len(said) == 1 and said[0].startswith(f"{CELL.name}: the checkpoint in {tmp_path} {says}")


def _stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, folder: Path) -> CellResult:
    """Leave the checkpoint of a cell that was stopped by a signal after so many steps."""
    monkeypatch.setattr("benchmarks.training.deadline.LOOK_SECONDS", 0.0)
    watch = Watch(Limits(folder=folder, content={"resireduce": "this"}), signals=[])
    usual = Watch.before_step

    def before_step(self, step, *rest):
        if self is watch and step == steps:
            watch.signals.append(signal.SIGTERM)
        usual(self, step, *rest)

    monkeypatch.setattr(Watch, "before_step", before_step)
    outcome = run_rank(CELL, LocalCommunicator(), None, Path("data"), watch=watch)
    record = to_result(CELL, [outcome], 1.0, None)
    assert record.reason == f"stopped by SIGTERM at step {steps} of 4; run again to go on"
    return record


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, capsys, monkeypatch):
    """And the training goes on from the one before."""
    _stop_after(monkeypatch, 2, tmp_path)
    monkeypatch.setattr("torch.save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    record = train(folder=tmp_path, content={"resireduce": "this"}, save_every_seconds=1e-9)
    assert record.status == "ok" and "No space left on device" in capsys.readouterr().err
    assert record.provenance["resumed_at_steps"] == [2]
    assert record.wall_seconds > 1.0, "the time of the run before counts"
    assert saved_step(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "step2.rank0.pt", "step2.shared.pt"]


def test_a_deadline_that_is_over_ends_with_a_record_of_an_unfinished_cell(tmp_path):
    spec, folder = tmp_path / "spec.json", tmp_path / "run"
    spec.write_text(json.dumps(CELL.to_dict()))
    output = folder / f"cells/{CELL.name}.json"
    (tmp_path / "run").mkdir()
    (folder / "config.json").write_text(json.dumps({"matrix": [CELL.to_dict()]}))
    assert main(["run", "--cell", str(spec), "--output", str(output), "--deadline", "0.5"]) == 1
    failed = CellResult.load(output.with_suffix(".failed.json"))
    assert (failed.status, failed.reason) == ("timeout", "had not stopped by its deadline; run again")
    assert load_run(folder).holes[CELL].status == "unfinished"
    assert not output.exists()


def test_the_rank_that_was_lost_explains_the_others():
    lost_peer = Outcome(status="error", reason="RuntimeError: gloo", failure={"lost_peer": True})
    killed = Outcome(status="error", reason="rank 1 was killed by SIGKILL")
    assert overall([lost_peer, killed]) == killed
    assert overall([lost_peer, Outcome(status="oom", reason="x")]).status == "oom"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "oom"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"), "error"),
        (ConnectionError("rank 0 waited 9 s in /tmp/x: a rank did not come (1)"), "error"),
    ],
)
def test_an_exception_says_what_happened(error, status):
    found, reason, failure = describe(error)
    assert found == status and reason and "\n" not in reason
    assert failure.get("lost_peer", False) == any(it in str(error) for it in ("gloo", "Horovod", "rank 0"))


def test_kills_of_the_kernel_are_counted_in_either_version_of_control_groups(tmp_path):
    for lines, file in (
        ("0::/job_7/step_0\n", "job_7/step_0/memory.events"),
        ("4:memory:/job_7\n0::/\n", "memory/job_7/memory.oom_control"),
    ):
        (tmp_path / "cgroup").write_text(lines)
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("under_oom 0\noom_kill 3\n")
        assert count_oom_kills(tmp_path / "cgroup", tmp_path) == 3
    assert count_oom_kills(tmp_path / "none", tmp_path) is None

"""The doctor's checks that start ranks: for real where a CPU is enough, else with launchers that stand in."""

import json
import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.doctor import machine_checks as checks
from benchmarks.doctor.machine_checks import FAILED, NOT_RUN, OK, WARNING, Facts, Gpu, judge_ranks, last_words
from benchmarks.launching.processes import MARK, Ended, Job, run_together
from tests.findings import only

SECONDS = 60.0


def reports(*values: tuple[int, int, bool], **more: Any) -> str:
    lines = ({"rank": rank, "size": size, "right": right, **more} for rank, size, right in values)
    return "".join(f"[0]<stdout>:{MARK}{json.dumps(line)}\n" for line in lines)


MET = reports((1, 2, True), (0, 2, True))


def python(code: str) -> Job:
    return Job([sys.executable, "-c", code], dict(os.environ))


def answers(*ended: Ended) -> Any:
    """A way to run jobs that ends like this; what was to be run is in `jobs`."""
    queue = list(ended)

    def run(jobs, timeout_seconds):
        run.jobs += jobs
        return [queue.pop(0) for _ in jobs]

    run.jobs = []
    return run


def test_a_process_that_hangs_ends_with_all_that_it_started_once_another_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.launching.processes.GRACE_SECONDS", 1.5)
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    fails = "import sys, time; print('out', flush=True); print('err', file=sys.stderr); time.sleep(1); sys.exit(3)"
    begin = time.monotonic()
    hung, failed = run_together([python(parent), python(fails)], 60)
    assert (hung.code, failed.code, sorted(failed.output.split())) == (None, 3, ["err", "out"])
    assert time.monotonic() - begin < 20
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    time.sleep(0.2)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


CRASH = "[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:ImportError: libmpi.so.40: cannot open\n"
CRASH += "Process 1 exit with status code 1.\n"
CRASH += "RuntimeError: Horovod detected that one or more processes exited with non-zero status\n"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ([Ended(0, reports((0, 1, True), (0, 1, True)))], "ranks [0, 0] met, of worlds of [1], and not 2 ranks"),
        ([Ended(0, reports((0, 2, True), (1, 2, False)))], "the sum is wrong on rank 1"),
        ([Ended(0, f'{reports((0, 2, True))}a warning: {MARK}{{"rank": 1, "si')], "ranks [0] met"),
        ([Ended(None, reports((0, 2, True)))], "not done in time, 1 of 2 ranks came to the end; --timeout"),
        ([Ended(1, MET + "ValueError: at the end\n")], "ValueError: at the end"),
        ([Ended(None, ""), Ended(1, "RuntimeError: Connection refused\n")], "RuntimeError: Connection refused"),
        ([Ended(1, CRASH)], "what: ImportError: libmpi.so.40: cannot open -> a cure"),
        (
            [Ended(1, "NCCL WARN Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes")],
            "too little shared memory: NCCL WARN Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes -> "
            "docker run --shm-size=1g",
        ),
    ],
)
def test_ranks_that_did_not_meet_say_how(ended, words):
    finding = judge_ranks("x", "what", ended, 2, "a cure")
    assert finding is not None and words in only([finding], FAILED)
    assert last_words("starting\nsrun: error: Unable to allocate\nbye\n") == "srun: error: Unable to allocate"


def test_gloo_adds_up_here_and_is_a_failure_where_it_does_not():
    assert "is right" in only(checks.check_gloo(SECONDS), OK)
    closed = Ended(1, "RuntimeError: [enforce fail at device.cc] Unable to find address for: lo\n")
    run = answers(closed, closed)
    assert "Unable to find address for: lo -> ip link set lo up" in only(checks.check_gloo(SECONDS, run), FAILED)
    assert [job.environment["RANK"] for job in run.jobs] == ["0", "1"]


@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
def test_horovod_adds_up_here():
    assert "Gloo yes" in only(checks.check_horovod(SECONDS), OK)


def test_horovod_says_what_it_was_built_with_and_that_the_machine_s_name_has_no_address(monkeypatch):
    assert "make horovod" in only(checks.check_horovod(SECONDS, installed=False), NOT_RUN)
    for nccl, gpus, status, words in ((22705, 2, OK, "MPI yes, Gloo yes, NCCL yes"), (0, 2, WARNING, "without NCCL")):
        built = {"mpi": True, "gloo": True, "nccl": nccl}
        run = answers(Ended(0, reports((0, 2, True), (1, 2, True), built=built)))
        assert words in only(checks.check_horovod(SECONDS, gpus, True, run), status)
    crashed = Ended(1, "RuntimeError: Horovod detected that one or more processes exited\n")
    monkeypatch.setattr("socket.gethostname", lambda: "nosuch.invalid")
    text = only(checks.check_horovod(SECONDS, 0, True, answers(crashed)), FAILED)
    assert "nosuch.invalid, has no address" in text and "--add-host nosuch.invalid:127.0.0.1" in text


def test_an_all_reduce_runs_on_two_gpus_or_on_the_only_one_and_is_needed_only_if_asked_for():
    built = Facts(torch="2.10.0", cuda="12.8", nccl="2.27.5")
    gpu = Gpu("NVIDIA H100", (9, 0), 80 << 30)
    run = answers(Ended(0, reports((0, 2, True))), Ended(0, reports((1, 2, True))))
    said = only(checks.check_nccl(replace(built, gpus=(gpu, gpu)), 9, run=run), OK)
    assert said.startswith("all-reduce over 2 GPUs is right, by NCCL 2.27.5")
    assert [job.environment["RANK"] for job in run.jobs] == ["0", "1"]
    one = replace(built, gpus=(gpu,))
    assert "over 1 GPU is" in only(checks.check_nccl(one, 9, run=answers(Ended(0, reports((0, 1, True))))), OK)
    only(checks.check_nccl(built, 9, run=answers()), NOT_RUN)
    only(checks.check_nccl(built, 9, needed=True, run=answers()), FAILED)

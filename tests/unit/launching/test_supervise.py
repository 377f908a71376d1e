"""The first process in a container, and the client that talks to it, with no container between them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.launching.containers.runtime import Client
from benchmarks.launching.outcomes import outcome_of

SUPERVISE = [sys.executable, "-m", "benchmarks.launching.supervise", sys.executable, "-c"]
WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(60)
"""
LEAVES_ONE = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*SUPERVISE, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_end_of_the_command_is_the_end_of_it_and_a_signal_reaches_it():
    for code, status in (("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)):
        with start(code) as process:
            assert process.wait(20) == status
    for send in (
        lambda process: process.terminate(),
        lambda process: os.write(process.stdin.fileno(), bytes([signal.SIGTERM])),
    ):
        with start(WAITS) as process:
            assert process.stdout.readline() == b"up\n"
            send(process)
            assert process.wait(20) == 7


def test_without_a_launcher_the_command_and_what_it_started_end():
    with start(LEAVES_ONE) as process:
        grandchild = int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(20) == 128 + signal.SIGKILL
    deadline = time.monotonic() + 10
    while _lives(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(grandchild)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(client: Client) -> Client:
    deadline = time.monotonic() + 20
    while client.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return client


def test_what_an_engine_says_is_shown_and_is_the_reason_if_it_could_not_start(tmp_path, capsys):
    said = "Unable to find it\ndocker: Error response from daemon:  no  such thing\n\nRun 'docker run --help' for more"
    client = end(Client(["sh", "-c", f'echo "{said}" >&2; exit 125'], dict(os.environ), tmp_path / "log"))
    assert client.complaint() == "docker: Error response from daemon: no such thing"
    outcome = outcome_of(tmp_path, 1, client)
    assert outcome.status == "error" and outcome.reason == (
        "rank 1 was not started: docker: Error response from daemon: no such thing; "
        "python -m benchmarks doctor says what is wrong with the machine"
    )
    client.close()
    assert "Unable to find it" in capsys.readouterr().err

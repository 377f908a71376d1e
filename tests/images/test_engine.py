"""A Docker Engine of our own: it needs root. `make test-images`."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.images import engine as module
from benchmarks.images.engine import HOST, engine
from benchmarks.launching.containers.containers import command
from benchmarks.rig import own_engine
from benchmarks.rig.own_engine import OwnEngine

USE = """
import sys, time
from pathlib import Path
from benchmarks.images import engine
from benchmarks.rig import own_engine
engine.find_running = lambda: None
own_engine.cache_folder = lambda: Path(sys.argv[1])
with engine.engine() as client:
    print(client.version()["Version"], flush=True)
    time.sleep(600)
"""


def runs(own: OwnEngine) -> bool:
    try:
        os.kill(int(own.pid_file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def test_it_is_started_where_none_runs_and_stopped_afterwards_also_that_of_a_killed_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own is in a folder of the test, with a name that is short enough for its sockets."""
    monkeypatch.setattr(module, "find_running", lambda: None)
    with tempfile.TemporaryDirectory(prefix="own") as folder:
        monkeypatch.setattr(own_engine, "cache_folder", lambda: Path(folder))
        own, earlier = OwnEngine(Path(folder) / "engine"), os.environ.get(HOST)
        with engine() as client:
            assert client.ping() and runs(own)
            assert os.environ[HOST] == f"unix://{own.socket}"
            line = [*command("docker"), "images", "--quiet"]
            assert subprocess.check_output(line, text=True) == ""
        assert not runs(own) and os.environ.get(HOST) == earlier
        with subprocess.Popen([sys.executable, "-c", USE, folder], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None and other.stdout.readline().strip()
            other.send_signal(signal.SIGKILL)
        assert runs(own)
        with engine() as client:
            assert client.ping()
        assert not runs(own)


def test_a_command_has_the_engine_while_it_runs() -> None:
    line = [sys.executable, "-m", "benchmarks", "image", "engine", "--"]
    started = time.monotonic()
    done = subprocess.run([*line, "docker", "version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Server" in done.stdout, done.stderr
    assert subprocess.run([*line, "sh", "-c", "exit 7"], capture_output=True, check=False).returncode == 7
    assert time.monotonic() - started < 120

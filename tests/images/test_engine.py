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
from benchmarks.images.engine import HOST, answers, engine
from benchmarks.launching.containers.runtime import command
from benchmarks.rig import own_engine

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


def test_it_is_started_where_none_runs_and_ends_with_its_process_even_a_killed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own is in a folder of the test, with a name that is short enough for its sockets."""
    monkeypatch.setattr(module, "find_running", lambda: None)
    with tempfile.TemporaryDirectory(prefix="own") as folder:
        monkeypatch.setattr(own_engine, "cache_folder", lambda: Path(folder))
        address, earlier = f"unix://{folder}/engine/docker.sock", os.environ.get(HOST)
        with engine() as client:
            assert client.ping() and os.environ[HOST] == address
            line = [*command("docker"), "images", "--quiet"]
            assert subprocess.check_output(line, text=True) == ""
            with engine() as same:
                assert same.ping()
            assert client.ping(), "it is stopped by the one that started it"
        assert not answers(address) and os.environ.get(HOST) == earlier
        with subprocess.Popen([sys.executable, "-c", USE, folder], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None and other.stdout.readline().strip()
            assert answers(address)
            other.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while Path(folder, "engine/docker.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not answers(address)
        with engine() as client:
            assert client.ping()


def test_a_command_has_the_engine_while_it_runs() -> None:
    line = [sys.executable, "-m", "benchmarks", "image", "engine", "--"]
    started = time.monotonic()
    done = subprocess.run([*line, "docker", "version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Server" in done.stdout, done.stderr
    assert subprocess.run([*line, "sh", "-c", "exit 7"], capture_output=True, check=False).returncode == 7
    assert time.monotonic() - started < 120

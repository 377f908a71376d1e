import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import APIError
from requests.exceptions import ConnectionError as Refused
from urllib3.exceptions import ProtocolError

from benchmarks.images import engine as module
from benchmarks.images import image_command as cli
from benchmarks.images.engine import engine, find_running
from benchmarks.launching.containers import containers as tools
from benchmarks.rig import own_engine
from benchmarks.rig.own_engine import OwnEngine
from resireduce.errors import ConfigError


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: names of sockets have 107 characters at most, and pytest has a folder for each of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_an_address_that_nobody_answers_at_is_told_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("unix:///nosuch.sock", "tcp://127.0.0.1:1", "nonsense", "tcp://localhost:abc", "tcp://::1::"):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(ConfigError, match=f"DOCKER_HOST: no engine answers at '{address}'"), engine():
            pass


def test_podman_is_told_how_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODMAN_HOST", "unix:///nosuch.sock")
    assert find_running("podman") is None
    match = "'podman' does not answer; start its service: podman system service"
    with pytest.raises(ConfigError, match=match), engine("podman"):
        pass


def test_without_an_engine_and_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_running", lambda kind: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "made"))
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root can start one"), engine():
        pass
    assert not (tmp_path / "made").exists()  # it may be nobody's, who can make none


def test_a_program_that_is_nowhere_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="podman: not on PATH; install it"):
        tools.command("podman")
    with pytest.raises(ConfigError, match="there is no apt-get"):
        tools.command("skopeo")
    assert list((tmp_path / "resireduce/tools").iterdir()) == [tmp_path / "resireduce/tools/.lock"]


@pytest.mark.parametrize(("capabilities", "wrapped"), [("1ffffffffff", False), ("1fffeffffff", True)])
def test_a_root_that_lacks_a_capability_runs_apptainer_in_a_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capabilities: str, wrapped: bool
) -> None:
    for name in ("apptainer", "unshare"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    texts = {"status": f"Name:\tx\nCapEff:\t{capabilities}\n", "cap_last_cap": "40\n"}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools.os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools.Path, "read_text", lambda self, **_: texts[self.name])
    unshare = [str(tmp_path / "unshare"), "--user", "--map-root-user"] if wrapped else []
    assert tools.command("apptainer") == [*unshare, str(tmp_path / "apptainer")]
    assert tools.command("apptainer", wrapped=False) == [str(tmp_path / "apptainer")]


def left_engine(folder: Path, number: int) -> OwnEngine:
    (folder / "docker.pid").write_text(str(number))
    return OwnEngine(folder)


def test_the_number_of_a_killed_engine_is_nobody_elses(tmp_path: Path) -> None:
    begun = time.monotonic()
    own = left_engine(tmp_path, os.getpid())
    own_engine._stop(own)  # this process, if it were taken for the engine
    assert time.monotonic() - begun < 1
    line = [sys.executable, "-c", "import time; time.sleep(60)", str(own.pid_file)]
    with subprocess.Popen(line) as process:
        left_engine(tmp_path, process.pid)
        while str(own.pid_file).encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        assert own_engine._process(own.pid_file, own.pid_file) == process.pid
        os.kill(process.pid, signal.SIGTERM)


def test_what_a_killed_engine_left_does_not_keep_the_next_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = left_engine(tmp_path, os.getpid())
    containerd = tmp_path / "exec/containerd/containerd.pid"
    containerd.parent.mkdir(parents=True)
    containerd.write_text(str(os.getpid()))
    pruned, there = list[bool](), iter([False, True])
    client = SimpleNamespace(containers=SimpleNamespace(prune=lambda: pruned.append(True)), close=lambda: None)
    monkeypatch.setattr(
        own_engine, "command", lambda name: ["sh", "-c", f"test ! -e {own.pid_file} && exec sleep 5", "sh"]
    )
    monkeypatch.setattr(own_engine, "answers", lambda address: next(there))
    monkeypatch.setattr(own_engine.docker, "DockerClient", lambda **_: client)
    monkeypatch.setattr(own_engine.time, "sleep", lambda seconds: None)
    own_engine._start(own)
    assert not own.pid_file.exists() and not containerd.exists() and pruned == [True]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProtocolError("Connection broken: IncompleteRead"), "Connection broken"),
        (Refused("('Connection aborted.', RemoteDisconnected())"), "Connection aborted"),
        (APIError("500 Server Error for http+docker://x?long=request", explanation="no space\nleft"), "no space left"),
    ],
)
def test_an_engine_that_goes_away_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    monkeypatch.setattr(module, "find_running", lambda kind: "unix:///nosuch.sock")
    monkeypatch.setattr(own_engine.docker, "DockerClient", lambda **_: SimpleNamespace(close=lambda: None))
    with pytest.raises(ConfigError, match=f"^engine: .*{said}.*look at its log") as raised, engine():
        raise error
    assert "\n" not in str(raised.value) and "http+docker" not in str(raised.value)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_to_end_a_command_clears_away_what_is_its_own(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cleared = list[bool]()

    def act(args: object) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(1)
        finally:
            cleared.append(True)
        return 0

    before = signal.getsignal(number)
    monkeypatch.setitem(cli.ACTIONS, "list", act)
    with pytest.raises(SystemExit) as ended:
        cli.main(SimpleNamespace(action="list"))  # type: ignore[arg-type]
    assert ended.value.code == 128 + number and cleared == [True] and signal.getsignal(number) is before

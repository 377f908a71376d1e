"""Which engine is taken, and what becomes of one that goes away; tests/images has a real one."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from docker.errors import APIError
from urllib3.exceptions import ProtocolError

from benchmarks.images import engine as module
from benchmarks.images import image_command as cli
from benchmarks.images.engine import engine
from resireduce.errors import ConfigError


def test_an_address_that_nobody_answers_at_is_told_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("unix:///nosuch.sock", "nonsense", "tcp://localhost:abc"):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(ConfigError, match=f"DOCKER_HOST: no engine answers at '{address}'"), engine():
            pass
    monkeypatch.setattr(module, "find_running", lambda: None)
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root can start one"), engine():
        pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProtocolError("Connection broken: IncompleteRead"), "Connection broken"),
        (APIError("500 Server Error for http+docker://x?long=request", explanation="no space\nleft"), "no space left"),
    ],
)
def test_an_engine_that_goes_away_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    monkeypatch.setattr(module, "find_running", lambda: "unix:///nosuch.sock")
    monkeypatch.setattr(module.docker, "DockerClient", lambda **_: SimpleNamespace(close=lambda: None))
    with pytest.raises(ConfigError, match=f"^engine: .*{said}.*look at its log") as raised, engine():
        raise error
    assert "\n" not in str(raised.value) and "http+docker" not in str(raised.value)


def test_asked_to_end_a_command_clears_away_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = list[bool]()

    def act(args: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(1)
        finally:
            cleared.append(True)
        return 0

    before = signal.getsignal(signal.SIGHUP)
    monkeypatch.setitem(cli.ACTIONS, "build", act)
    with pytest.raises(SystemExit) as ended:
        cli.main(SimpleNamespace(action="build"))  # type: ignore[arg-type]
    assert ended.value.code == 128 + signal.SIGHUP and cleared == [True]
    assert signal.getsignal(signal.SIGHUP) is before

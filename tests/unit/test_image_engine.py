from pathlib import Path

import pytest

from benchmarks.images import engine as module
from benchmarks.images import tools
from benchmarks.images.engine import engine, find_running
from resireduce.errors import ConfigError


def test_an_address_that_nobody_answers_at_is_told_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("unix:///nosuch.sock", "tcp://127.0.0.1:1", "nonsense"):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(ConfigError, match=f"DOCKER_HOST: no engine answers at '{address}'"), engine():
            pass


def test_podman_is_told_how_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODMAN_HOST", "unix:///nosuch.sock")
    assert find_running("podman") is None
    match = "'podman' does not answer; start its service: podman system service"
    with pytest.raises(ConfigError, match=match), engine("podman"):
        pass


def test_an_unknown_engine_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"engine: 'dokcer'.*docker, podman"), engine("dokcer"):
        pass


def test_without_an_engine_and_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_running", lambda kind: None)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root can start one"), engine():
        pass


def test_a_folder_too_deep_for_a_socket_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_running", lambda kind: None)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / ("x" * 70))
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="too long for its sockets; set XDG_CACHE_HOME"), engine():
        pass


def test_a_program_that_is_nowhere_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="podman: not on PATH; install it"):
        tools.command("podman")
    with pytest.raises(ConfigError, match="there is no apt-get"):
        tools.command("skopeo")
    assert list((tmp_path / "resireduce/tools").iterdir()) == [tmp_path / "resireduce/tools/.lock"]


def test_a_program_of_the_machine_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "skopeo").write_text("#!/bin/sh\n")
    (tmp_path / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.command("skopeo") == [str(tmp_path / "skopeo")]


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

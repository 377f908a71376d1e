"""malloc's settings: ranks have them whoever starts them, and records say so."""

import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.launching.containers import containers
from benchmarks.launching.containers.runtime import passed
from benchmarks.launching.launch import starting
from benchmarks.launching.processes import MALLOC, THRESHOLD, with_malloc
from benchmarks.training.measure.rank_facts import relevant_environment


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MALLOC:
        monkeypatch.delenv(name, raising=False)


def started(folder: Path, **variables: str) -> list[str]:
    """What a process sees that is started as ranks are."""
    lines = (
        f"import os; print([os.environ.get(name) for name in {list(MALLOC)}], file=open({str(folder / 'out')!r}, 'w'))"
    )
    with starting(None, folder, [], []) as start, start(["-c", lines], variables) as process:
        while process.poll() is None:
            time.sleep(0.05)
    found: list[str] = eval((folder / "out").read_text())
    return found


def test_ranks_have_the_settings(tmp_path: Path) -> None:
    assert started(tmp_path) == list(MALLOC.values())


def test_settings_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THRESHOLD, "65536")
    assert started(tmp_path) == ["65536", *list(MALLOC.values())[1:]]
    assert with_malloc({THRESHOLD: "1"}, {}) == {**MALLOC, THRESHOLD: "1"}


def test_ranks_in_containers_have_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, str]] = []

    @contextmanager
    def stand_in(*_: object):
        yield lambda arguments, variables: seen.append(variables)

    monkeypatch.setattr(containers, "containers", stand_in)
    with starting(object(), tmp_path, [], []) as start:  # type: ignore[arg-type]
        start(["-m", "x"], {"RANK": "0"})
    assert seen == [{**MALLOC, "RANK": "0"}]
    assert passed(seen[0]) == sorted(seen[0]), "all of it reaches the container"


def test_records_say_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MALLOC.items():
        monkeypatch.setenv(name, value)
    assert relevant_environment().items() >= MALLOC.items()

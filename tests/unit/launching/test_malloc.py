"""malloc's settings: ranks have them whoever starts them, records say so, and freed memory goes back."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.doctor import machine_checks as doctor
from benchmarks.doctor.child import MARK, Ended, Job
from benchmarks.doctor.finding import OK, WARNING
from benchmarks.launching.containers import containers
from benchmarks.launching.containers.runtime import passed
from benchmarks.launching.launch import starting
from benchmarks.launching.processes import MALLOC, THRESHOLD, with_malloc
from benchmarks.training.measure.rank_facts import relevant_environment

GLIBC = sys.platform == "linux" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MALLOC:
        monkeypatch.delenv(name, raising=False)


# --- ranks ---


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


# --- the doctor ---


@pytest.mark.skipif(not GLIBC, reason="glibc's malloc")
def test_freed_memory_goes_back_with_the_settings_alone() -> None:
    (found,) = doctor.check_malloc(60.0)
    assert found.status == OK
    assert found.detail.startswith("of 128 MiB freed, 0 MiB stay resident in ranks of cells, 128 MiB here"), found
    assert all(f"{name}={value}" in found.detail for name, value in MALLOC.items())


@pytest.mark.skipif(not GLIBC, reason="glibc's malloc")
def test_a_threshold_that_is_too_high_is_a_warning() -> None:
    (found,) = doctor.check_malloc(60.0, {**os.environ, THRESHOLD: str(1 << 30)})
    assert (found.status, found.cure) == (WARNING, f"unset {THRESHOLD}")


def kept(*nbytes: int):
    """Stands in for the processes that are started, one after another."""
    left = list(nbytes)

    def run(jobs: Sequence[Job], _: float) -> list[Ended]:
        return [Ended(0, f'{MARK}{{"kept_bytes": {left.pop(0)}}}\n') for _ in jobs]

    return run


@pytest.mark.parametrize(("shell", "words"), [(0, "0 MiB here"), (128 << 20, "for training of your own")])
def test_a_shell_without_the_settings_is_told_of_them(shell: int, words: str) -> None:
    (found,) = doctor.check_malloc(1.0, {}, kept(shell, 0), "linux")
    assert found.status == OK and words in found.detail

"""The doctor's checks of the machine: packages, room, memory."""

from pathlib import Path

import pytest

from benchmarks.doctor import machine_checks as checks
from benchmarks.doctor.machine_checks import FAILED, NOT_RUN, OK, WARNING, Facts
from tests.findings import only

GIB = 1 << 30


def test_torch_must_load() -> None:
    assert "torch 2.13.0+cpu, resireduce " in only([checks.check_packages(Facts(torch="2.13.0+cpu"))], OK)
    broken = Facts(torch_error="OSError: libcudart")
    assert "torch cannot be loaded: OSError: libcudart" in only([checks.check_packages(broken)], FAILED)


def test_results_must_have_a_writable_folder_with_room(tmp_path: Path) -> None:
    for free, status in ((20 * GIB, OK), (18 * GIB - 1, WARNING), (GIB - 1, FAILED)):
        assert f"free in {tmp_path}" in only([checks.check_disk(tmp_path / "results" / "runs", free)], status)
    assert "/proc cannot be written" in only([checks.check_disk(Path("/proc/results"))], FAILED)
    assert list(tmp_path.iterdir()) == [], "the doctor makes no folders"


def test_home_and_the_temporary_folder_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [it.status for it in checks.check_folders({"HOME": str(tmp_path)})] == [OK, OK]
    monkeypatch.setattr(checks.tempfile, "gettempdir", lambda: "/proc")
    home, temporary = checks.check_folders({"HOME": "/proc"})
    assert "HOME: /proc cannot be written" in only([home], FAILED) and "--tmpfs /tmp" in only([temporary], FAILED)
    assert "HOME: is not set -> docker run -e HOME=/tmp" in only(checks.check_folders({})[:1], FAILED)


def test_shared_memory_matters_most_between_gpus(tmp_path: Path) -> None:
    for free, gpus, status in ((GIB, 8, OK), (GIB - 1, 0, WARNING), (64 << 20, 1, WARNING), (64 << 20, 2, FAILED)):
        said = only([checks.check_shared_memory(gpus, tmp_path, free)], status)
        assert status == OK or "--shm-size=1g" in said
    only([checks.check_shared_memory(0, Path("/proc"))], FAILED)


def test_memory_is_what_linux_says_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    only([checks.check_memory(meminfo)], NOT_RUN)
    for gib, status in ((16, OK), (7, WARNING), (1, FAILED)):
        meminfo.write_text(f"MemTotal: 33554432 kB\nMemAvailable:   {gib * 2**20} kB\n")
        assert f"{gib}.0 GiB available" in only([checks.check_memory(meminfo)], status)

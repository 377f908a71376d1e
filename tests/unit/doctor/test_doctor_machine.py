"""The doctor's checks of the machine: packages, room, memory."""

from pathlib import Path

from benchmarks.doctor import machine_checks as checks
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING
from benchmarks.doctor.gpu_checks import Facts
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


def test_memory_is_what_linux_says_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    only([checks.check_memory(meminfo)], NOT_RUN)
    for gib, status in ((16, OK), (7, WARNING), (1, FAILED)):
        meminfo.write_text(f"MemTotal: 33554432 kB\nMemAvailable:   {gib * 2**20} kB\n")
        assert f"{gib}.0 GiB available" in only([checks.check_memory(meminfo)], status)

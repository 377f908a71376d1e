"""The doctor's checks of the machine: packages, folders, memory."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.doctor import machine_checks as checks
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING, Finding
from benchmarks.doctor.gpu_checks import Facts
from resireduce.private import NEWEST_TESTED
from tests.findings import only

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
TORCH = Facts(torch="2.13.0+cpu")
NOWHERE = Path("/nowhere")


def test_versions_are_those_that_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low = ".".join(map(str, checks.TORCH[0]))
    assert Requirement(f"torch>={low}").specifier == Requirement(project["dependencies"][0]).specifier
    assert checks.TORCH[1] == NEWEST_TESTED
    assert project["requires-python"] == f">={'.'.join(map(str, checks.PYTHON))}"


@pytest.mark.parametrize(
    ("facts", "python", "status", "words"),
    [
        (TORCH, (3, 11, 2), OK, "torch 2.13.0+cpu, resireduce "),
        (Facts(torch="99.0.0a0+git1"), (3, 11, 2), WARNING, "99.0.0a0+git1 is newer than 2.15, the newest tested"),
        (Facts(torch="2.8.1"), (3, 11, 2), FAILED, "torch 2.8.1; 2.9 or newer is needed"),
        (Facts(torch_error="OSError: libcudart"), (3, 11, 2), FAILED, "torch cannot be loaded: OSError: libcudart"),
        (TORCH, (3, 10, 9), FAILED, "Python 3.10.9; 3.11 or newer"),
    ],
)
def test_versions_that_do_not_work_are_a_failure(facts, python, status, words):
    versions, lock = checks.check_packages(facts, NOWHERE, python)
    assert words in only([versions], status)
    assert lock.status == NOT_RUN, "this is not an image of the suite"


def test_an_image_must_hold_what_its_lock_says(tmp_path):
    def finding(**installed: str) -> Finding:
        def version(name: str) -> str:
            if name not in installed:
                raise PackageNotFoundError(name)
            return installed[name]

        return checks.check_lock(tmp_path / "lock", version)

    lines = [f"{pin} --hash=sha256:{'0' * 64}\n" for pin in ("torch==2.10.0+cu128", "numpy==2.4.6")]
    (tmp_path / "lock").write_text("".join(lines))
    assert finding(torch="2.10.0+cu128", numpy="2.4.6+local").status == OK
    assert "torch 2.10.0 instead of 2.10.0+cu128, numpy is missing" in only([finding(torch="2.10.0")], FAILED)


def test_folders_must_be_there_writable_and_large_enough(tmp_path):
    assert [it.status for it in checks.check_home({"HOME": str(tmp_path)})] == [OK, OK]
    for value in ({}, {"HOME": "/proc"}):
        assert "-e HOME=/tmp" in only(checks.check_home(value)[:1], FAILED)
    assert "--tmpfs /tmp" in only(checks.check_home({"HOME": "/"}, lambda: "/proc")[1:], FAILED)
    for free, status in ((20 * GIB, OK), (18 * GIB - 1, WARNING), (GIB - 1, FAILED)):
        results, _ = checks.check_disk(tmp_path / "results" / "runs", lambda folder, free=free: free)
        assert f"free in {tmp_path}" in only([results], status)
    assert "/proc cannot be written" in only(checks.check_disk(Path("/proc/results"))[:1], FAILED)
    assert list(tmp_path.iterdir()) == [], "the doctor makes no folders"


def test_shared_memory_matters_most_between_gpus(tmp_path):
    for free, gpus, status in ((GIB, 8, OK), (GIB - 1, 0, WARNING), (64 << 20, 1, WARNING), (64 << 20, 2, FAILED)):
        said = only(checks.check_shared_memory(gpus, tmp_path, free), status)
        assert status == OK or "--shm-size=1g" in said
    only(checks.check_shared_memory(0, NOWHERE), NOT_RUN)
    only(checks.check_shared_memory(0, Path("/proc")), FAILED)


def test_memory_is_the_machines_or_that_of_the_job_around(tmp_path):
    """The machine has 16 GiB available; the limits are those of control groups of version 2, then of version 1."""
    files = {"meminfo": tmp_path / "meminfo", "cgroups": tmp_path / "cgroup", "mount": tmp_path / "fs"}
    files["meminfo"].write_text(f"MemTotal: 33554432 kB\nMemAvailable:   {16 * 2**20} kB\n")
    files["cgroups"].write_text("0::/job/step\n")
    (files["mount"] / "job/step").mkdir(parents=True)
    for limit, used, status, words in (
        ("max", 0, OK, "16.0 GiB available -> None"),
        (8 * GIB, GIB, WARNING, "7.0 GiB available of this job or container"),
        (2 * GIB, GIB, FAILED, "1.0 GiB available of this job or container"),
    ):
        (files["mount"] / "job/memory.max").write_text(f"{limit}\n")
        (files["mount"] / "job/memory.current").write_text(f"{used}\n")
        assert words in only(checks.check_memory(**files), status)
    files["cgroups"].write_text("4:cpu:/x\n2:memory:/docker/abc\n0::/\n")  # a container sees its own group as the root
    (files["mount"] / "memory").mkdir()
    (files["mount"] / "memory/memory.limit_in_bytes").write_text(str(4 * GIB))
    (files["mount"] / "memory/memory.usage_in_bytes").write_text(str(GIB))
    assert "3.0 GiB" in only(checks.check_memory(**files), WARNING)

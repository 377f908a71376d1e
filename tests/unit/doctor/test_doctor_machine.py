"""The doctor's checks of the machine: packages, folders, memory."""

import sys
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


# --- findings ---


@pytest.mark.parametrize("values", [("x", "fine", "a"), ("x", WARNING, "a"), ("x", FAILED, "a\nb", "c"), ("x", OK, "")])
def test_a_finding_has_a_status_one_line_and_a_cure(values):
    with pytest.raises(AssertionError):
        Finding(*values)


# --- packages ---


def test_versions_are_those_that_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low = ".".join(map(str, checks.TORCH[0]))
    assert Requirement(f"torch>={low}").specifier == Requirement(project["dependencies"][0]).specifier
    assert checks.TORCH[1] == NEWEST_TESTED
    assert project["requires-python"] == f">={'.'.join(map(str, checks.PYTHON))}"


def test_packages_of_this_machine_are_ok():
    versions, lock = checks.check_packages(TORCH, Path("/nowhere"))
    assert versions.status == OK and "torch 2.13.0+cpu, resireduce " in versions.detail
    assert (lock.status, lock.detail) == (NOT_RUN, "no /nowhere: this is not an image of the suite")
    newer, _ = checks.check_packages(Facts(torch="99.0.0a0+git1"), Path("/nowhere"))
    assert newer.status == WARNING and "99.0.0a0+git1 is newer than 2.15, the newest tested" in newer.detail


@pytest.mark.parametrize(
    ("facts", "python", "words"),
    [
        (Facts(torch="2.8.1"), (3, 11, 2), "torch 2.8.1; 2.9 or newer is needed"),
        (Facts(torch_error="OSError: libcudart"), (3, 11, 2), "torch cannot be loaded: OSError: libcudart"),
        (Facts(error="did not answer"), (3, 11, 2), "did not answer"),
        (TORCH, (3, 10, 9), "Python 3.10.9; 3.11 or newer"),
    ],
)
def test_versions_that_do_not_work_are_a_failure(facts, python, words):
    assert words in only(checks.check_packages(facts, Path("/nowhere"), python)[:1], FAILED)


LOCK = f"""# made by make locks
torch==2.10.0+cu128 \\
    --hash=sha256:{"0" * 64}
numpy==2.4.6 \\
    --hash=sha256:{"1" * 64}
"""


def lock_finding(tmp_path: Path, text: str = LOCK, **installed: str) -> Finding:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    (tmp_path / "lock").write_text(text)
    return checks.check_lock(tmp_path / "lock", version)


def test_an_image_must_hold_what_its_lock_says(tmp_path):
    assert lock_finding(tmp_path, torch="2.10.0+cu128", numpy="2.4.6").status == OK
    assert lock_finding(tmp_path, torch="2.10.0+cu128", numpy="2.4.6+local").status == OK
    wrong = lock_finding(tmp_path, torch="2.10.0")
    assert wrong.status == FAILED
    assert "torch 2.10.0 instead of 2.10.0+cu128, numpy is missing" in wrong.detail


# --- home ---


def test_home_and_temporary_folder_that_can_be_written_are_ok(tmp_path):
    assert [it.status for it in checks.check_home({"HOME": str(tmp_path)})] == [OK, OK]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [{}, {"HOME": ""}, {"HOME": "/proc"}, {"HOME": "/nowhere"}])
def test_a_home_that_cannot_be_written_is_a_failure(value):
    assert "-e HOME=/tmp" in only(checks.check_home(value)[:1], FAILED)


def test_no_temporary_folder_is_a_failure():
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    assert "No usable temporary directory" in only(checks.check_home({"HOME": "/"}, none)[1:], FAILED)
    assert "--tmpfs /tmp" in only(checks.check_home({"HOME": "/"}, lambda: "/proc")[1:], FAILED)


# --- disk ---


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, OK), (18 * GIB - 1, WARNING), (GIB - 1, FAILED)])
def test_too_little_room_is_a_warning_then_a_failure(tmp_path, free, status):
    results, _ = checks.check_disk(tmp_path / "results" / "runs", lambda folder: free)
    said = only([results], status)
    assert f"free in {tmp_path}" in said
    assert list(tmp_path.iterdir()) == [], "the doctor makes no folders"


def test_a_folder_that_cannot_be_written_is_a_failure():
    assert "/proc cannot be written" in only(checks.check_disk(Path("/proc/results"))[:1], FAILED)


# --- shared memory, memory ---


@pytest.mark.parametrize(
    ("free", "gpus", "status"),
    [(GIB, 8, OK), (GIB - 1, 0, WARNING), (64 << 20, 0, WARNING), (64 << 20, 1, WARNING), (64 << 20, 2, FAILED)],
)
def test_shared_memory_matters_most_between_gpus(tmp_path, free, gpus, status):
    said = only(checks.check_shared_memory(gpus, tmp_path, free), status)
    assert status == OK or "--shm-size=1g" in said


def test_shared_memory_that_is_not_there_or_closed():
    only(checks.check_shared_memory(0, Path("/nowhere")), NOT_RUN)
    only(checks.check_shared_memory(0, Path("/proc")), FAILED)


def groups(tmp_path: Path, limit: object, used: int = 0) -> dict[str, Path]:
    """A machine with 16 GiB available, and a control group of version 2 with this limit."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 33554432 kB\nMemAvailable:   {16 * 2**20} kB\n")
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    (tmp_path / "fs" / "job" / "step").mkdir(parents=True)
    (tmp_path / "fs" / "job" / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "fs" / "job" / "memory.current").write_text(f"{used}\n")
    return {"meminfo": tmp_path / "meminfo", "cgroups": tmp_path / "cgroup", "mount": tmp_path / "fs"}


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")


@LINUX
@pytest.mark.parametrize(
    ("limit", "used", "status", "words"),
    [
        ("max", 0, OK, "16.0 GiB available -> None"),
        (64 * GIB, 0, OK, "16.0 GiB available -> None"),
        (8 * GIB, GIB, WARNING, "7.0 GiB available of this job or container"),
        (2 * GIB, GIB, FAILED, "1.0 GiB available of this job or container"),
    ],
)
def test_memory_is_the_machines_or_that_of_the_job_around(tmp_path, limit, used, status, words):
    assert words in only(checks.check_memory(**groups(tmp_path, limit, used)), status)


@LINUX
def test_control_groups_of_version_1_and_of_containers_are_known(tmp_path):
    files = groups(tmp_path, "max")
    files["cgroups"].write_text(
        "4:cpu:/x\n2:memory:/docker/abc\n0::/\n"
    )  # the container sees its own group as the root
    (files["mount"] / "memory").mkdir()
    (files["mount"] / "memory" / "memory.limit_in_bytes").write_text(str(4 * GIB))
    (files["mount"] / "memory" / "memory.usage_in_bytes").write_text(str(GIB))
    assert "3.0 GiB" in only(checks.check_memory(**files), WARNING)

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmarks.core.paths import ROOT
from benchmarks.launching.containers.entry import (
    IMAGES,
    SHARED,
    check_locks,
    containerfile,
    image_content,
    write_context,
)
from resireduce.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what images are built from."""
    for name in ("containers", "resireduce", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_what_an_image_is_built_from_changes_its_content_and_nothing_else_does(project: Path) -> None:
    def changed(path: str) -> str:
        with (project / path).open("a") as file:
            file.write("\n# changed\n")
        return image_content("cpu", root=project)

    before = image_content("cpu", root=project)
    for path in ("README.md", "benchmarks/analysis/load_run.py", "containers/cuda12/requirements.lock"):
        assert changed(path) == before, path
    built_from = ("containers/cpu/Containerfile", "containers/cpu/requirements.lock", "resireduce/core/optimizer.py")
    assert len({before, *map(changed, (*built_from, "benchmarks/training/rank.py"))}) == 5


def test_another_base_is_another_content_and_each_image_has_its_own() -> None:
    contents = {image_content(name, base) for name in IMAGES for base in (None, "debian:bookworm-slim")}
    assert len(contents) == 2 * len(IMAGES)


def test_the_context_holds_what_the_containerfile_copies_and_the_same_bytes_each_time(project: Path) -> None:
    wheels = project / "somewhere"
    wheels.mkdir()
    (wheels / "a.whl").write_bytes(b"wheel")
    first, second = io.BytesIO(), io.BytesIO()
    write_context("cpu", [("wheels", wheels)], first, project)
    (project / "resireduce/core/optimizer.py").touch()
    write_context("cpu", [("wheels", wheels)], second, project)
    assert first.getvalue() == second.getvalue()
    first.seek(0)
    with tarfile.open(fileobj=first) as archive:
        names = set(archive.getnames())
    needed = {
        "wheels/a.whl",
        "README.md",
        "pyproject.toml",
        "LICENSE",
        "resireduce/core/optimizer.py",
        containerfile("cpu"),
    }
    assert names >= needed | {f"containers/{name}" for name in SHARED} | {"benchmarks/config/smoke.yaml"}
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


@pytest.mark.parametrize("name", IMAGES)
def test_the_containerfile_copies_only_what_the_context_holds(name: str) -> None:
    held = {
        *(f"containers/{it}" for it in SHARED),
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "resireduce",
        "benchmarks",
    }
    held |= {f"containers/{name}/{path.name}" for path in (ROOT / containerfile(name)).parent.iterdir()}
    for line in (ROOT / containerfile(name)).read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            assert {word for word in line.split()[1:-1] if "[" not in word} <= held, line


@pytest.mark.parametrize("name", IMAGES)
def test_the_locks_here_hold_every_package_fast(name: str) -> None:
    check_locks(name)


@pytest.mark.parametrize("path", ["containers/cpu/requirements.lock", "containers/horovod.lock"])
def test_a_broken_lock_is_refused_before_anything_is_built(project: Path, path: str) -> None:
    (project / path).write_text("numpy==2.0.0\n")
    with pytest.raises(ConfigError, match=r"line 1: 'numpy==2.0.0' is not a package as name==version with its hashes"):
        check_locks("cpu", project)

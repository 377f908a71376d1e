"""What an image is built from, and what is kept of one that was built."""

import io
import json
import shutil
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.core.paths import ROOT
from benchmarks.launching.containers.entry import (
    IMAGES,
    SHARED,
    ImageEntry,
    add_image,
    check_locks,
    containerfile,
    image_content,
    read_images,
    write_context,
)
from resireduce.errors import ConfigError

ENTRY = ImageEntry(
    name="cpu",
    digest=f"sha256:{'a' * 64}",
    content="0123456789ab",
    base="python:3.11-slim-bookworm",
    base_digest=f"sha256:{'b' * 64}",
    versions={"torch": "2.13.0+cpu", "cuda": None},
    size_bytes=123,
    engine="docker 20.10",
    built_at="2026-01-01T00:00:00+00:00",
)


def test_the_lock_holds_one_entry_for_each_image_in_order(tmp_path: Path) -> None:
    lock = tmp_path / "images.lock.json"
    assert read_images(lock) == {}
    other = replace(ENTRY, name="cuda12", digest=f"sha256:{'c' * 64}")
    for entry in (other, ENTRY, replace(ENTRY, size_bytes=456)):
        add_image(entry, lock)
    assert read_images(lock) == {"cpu": replace(ENTRY, size_bytes=456), "cuda12": other}
    assert list(json.loads(lock.read_text())["images"]) == ["cpu", "cuda12"]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (ImageEntry.load, "{", ""),
        (ImageEntry.load, json.dumps(asdict(ENTRY) | {"extra": 1}), ""),
        (ImageEntry.load, json.dumps(asdict(ENTRY) | {"digest": "sha256:short"}), "digest.*"),
        (read_images, '{"schema_version": 2, "images": {}}', ""),
        (read_images, json.dumps({"schema_version": 1, "images": {"cuda12": asdict(ENTRY)}}), ""),
    ],
)
def test_a_broken_file_is_one_line_with_its_path_and_the_cure(
    tmp_path: Path, read: Any, text: str, message: str
) -> None:
    path = tmp_path / "images.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"images\.json: .*{message}delete the file and build it again: ") as caught:
        read(path)
    assert "\n" not in str(caught.value)


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
    assert len({*map(image_content, IMAGES)}) == len(IMAGES)


@pytest.mark.parametrize("name", IMAGES)
def test_the_context_holds_what_the_containerfile_copies_and_the_same_bytes_each_time(project: Path, name: str) -> None:
    check_locks(name, project)
    first, second = io.BytesIO(), io.BytesIO()
    write_context(name, [], first, project)
    (project / "resireduce/core/optimizer.py").touch()
    write_context(name, [], second, project)
    assert first.getvalue() == second.getvalue()
    first.seek(0)
    with tarfile.open(fileobj=first) as archive:
        names = archive.getnames()
    assert {containerfile(name), "benchmarks/config/smoke.yaml", *(f"containers/{it}" for it in SHARED)} <= set(names)
    assert not [path for path in names if "__pycache__" in path or path.startswith(("/", ".."))]
    held = {str(parent) for path in names for parent in (Path(path), *Path(path).parents)}
    for line in (project / containerfile(name)).read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            assert {word for word in line.split()[1:-1] if "[" not in word} <= held, line
    (project / f"containers/{name}/requirements.lock").write_text("numpy==2.0.0\n")
    with pytest.raises(ConfigError, match=r"'numpy==2.0.0' is not a package as name==version with its hashes"):
        check_locks(name, project)

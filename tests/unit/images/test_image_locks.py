"""Lock files of the images: the reader refuses what does not hold a package fast, and the project's own hold."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from benchmarks.images import locks
from benchmarks.images.locks import LOCKS, compile_lock
from benchmarks.launching.containers.entry import Pin, read_lock
from resireduce.errors import ConfigError
from tests.unit.images.test_packaging import PROJECT, SUITE, pins
from tests.unit.test_dependencies import imports, sources

A, B = "a" * 64, "0123456789abcdef" * 4
GOOD = f"numpy==2.4.6 --hash=sha256:{A}\n"
IMAGES = ("cpu", "cuda12")
DONE_WITHOUT = {"triton"}
"""What torch for CUDA brings, and is not needed where it is not there."""
HOST_ONLY = {"docker", "snakemake", "snakemake-executor-plugin-slurm", "altair", "vl-convert-python"}
"""What cells do not need: the workflow runs on the host, and so does the report."""
HOST_CODE = ("benchmarks/analysis/", "benchmarks/doctor/gpu/", "benchmarks/images/", "benchmarks/rig/")


def lock(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "requirements.lock"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- the reader ---


def test_a_lock_is_read(tmp_path: Path) -> None:
    text = f"# made by a tool\n\nPyYAML==6.0.3 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via all\n"
    text += f"torch==2.13.0+cpu --hash=sha256:{A}  # the CPU's\n"
    expected = (Pin("pyyaml", "6.0.3", (A, B)), Pin("torch", "2.13.0+cpu", (A,)))
    assert read_lock(lock(tmp_path, text)) == expected
    assert read_lock(lock(tmp_path, text.rstrip("\n"))) == expected


UNPINNED = "is not a package as name==version"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "pandas==3.1.1\n", f": 'pandas==3.1.1' {UNPINNED}"),
        (f"numpy==2.4.6 --hash=sha256:{A[:-1]}", f": .* {UNPINNED}"),
        (f"numpy==2.* --hash=sha256:{A}", f": .* {UNPINNED}"),
        (b"\x80\x04\x95\xff\xfe", " cannot be read"),
    ],
)
def test_a_file_that_is_no_lock_is_refused(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = lock(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^lock: {re.escape(str(path))}{problem}.*'make locks'$") as raised:
        read_lock(path)
    assert "\n" not in str(raised.value)


# --- the project's own ---


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_it_is_made_from(name: str) -> None:
    locked = {pin.name: Version(pin.version) for pin in read_lock(LOCKS[name].path)}
    said = LOCKS[name].path.read_text(encoding="utf-8")
    assert not re.search(r"://|^-|/(tmp|home|root|opt|srv)/", said, re.MULTILINE), "no index and no path"
    lines = LOCKS[name].source.read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(text) for line in lines if (text := line.partition("#")[0].strip())]
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)], prereleases=True)
    assert LOCKS[name].dependencies or len(locked) == len(wanted)


@pytest.mark.parametrize("name", [name for name in LOCKS if LOCKS[name].suite])
def test_versions_are_those_of_the_constraints(name: str) -> None:
    constraints = pins() | ({"torch": "2.10.0"} if name == "cuda12" else {})
    locked = {pin.name: Version(pin.version).public for pin in read_lock(LOCKS[name].path)}
    both = locked.keys() & constraints.keys()
    assert len(both) > 4
    assert {name: locked[name] for name in both} == {name: constraints[name] for name in both}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_has_what_cells_need_and_not_the_host_s(name: str) -> None:
    locked = {pin.name: pin.version for pin in read_lock(LOCKS[name].path)}
    direct = [Requirement(text) for text in (*PROJECT["dependencies"], *SUITE["dependencies"])]
    needed = {canonicalize_name(requirement.name): requirement for requirement in direct}
    del needed["resireduce"]
    assert set(needed) >= HOST_ONLY, "what the suite no longer needs is nothing to leave out"
    for package in needed.keys() - HOST_ONLY - {"jinja2"}:  # torch itself brings jinja2
        assert needed[package].specifier.contains(locked[package])
    assert HOST_ONLY.isdisjoint(locked)


def test_every_import_of_a_cell_is_locked() -> None:
    distributions = importlib.metadata.packages_distributions() | {"pynvml": ["nvidia-ml-py"], "horovod": ["horovod"]}
    files = [(p, t) for p, t in sources("resireduce/**/*.py", "benchmarks/**/*.py") if not p.startswith(HOST_CODE)]
    tops = {(path, name.split(".")[0]) for path, tree in files for _, name in imports(tree)}
    known_here = {*sys.stdlib_module_names, "resireduce", "benchmarks", *DONE_WITHOUT}
    foreign = [(p, top) for p, top in tops if top not in known_here]
    assert len(foreign) > 20
    for image in IMAGES:
        locked = {pin.name for lock in (image, "horovod") for pin in read_lock(LOCKS[lock].path)}
        known = {top for top, names in distributions.items() if locked & {canonicalize_name(name) for name in names}}
        assert [(p, top) for p, top in foreign if top not in known] == []


# --- making them ---

STAND_IN = """#!/bin/sh
echo "$@" > "{folder}/log"
while [ "$1" != --output-file ]; do shift; done
cp "{folder}/made" "$2"
"""


def test_a_lock_is_made_with_hashes_and_without_indexes_or_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(STAND_IN.format(folder=tmp_path), encoding="utf-8")
    uv.chmod(0o755)
    monkeypatch.setattr("benchmarks.images.locks.TOOLS", tmp_path)
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    (tmp_path / "some.in").write_text("numpy\n", encoding="utf-8")
    for name, value in (("INDEX_URL", "https://main.example"), ("EXTRA_INDEX_URL", "https://other.example")):
        monkeypatch.setenv(f"PIP_{name}", value)
    (tmp_path / "made").write_text(GOOD, encoding="utf-8")
    assert compile_lock(locks.Lock("some", suite=True, dependencies=False), upgrade=True) == 1
    given = (tmp_path / "log").read_text(encoding="utf-8")
    assert "--index=https://main.example --default-index=https://other.example" in given
    for option in ("--generate-hashes", "--no-emit-index-url", "--no-deps", "--upgrade", "--python-version=3.11"):
        assert option in given
    (tmp_path / "made").write_text("numpy==2.4.6", encoding="utf-8")
    with pytest.raises(ConfigError):
        compile_lock(locks.Lock("some"), upgrade=False)
    assert (tmp_path / "some.lock").read_text(encoding="utf-8") == GOOD

"""What the packages say of themselves agrees with what is in them; the library's holds the library alone."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import resireduce
from benchmarks.core.registry import MODELS
from resireduce.planning.models import find_builder, offered_models

ROOT = Path(__file__).parents[3]
PROJECT, SUITE = (
    tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
    for file in ("pyproject.toml", "benchmarks/pyproject.toml")
)


def pins() -> dict[str, str]:
    """Version of each package in constraints.txt, by normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    named = [line.split("#")[0].strip().partition("==") for line in lines]
    return {canonicalize_name(name): version for name, _, version in named if name}


def direct() -> list[Requirement]:
    """What the library, the suite and the tests need, but for the library itself."""
    listed = (*PROJECT["dependencies"], *SUITE["dependencies"], *PROJECT["optional-dependencies"]["test"])
    return [requirement for text in listed if (requirement := Requirement(text)).name != "resireduce"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of the library and of the suite, by name, built from a copy of the tree."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheels")
    for name in ("resireduce", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        made,
    ]
    done = subprocess.run([*command, ".", "./benchmarks"], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.name.split("-")[0]: file for file in made.glob("*.whl")}


@pytest.mark.parametrize(("name", "package"), [("resireduce", "resireduce"), ("resireduce_suite", "benchmarks")])
def test_a_wheel_holds_one_package_and_all_of_it(wheels: dict[str, Path], name: str, package: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        names = set(archive.namelist())
    held = {path for path in names if path.startswith(f"{package}/")}
    assert {path.split("/")[0] for path in names - held} == {f"{name}-{PROJECT['version']}.dist-info"}
    files = {path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ROOT).as_posix() for path in files} - {"benchmarks/pyproject.toml"} == held
    assert ("resireduce/py.typed" in held) == (name == "resireduce")


def test_plan_works_beside_a_package_of_the_user_s_own_called_benchmarks(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    shutil.unpack_archive(wheels["resireduce"], tmp_path / "installed", "zip")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").write_text("SPEED = 'of my own programs'\n")
    (tmp_path / "mine.py").write_text(
        "import benchmarks, torch\n\ndef build():\n    return torch.nn.Linear(200, 100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "resireduce", "plan", "--model", "mine:build", "--scheme", "baseline", "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and '"frozen": 0' in done.stdout, done.stderr


def test_every_model_is_found_through_the_entry_points() -> None:
    assert offered_models().items() >= dict(MODELS).items()
    assert all(callable(find_builder(model)) for model in MODELS)


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert resireduce.__version__ == PROJECT["version"] == SUITE["version"]
    assert f"resireduce=={PROJECT['version']}" in SUITE["dependencies"]
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]


def test_every_direct_dependency_is_pinned_within_its_bounds() -> None:
    for requirement in direct():
        version = pins().get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} has no line in constraints.txt"
        assert requirement.specifier.contains(version, prereleases=True), requirement

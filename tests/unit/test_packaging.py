"""What the package says of itself agrees with what is in it."""

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import resireduce
from benchmarks.models import MODELS
from resireduce.zoo import find_builder, known_models

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, str]:
    """Version of each package in constraints.txt, by normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    named = [line.split("#")[0].strip().partition("==") for line in lines]
    return {canonicalize_name(name): version for name, _, version in named if name}


def direct() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(text) for text in (*PROJECT["dependencies"], *extras["suite"], *extras["test"])]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_found_through_the_entry_points(model: str) -> None:
    assert known_models()[model] == MODELS[model]
    assert callable(find_builder(model))


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert resireduce.__version__ == PROJECT["version"]
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]


@pytest.mark.parametrize("requirement", direct(), ids=str)
def test_every_direct_dependency_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    version = pins().get(canonicalize_name(requirement.name))
    assert version, f"{requirement.name} has no line in constraints.txt"
    assert requirement.specifier.contains(version, prereleases=True)


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    left_out = pytestconfig.getini("norecursedirs")
    assert {"unit", "dist", "workflow"} <= folders
    assert [name for name in folders for pattern in left_out if fnmatchcase(name, pattern)] == []

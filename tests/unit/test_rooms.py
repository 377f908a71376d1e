"""The rooms of the suite, read from all imports, those for annotations and within functions too: who may know whom."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.unit.test_dependencies import what_is_heavy

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "benchmarks"

MAY_KNOW = {
    "core": (),
    "data": ("core",),
    "training": ("core", "data"),
    "launching": ("core",),
    "images": ("core", "launching"),
    "analysis": ("core", "launching"),
    "workflow": ("core", "launching", "images", "analysis"),
    "doctor": ("core", "launching", "images", "analysis"),
    "rig": ("core", "launching", "images"),
    "micro": ("core", "launching", "analysis"),
    "simulation": ("core", "analysis"),
}
"""What else is needed is reached by the name of its module: training by launching, the rig where a machine is bare."""
LOOSE = {"__init__.py", "__main__.py", "pyproject.toml"}
QUANTILES = ("scipy", "NormalDist")
"""What only one module needs: who else calls these computes an interval of its own."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in SUITE.rglob("*.py")}


@cache
def imported(module: str) -> set[str]:
    """Modules of the suite that one imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute in the suite"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys() or {str(node.module)}
    return found & MODULES.keys()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_rooms_know_only_those_below() -> None:
    for module in MODULES:
        if (own := room_of(module)) in MAY_KNOW:
            known = (own, *MAY_KNOW[own])
            assert [other for other in sorted(imported(module)) if room_of(other) not in known] == [], module


def test_no_modules_import_each_other() -> None:
    TopologicalSorter({name: imported(name) for name in MODULES}).prepare()


def test_there_are_these_rooms_and_nothing_beside_them() -> None:
    assert {path.name for path in SUITE.iterdir() if path.is_file()} == LOOSE
    assert {path.name for path in SUITE.iterdir() if (path / "__init__.py").is_file()} == MAY_KNOW.keys()


def test_only_training_loads_torch() -> None:
    assert what_is_heavy([name for name in MODULES if room_of(name) != "training"]) == ""


def test_only_one_module_computes_intervals() -> None:
    callers = {name for name, path in MODULES.items() if any(word in path.read_text() for word in QUANTILES)}
    assert callers == {"benchmarks.analysis.statistics"}


def test_the_page_names_files_on_the_path_of_a_cell_that_are_there_and_each_once() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    suite = page.partition("## The rooms")[0].partition("## The path of a cell")[2]
    stations = re.findall(r"^\|[^|]*\| `(.+?)` \|", suite, re.MULTILINE)
    assert len(stations) > 15 and len(set(stations)) == len(stations)
    assert [name for name in stations if not (SUITE / name).is_file()] == []


def test_the_page_names_each_file_of_the_core() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`(core/\w+\.py)`", page.partition("## The path of a cell")[0]))
    there = {f"core/{path.name}" for path in (ROOT / "resireduce/core").glob("*.py")} - {"core/__init__.py"}
    assert named == there


def test_the_page_names_every_package_or_all_its_modules_and_every_module_at_the_top_of_the_library() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## The path of a cell")[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", page))
    modules = {path.relative_to(ROOT / "resireduce") for path in ROOT.glob("resireduce/**/*.py")}
    modules = {path for path in modules if path.name != "__init__.py" or len(path.parts) == 1}
    missing = {str(path) for path in modules if not {str(path), f"{path.parts[0]}/"} & named}
    assert missing == set()
    assert [name for name in named - {"resireduce/"} if not (ROOT / "resireduce" / name).exists()] == []

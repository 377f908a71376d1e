"""The pages that `make docs` makes, and what docstrings say."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import resireduce
from resireduce.scheme import COMPRESSORS, SCHEMES

ROOT = Path(__file__).parents[2]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(resireduce.__path__, "resireduce.")
    if not module.name.rpartition(".")[2].startswith("_")
]
PIPELINE = {"api", "checks", "guard", "node", "pipeline", "same_memory", "start", "watchers", "wrappers.hooks"}
PIPELINE |= {f"core.{name}" for name in ("bucket", "feedback", "hooks", "messages", "optimizer", "step", "update")}
"""Modules that only the library calls, but for what `resireduce` exports of them."""
SOURCE = re.compile(r"\b(19|20)\d\d\b|paper, section|Horovod|DistributedDataParallel")
"""A paper, or the program whose behaviour it is."""


def own(module: ModuleType, kind: Callable[[object], bool]) -> list[tuple[str, type]]:
    found = inspect.getmembers(module, kind)
    return [(name, one) for name, one in found if not name.startswith("_") and one.__module__ == module.__name__]


def documented() -> Iterator[tuple[str, Callable[..., object], str]]:
    """Public functions and methods, with all that is said of each: its docstring, its class's, its bases'."""
    for name in MODULES:
        module, called = importlib.import_module(name), name.removeprefix("resireduce.") not in PIPELINE
        for of, function in own(module, inspect.isfunction):
            if called or of in resireduce.__all__:
                yield f"{name}.{of}", function, function.__doc__ or ""
        for of, kind in own(module, inspect.isclass):
            for method, function in inspect.getmembers(kind, inspect.isroutine) if called else ():
                bases = [base for base in kind.__mro__ if base.__module__.startswith("resireduce")]
                here = getattr(inspect.unwrap(function), "__module__", "") == name
                if here and (method == "__init__" or not method.startswith("_")):
                    said = [text for base in bases for text in (base.__doc__, getattr(base, method, base).__doc__)]
                    yield f"{name}.{of}.{method}", inspect.unwrap(function), " ".join(map(str, said))


def arguments(function: Callable[..., object]) -> set[str]:
    kinds = inspect.Parameter
    named = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind in named} - {"self", "cls"}


def raised(function: Callable[..., object]) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def is_written(function: Callable[..., object]) -> bool:
    """Not made by a dataclass, whose fields are described one by one."""
    return function.__code__.co_filename.endswith(".py")


BUILD = """
import pygments, runpy
pygments.highlight = lambda *_: ""  # half of the time
runpy.run_path("docs/build_api.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "it must build without a warning"
    assert done.stdout == f"API: {folder}/index.html\n"
    return folder


def test_every_module_and_what_the_package_exports_has_its_place(pages: Path) -> None:
    for module in MODULES:
        assert (pages / f"{module.replace('.', '/')}.html").exists(), module
    first = (pages / "resireduce.html").read_text(encoding="utf-8")
    for name in resireduce.__all__:
        said = (getattr(resireduce, name).__doc__ or "").split("\n")[0].replace("`", "")[:30]
        section = first.partition(f'<section id="{name}">')[2]
        assert said in re.sub("<[^>]+>", "", section), name


def test_docstrings_describe_arguments_and_errors() -> None:
    missing = [
        f"{name}: {word}"
        for name, function, said in documented()
        if is_written(function)
        for word in sorted(arguments(function) | raised(function))
        if not re.search(rf"\b{word}\b", said)
    ]
    assert missing == []


def test_an_argument_and_an_error_that_nobody_describes_are_found() -> None:
    def careless(kept: int, *, lost: int) -> int:
        raise ValueError(kept)

    assert arguments(careless) == {"kept", "lost"} and raised(careless) == {"ValueError"} and is_written(careless)
    assert len(list(documented())) > 100


def test_every_algorithm_names_its_source() -> None:
    targets = {listed.target for listed in COMPRESSORS.values()}
    targets |= {target for scheme in SCHEMES.values() for target in vars(scheme).values()}
    for target in sorted(targets):
        module = importlib.import_module(target.partition(":")[0])
        kinds = getattr(module, target.partition(":")[2]).__mro__[:-1]
        said = [module.__doc__ or "", *(vars(kind).get("__doc__") or "" for kind in kinds)]
        assert any(map(SOURCE.search, said)), f"{target}: which paper, which section?"


def test_the_page_of_compressors_is_what_they_say_and_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    module = importlib.import_module("build_compressors")
    said = "python docs/build_compressors.py writes it anew"
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), said

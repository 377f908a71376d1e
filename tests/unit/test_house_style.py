"""The house style's limits on length, read from all modules: what CONTRIBUTING says of them is so."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES, FEWER_THAN = 200, 30
"""Lines of a module, and of a function without its docstring."""
LONG = {
    "resireduce/api.py: distribute": "half of it is its signature, a keyword a line",
    "resireduce/plan.py: plan": "half of it is its signature and the dictionary that it returns",
    "resireduce/kernels/gpu/once.py: find": "a kernel: a step of its own would have to be given all of its variables",
    "resireduce/kernels/gpu/once.py: _select": "a kernel, likewise; half of it is its signature",
}
"""Functions that are longer, with the reason."""
REGISTRIES = {"resireduce/scheme.py": "grows by a line for each compressor and each scheme"}
"""Modules that may be longer, with the reason."""


def sources() -> Iterator[tuple[str, str]]:
    for room in ("resireduce", "benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function takes from its `def` on, without its docstring."""
    first, end = function.body[0], function.end_lineno
    is_docstring = isinstance(first, ast.Expr) and ast.get_docstring(function) is not None
    said = first.end_lineno - first.lineno + 1 if is_docstring and first.end_lineno else 0
    return (end or function.lineno) - function.lineno + 1 - said


def long_functions(path: str, source: str) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [f"{path}: {node.name}" for node in found if lines_of(node) >= FEWER_THAN]


def test_no_module_is_long() -> None:
    long = {path for path, source in sources() if len(source.splitlines()) > MOST_LINES}
    assert long - REGISTRIES.keys() == set()


def test_functions_are_short_but_for_those_that_are_named_here() -> None:
    assert {name for path, source in sources() for name in long_functions(path, source)} == LONG.keys()


@pytest.mark.parametrize(("lines", "expected"), [(FEWER_THAN - 2, []), (FEWER_THAN - 1, ["a.py: f"])])
def test_a_long_function_is_seen_and_its_docstring_not_counted(lines: int, expected: list[str]) -> None:
    body = ['    """One.', "", '    Two."""', *["    pass"] * lines]
    assert long_functions("a.py", "\n".join(["def f() -> None:", *body])) == expected

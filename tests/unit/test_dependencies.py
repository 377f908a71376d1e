"""The dependency rule, read from the imports: which part of the project may know which."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# --- the rule, as data ---

ONLY_IN = {
    "horovod": (
        "resireduce/comm/horovod.py",
        "benchmarks/training/horovod.py",
        "benchmarks/doctor/in_child.py",
        "benchmarks/images/image_facts.py",
    )
}
"""Modules that only these files of the project may import."""

FORBIDDEN_CALLS = {
    "print": ("resireduce/__main__.py",),
    ".cuda": (),
    "torch.manual_seed": (),
    "torch.cuda.manual_seed_all": (),
    "random.seed": (),
    "np.random.seed": (),
}
"""Calls that the library does not make, and where it may. A leading dot: a method of anything."""

LIGHT = {"resireduce/scheme.py": ("resireduce.errors",), "resireduce/errors.py": (), "resireduce/__init__.py": ()}
"""What these may import when they are loaded, beside the standard library."""

TORCH_FREE = (
    "resireduce/__init__.py",
    "resireduce/__main__.py",
    "resireduce/errors.py",
    "resireduce/merging/rules.py",
    "resireduce/planning/item.py",
    "resireduce/scheme.py",
    "resireduce/settings.py",
    "benchmarks/training/__init__.py",
    "benchmarks/training/horovod.py",
    "benchmarks/training/place.py",
)
"""Loading these loads none of HEAVY, not even through others; all of the suite but training does not: test_rooms.py."""

HEAVY = ("torch", "transformers", "sklearn")

# --- how it is read ---


def imports(tree: ast.AST, module: str, whole: bool = True) -> Iterator[tuple[int, str]]:
    """Line and full name of what is imported, but for `if TYPE_CHECKING`; without `whole`, not within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for branch in node.orelse:
                yield from imports(ast.Module([branch], []), module, whole)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif whole or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imports(node, module, whole)


def module_of(path: str) -> str:
    """Dotted name of a file; a package's own code counts as its `__init__`, so that relative imports come out right."""
    return path.removesuffix(".py").replace("/", ".")


def broken_imports(path: str, source: str) -> list[str]:
    """Return what a file of the project imports against the rule."""
    found, tree, module = [], ast.parse(source), module_of(path)
    for line, name in imports(tree, module):
        top = name.split(".")[0]
        if path not in ONLY_IN.get(top, (path,)):
            found.append(f"{path}:{line} imports {name}: only {', '.join(ONLY_IN[top])} may")
        if path.startswith("resireduce/") and top == "benchmarks":
            found.append(f"{path}:{line} imports {name}: the library knows nothing of the experiments")
    return found


def heavy_imports(path: str, source: str) -> list[str]:
    """What a file of LIGHT imports, when it is loaded, beside the standard library and what LIGHT allows."""
    names = imports(ast.parse(source), module_of(path), whole=False)
    return [
        f"{path}:{line} imports {name} when it is loaded"
        for line, name in names
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith(LIGHT[path] or ("-",))
    ]


def forbidden_calls(path: str, source: str) -> list[str]:
    """Calls in a file of the library that it does not make."""
    calls = [
        (node.lineno, ast.unparse(node.func)) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
    ]
    return [
        f"{path}:{line} calls {called}()"
        for line, called in calls
        for name, where in FORBIDDEN_CALLS.items()
        if (called.endswith(name) if name.startswith(".") else called == name) and path not in where
    ]


def sources(*patterns: str) -> list[tuple[str, str]]:
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern))
    return [(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]


# --- the rule holds ---


def test_imports_follow_the_rule() -> None:
    files = sources("resireduce/**/*.py", "benchmarks/**/*.py")
    assert [problem for path, source in files for problem in broken_imports(path, source)] == []


def test_light_modules_import_the_standard_library_only() -> None:
    assert [problem for path, source in sources(*LIGHT) for problem in heavy_imports(path, source)] == []


def test_the_library_does_not_print_seed_or_choose_devices() -> None:
    assert [p for path, source in sources("resireduce/**/*.py") for p in forbidden_calls(path, source)] == []


def test_torch_free_modules_load_without_torch() -> None:
    modules = [module_of(path).removesuffix(".__init__") for path, _ in sources(*TORCH_FREE)]
    assert len(modules) == len(TORCH_FREE)
    assert what_is_heavy(modules) == ""


def what_is_heavy(modules: list[str]) -> str:
    """Which of these loads what is HEAVY, in a process of its own; "" if none does."""
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        f"    heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "    if heavy: sys.exit(f'{module} loads {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr


# --- and would be seen if it did not ---

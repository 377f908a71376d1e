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
        "benchmarks/training/place.py",
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
    "resireduce/planning/__init__.py",
    "resireduce/scheme.py",
    "resireduce/settings.py",
    "benchmarks/training/__init__.py",
)
"""Loading these loads none of HEAVY, not even through others; all of the suite but training does not: test_rooms.py."""

HEAVY = ("torch", "transformers", "sklearn")

# --- the rule holds ---


def imports(tree: ast.Module, whole: bool = True) -> Iterator[tuple[int, str]]:
    """Line and full name of what is imported anywhere; without `whole`, only what is when the file is loaded."""
    for node in ast.walk(tree) if whole else tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def sources(*patterns: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(file for pattern in patterns for file in ROOT.glob(pattern)):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def test_imports_and_calls_follow_the_rule() -> None:
    found = []
    for path, tree in sources("resireduce/**/*.py", "benchmarks/**/*.py"):
        is_library = path.startswith("resireduce/")
        for line, name in imports(tree):
            top = name.split(".")[0]
            if path not in ONLY_IN.get(top, (path,)) or (is_library and top == "benchmarks"):
                found.append(f"{path}:{line} imports {name}")
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if is_library else []
        for call in calls:
            called = ast.unparse(call.func)
            for name, where in FORBIDDEN_CALLS.items():
                if (called.endswith(name) if name.startswith(".") else called == name) and path not in where:
                    found.append(f"{path}:{call.lineno} calls {called}()")
    assert found == []


def test_light_modules_import_the_standard_library_only() -> None:
    for path, tree in sources(*LIGHT):
        for _, name in imports(tree, whole=False):
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(LIGHT[path] or ("-",)), (path, name)


def test_torch_free_modules_load_without_torch() -> None:
    modules = [path.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in TORCH_FREE]
    assert all((ROOT / path).is_file() for path in TORCH_FREE)
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

"""Hashes of what files hold: a rule runs again when its code says something else, never because a file is younger."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from resireduce.errors import ConfigError

ROOT = Path(__file__).parents[2]
LIBRARY = ("resireduce",)
TRAINING = (
    "benchmarks/models",
    "benchmarks/tasks",
    "benchmarks/measure",
    "benchmarks/data/__init__.py",
    "benchmarks/data/prepared.py",
    "benchmarks/training",
    "benchmarks/run.py",
    "benchmarks/outcomes.py",
    "benchmarks/launch.py",
    "benchmarks/runtimes/ranks.py",
    "benchmarks/runtimes/options.py",
    "benchmarks/runtimes/logged.py",
    *(
        f"benchmarks/cluster/{name}.py"
        for name in ("__init__", "job", "launcher", "placement", "site", "step", "task", "working")
    ),
    "benchmarks/cell.py",
    "benchmarks/observe",
    "benchmarks/options.py",
    "benchmarks/checks.py",
    "benchmarks/files.py",
    "benchmarks/record.py",
    "benchmarks/workloads",
)
PRETRAINING = ("benchmarks/models", "benchmarks/tasks", "benchmarks/pretrain.py", "benchmarks/workflow/pretrained.smk")
REPORT = (
    "benchmarks/claims",
    "benchmarks/report",
    "benchmarks/cell.py",
    "benchmarks/record.py",
    "benchmarks/measure/items.py",
    "benchmarks/measure/ladder.py",
    "resireduce/item.py",
    "benchmarks/options.py",
    "results/paper",
    "results/reference/tell.json",
    "docs/deviations.md",
    "benchmarks/config/paper.yaml",
)
SUFFIXES = (".py", ".j2", ".css", ".js", ".json", ".md", ".txt", ".csv", ".yaml")


def content_hash(paths: Iterable[str], root: Path = ROOT) -> str:
    """Return 12 hex digits over names and bytes of the source files at or below paths; missing paths hold nothing."""
    digest = hashlib.sha256()
    for path in paths:
        for file in _sources(root / path):
            digest.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def check_syntax(paths: Iterable[str], root: Path = ROOT) -> None:
    """Raise ConfigError, one line with the place, for source code at or below paths that is no Python."""
    for path in paths:
        for file in _sources(root / path):
            if file.suffix == ".py":
                try:
                    compile(file.read_bytes(), file, "exec")
                except SyntaxError as error:
                    raise ConfigError(f"{file.relative_to(root)}, line {error.lineno}: {error.msg}") from None


def text_hash(text: str) -> str:
    """Return 12 hex digits over a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sources(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and "__pycache__" not in file.parts)

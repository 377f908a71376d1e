"""Hashes of file contents and of what pretrained weights depend on: changed content, not a new date, means rebuild."""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.core.paths import CACHE, ROOT
from benchmarks.core.workloads import WORKLOADS

LIBRARY = ("resireduce",)
TRAINING = ("benchmarks/core", "benchmarks/data", "benchmarks/training", "benchmarks/launching")
"""The packages of the suite that determine a cell's result."""
PRETRAINING = (
    "benchmarks/training/models",
    "benchmarks/training/tasks",
    "benchmarks/training/pretrain.py",
    "benchmarks/workflow/pretrained.smk",
)
REPORT = (
    "benchmarks/analysis",
    "benchmarks/core",
    "resireduce/planning/__init__.py",
    "results/paper",
    "results/reference/tell.json",
    "benchmarks/config/paper.yaml",
)
SUFFIXES = (".py", ".c", ".h", ".j2", ".css", ".js", ".json", ".md", ".txt", ".csv", ".yaml")


def content_hash(paths: Iterable[str], root: Path = ROOT) -> str:
    """Return 12 hex digits over names and bytes of the source files at or below paths; missing paths count as empty."""
    digest = hashlib.sha256()
    for path in paths:
        for file in _sources(root / path):
            digest.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def text_hash(text: str) -> str:
    """Return 12 hex digits over a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sources(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and "__pycache__" not in file.parts)


PACKAGES = ("torch", "transformers", "scikit-learn", "numpy")
"""Packages that provide the data and the arithmetic."""


def get_packages() -> str:
    """Return the versions of PACKAGES as one line."""
    return ", ".join(f"{package} {version(package)}" for package in PACKAGES)


def get_pretrained(model: str) -> str | None:
    """Return the file of the weights a model's cells start from; None if they start from scratch.

    Its name contains a hash of everything that the weights depend on, packages too, so that old ones are never mistaken
    for new ones.
    """
    workload = WORKLOADS[model]
    if not workload.pretrain_steps:
        return None
    recipe = {key: value for key, value in asdict(workload).items() if key.startswith("pretrain_")}
    text = f"{content_hash(PRETRAINING)} {workload.task} {sorted(recipe.items())} {get_packages()}"
    return f"{CACHE}/{model}-{text_hash(text)}.pt"

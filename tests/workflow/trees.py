"""Copies of the tree in which stand-ins make cells, weights and images; and Snakemake's answers there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
QUIET = ["--quiet", "rules", "progress", "host"]
STAND_INS = {"run": "launching/run", "pretrain": "training/pretrain", "image": "images/image_command"}
"""Modules of the suite whose place tests/workflow/stand_in_NAME.py takes."""


def make_tree(folder: Path, config: str, stand_ins: tuple[str, ...] = ("run", "pretrain"), more: tuple[str, ...] = ()):
    """What the workflow needs, and `more` files and folders; the config is my.yaml."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("benchmarks", "resireduce", "results/paper", "results/reference", "Snakefile", *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        else:
            shutil.copy(ROOT / name, folder)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests/records.py", folder / "tests")
    for name in stand_ins:
        shutil.copy(ROOT / f"tests/workflow/stand_in_{name}.py", folder / f"benchmarks/{STAND_INS[name]}.py")
    (folder / "my.yaml").write_text(config)
    return folder


def environment(tree):
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def run(tree, *command):
    return subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=False)


def jobs(said):
    """How many jobs of each rule Snakemake says that it starts."""
    lines = said.partition("Job stats:")[2].partition("total")[0].splitlines()
    return {line.split()[0]: int(line.split()[1]) for line in lines if line.split()[1:2] and line.split()[1].isdigit()}

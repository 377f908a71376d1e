"""Names of torch that are not public are used by one file of the library."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import resireduce

PRIVATE = re.compile(
    r"\btorch(?:\.\w+)*\._[a-zA-Z]|\bfrom torch\S*\._\w+ import|\bfrom torch\S* import [^\n]*\b_[a-z]"
    r"|_execution_engine|_get_active_ddp_module"
)
ALLOWED = ("torch._dynamo", "torch.ops.aten._")
"""Modules that are asked for only where they are loaded already, and operators by their own names."""


def test_private_names_of_torch_are_gathered_in_one_file() -> None:
    folder = Path(resireduce.__file__).parent
    for path in folder.rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if not any(one in line for one in ALLOWED)]
        found = [line.strip() for line in lines if PRIVATE.search(line)]
        assert path.name == "private.py" or not found, f"{path}: {found}"


def test_a_torch_that_is_newer_than_those_tested_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "99.0.0a0+git1")
    with pytest.warns(UserWarning, match=r"tested with torch 2\.9 to 2\.\d+, and this is 99\.0\.0a0\+git1"):
        runpy.run_module("resireduce.private")

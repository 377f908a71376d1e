"""docs/adding.md does what it says: its code, written into a copy of the tree, is tested and trained there."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import resireduce
from resireduce.comm.base import Communicator
from tests.threads import LocalWorld
from tests.worlds import seeded

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
LINES = dict(re.findall(r"^The line, in `(\w+)` in .*?^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
CONTRACTS = [f"tests/contracts/test_{name}.py" for name in ("compressors", "residual_properties", "streamed", "memory")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in ("benchmarks", "resireduce", "results/paper", "results/reference", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for path, text in FILES.items():
        assert not (folder / path).exists(), f"{path} is there already: the page must show something new"
        (folder / path).write_text(text, encoding="utf-8")
    registry = folder / "resireduce/scheme.py"
    text = registry.read_text(encoding="utf-8")
    for name, line in LINES.items():
        assert text.count(f"{name} = {{\n") == line.count("\n") == 1
        text = text.replace(f"{name} = {{\n", f"{name} = {{\n{line}")
    registry.write_text(text, encoding="utf-8")
    return folder


def run(tree: Path, *arguments: str) -> str:
    """Standard output of `python -m ...` in the copy."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names() -> list[str]:
    """What the lines list: the compressor and the scheme."""
    return [re.match(r'\s+"(.+?)":', LINES[registry]).group(1) for registry in ("COMPRESSORS", "SCHEMES")]  # type: ignore[union-attr]


def test_the_code_of_the_page_is_in_the_house_style(tree: Path) -> None:
    files = [path for path in FILES if path.endswith(".py")]
    run(tree, "ruff", "check", "--no-cache", *files)
    run(tree, "ruff", "format", "--check", *files)


def test_what_is_listed_is_tested_by_the_contracts(tree: Path) -> None:
    compressor, scheme = names()
    own = {Path(path).stem: path for path in FILES if path.startswith("tests/")}
    pick = " or ".join((compressor, scheme, *own))
    run(tree, "pytest", *CONTRACTS, *own.values(), "-k", pick, "-p", "no:cacheprovider", "--junitxml=junit.xml")
    cases = re.findall(r'<testcase classname="tests\.\w+\.(\w+)" name="(.+?)"', (tree / "junit.xml").read_text())
    assert set(own) <= {file for file, _ in cases}
    for name, registry in ((compressor, "test_compressors"), (scheme, "test_residual_properties")):
        files = {file for file, test in cases if re.search(rf"[\[-]{name}[\]-]", test)}
        assert files >= {registry, "test_streamed", "test_memory"}, name


def test_what_is_listed_gets_a_row_in_the_tables(tree: Path) -> None:
    cell = json.loads(FILES["cell.json"])
    folder = tree / "results/runs/mine"
    assert [cell["compressor"], cell["scheme"]] == names()
    assert len(run(tree, "benchmarks", "cells", "--config", "mine.yaml").splitlines()) == 45
    said = run(tree, "benchmarks", "run", "--cell", "cell.json", "--output", "result.json")
    record = json.loads((tree / "result.json").read_text())
    assert record["status"] == "ok" and "model states" in said
    (folder / "cells").mkdir(parents=True)
    (tree / "result.json").rename(folder / f"cells/{said.partition(':')[0]}.json")
    (folder / "config.json").write_text(json.dumps({"matrix": [cell]}))
    run(tree, "benchmarks", "report", "--run", str(folder))
    for table, column in (("memory", "residuals_bytes"), ("accuracy", "metric_mean")):
        with (folder / f"tables/{table}.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert [row["compressor"], row["scheme"]] == names()
        assert float(row[column]) > 0, f"{table}: a row that is a hole"


def test_a_compressor_of_ones_own_sends_what_it_selects() -> None:
    [code] = re.findall(r"^```python\n(from dataclasses.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    model = seeded(lambda: torch.nn.Linear(120, 120))
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    exec(code.replace("density=0.25)", 'density=0.25), backend="local"'), names)
    before = model.weight.detach().clone()
    for quarters in (1, 2, 3, 4):  # other elements of the weight in each step
        names["optimizer"].zero_grad()
        model(torch.randn(8, 120, generator=torch.Generator().manual_seed(0))).square().mean().backward()
        names["optimizer"].step()
        assert int((model.weight != before).sum()) == quarters * 3600


def test_a_compressor_with_a_state_and_rounds_is_the_same_on_all_ranks() -> None:
    [code] = re.findall(r"^```python\n(import torch\nfrom dataclasses.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    models = [seeded(lambda: torch.nn.Linear(120, 100)) for _ in range(2)]

    def rank(communicator: Communicator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model, own = models[communicator.rank], code.replace("density=0.1)", "density=0.1), backend=communicator")
        names: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        names |= {"resireduce": resireduce, "communicator": communicator}
        exec(own, names)
        for step in range(3):
            before = model.weight.detach().clone()
            names["optimizer"].zero_grad()
            inputs = torch.randn(8, 120, generator=torch.Generator().manual_seed(2 * step + communicator.rank))
            model(inputs).square().mean().backward()
            names["optimizer"].step()
            assert int((model.weight != before).any(1).sum()) == 10
        return model.weight.detach().clone(), names["optimizer"].residual_state_dict()

    first, second = LocalWorld(2).run(rank)
    assert torch.equal(first[0], second[0])
    norms = first[1]["compressor.weight.norms"]
    assert norms.all() and torch.equal(norms, second[1]["compressor.weight.norms"])

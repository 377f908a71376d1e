"""The configs that are shipped: they can be used, hold what they say, and share what they can."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand_parts
from benchmarks.core.run_config import get_cells, get_config

FOLDER = Path(__file__).parents[3] / "benchmarks/config"
CONFIGS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str, part: str | None = None) -> dict[str, Any]:
    return read_config(FOLDER / f"{name}.yaml", part)


def parts(name: str) -> dict[str, list[Cell]]:
    return expand_parts({key: value for key, value in read(name).items() if key != "run"})


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_is_valid_and_can_be_run_again_from_its_json(name: str) -> None:
    config = read(name)
    assert config["run"] == name
    cells = get_cells(config)
    again = json.loads(json.dumps(get_config(config)))
    assert get_cells(again) == cells
    said = re.search(r"([\d,]+) cells", (FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert said and int(said[1].replace(",", "")) == len(cells)


def test_the_config_of_a_part_holds_the_part() -> None:
    config = get_config(read("mini", "table,distributions"))
    assert len(get_cells(config)) == 108 and get_cells(config) == get_cells(read("mini", "distributions,table"))


def test_paper_has_the_worlds_of_the_paper() -> None:
    cells = parts("paper")
    for part, sizes in {"fig2": {4}, "fig4": {8, 16, 32, 64}, "exp1-local": {8}, "exp1-cloud": {64}}.items():
        assert {cell.world_size for cell in cells[part]} == sizes
    assert {cell.world_size for cell in cells["exp3"]} == {16, 32, 64}
    assert set(cells["exp5"]) & set(cells["exp2-local"]), "shared cells are trained once"
    assert all(cell.gradients == "kept" for cell in cells["exp2-local"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: null", "run: None is not allowed; give a folder name"),
        ("defaults: {<<: {seed: 1}, <<: {threads: 2}}", "line 1, column 11: key '<<' is there twice"),
        ("defaults: {seed: 2001-13-45}", "month must be in 1..12; mend that place, as in"),
    ],
)
def test_a_value_that_would_mean_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "x.yaml").write_text(f"{text}\nmatrix: [{{model: vgg-digits}}]\n")
    assert main(["cells", "--config", str(tmp_path / "x.yaml")]) == 2
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1 and len(found) < 1000


def test_the_cells_of_a_part_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "paper.yaml")
    assert main(["cells", "--config", path, "--part", "fig2"]) == 0
    assert capsys.readouterr().out.split() == [
        f"{model}.topk.baseline.kept.d0.01.s0.n4.steps20.synthetic"
        for model in ("resnet50", "vgg19", "bert-base", "gpt2-medium")
    ]
    assert main(["cells", "--config", path, "--part", "fig1"]) == 2
    said = capsys.readouterr().err
    assert "part: 'fig1' is not known (did you mean" in said and said.count("\n") == 1

"""Steps of the paper's models at full size: the smallest on real tensors, the others on tensors without storage."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from benchmarks.core.workloads import PAPER, WORKLOADS
from resireduce.planning.memory import ModelStates

CONFIG = read_config(Path(__file__).parents[3] / "benchmarks/config/full-size.yaml")
CELLS = {cell.model: cell for cell in expand({key: CONFIG[key] for key in ("defaults", "matrix")})}
ELEMENTS = {
    "resnet50": (23_705_252, 23_441_408 - 14_065_664),
    "vgg19": (143_678_248, 143_650_816 - 90_046_464),
    "bert-base": (108_897_794, 108_773_376 - 74_207_232),
    "bert-large": (334_100_482, 333_774_848 - 224_772_096),
    "gpt2-medium": (354_823_168, 354_501_632 - 239_924_224),
    "gpt2-large": (774_030_080, 773_428_480 - 520_106_240),
}
"""Of parameters, and of what is left of residuals under w+2d, by hand from the models' shapes."""


def test_the_matrix_is_the_papers_models():
    assert list(CELLS) == [workload.model for workload in PAPER] == list(ELEMENTS)
    assert {(cell.steps, cell.scheme, cell.gradients, cell.data) for cell in CELLS.values()} == {
        (2, "w+2d", "streamed", "synthetic")
    }


def check_bytes(model: str, states: ModelStates) -> None:
    parameters, residuals = (4 * count for count in ELEMENTS[model])
    copies = 1 if WORKLOADS[model].optimizer == "sgd" else 2
    assert states.parameters == parameters
    assert states.gradients == 0
    assert states.optimizer_states == pytest.approx(copies * parameters, rel=1e-5)  # Adam counts its steps
    assert residuals <= states.residuals <= residuals + 300_000, "indices of rows and columns are counted too"


def test_resnet50_takes_a_step(tmp_path):
    spec, output = tmp_path / "cell.json", tmp_path / "out.json"
    spec.write_text(json.dumps(CELLS["resnet50"].to_dict() | {"steps": 1}))
    assert main(["run", "--cell", str(spec), "--output", str(output)]) == 0
    record = CellResult.load(output)
    assert (record.status, record.steps, record.metric_name) == ("ok", 1, "top1")
    parts = ("parameters", "gradients", "residuals", "optimizer_states")
    check_bytes("resnet50", ModelStates(**{part: getattr(record, f"{part}_bytes") for part in parts}))

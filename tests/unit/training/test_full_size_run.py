"""A step of the smallest of the paper's models at full size."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from benchmarks.core.workloads import PAPER

PARAMETERS, RESIDUALS = 23_705_252, 23_441_408 - 14_065_664
"""Elements, and what is left of residuals under w+2d, by hand from the model's shapes."""


def test_resnet50_takes_a_step(tmp_path):
    config = read_config(Path(__file__).parents[3] / "benchmarks/config/full-size.yaml")
    cells = {cell.model: cell for cell in expand({key: config[key] for key in ("defaults", "matrix")})}
    assert list(cells) == [workload.model for workload in PAPER]
    spec, output = tmp_path / "cell.json", tmp_path / "out.json"
    spec.write_text(json.dumps(cells["resnet50"].to_dict() | {"steps": 1}))
    assert main(["run", "--cell", str(spec), "--output", str(output)]) == 0
    record = CellResult.load(output)
    assert (record.status, record.steps, record.metric_name) == ("ok", 1, "top1")
    assert (record.parameters_bytes, record.gradients_bytes) == (4 * PARAMETERS, 0)
    assert record.optimizer_states_bytes == pytest.approx(4 * PARAMETERS, rel=1e-5)
    indices = record.residuals_bytes - 4 * RESIDUALS
    assert 0 <= indices <= 300_000, "those of rows and columns are counted too"

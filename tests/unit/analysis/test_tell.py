"""Which models can tell schemes apart: the rule, in both directions of a metric."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.analysis.statistics import t_quantile
from benchmarks.analysis.tables.accuracy import load_tells
from tests.records import make_result, save_run

CONFIG = yaml.safe_load((Path(__file__).parents[3] / "benchmarks/config/tell.yaml").read_text())
METRICS = {  # of three seeds: with residuals, without
    "resnet-digits": ([90.0, 91.0, 92.0], [80.0, 81.0, 82.0]),
    "vgg-digits": ([90.0, 91.0, 92.0], [89.0, 91.0, 90.0]),
    "gpt2-bytes": ([5.0, 5.1, 5.2], [6.0, 6.1, 6.2]),
    "bert-questions": ([30.0, 31.0, 32.0], [40.0, 41.0, 42.0]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {key: value for key, value in CONFIG.items() if key != "run"}
    config["matrix"] = [{**entry, "seed": [0, 1, 2]} for entry in config["matrix"]]
    config["matrix"].append(config["matrix"][1] | {"gradients": "streamed"})
    own = lambda cell: METRICS[cell.model][cell.scheme == "none"][cell.seed]  # noqa: E731
    metric = lambda cell: own(cell) if cell.gradients == "kept" else 50.0  # noqa: E731
    return save_run(tmp_path, config, lambda cell: replace(make_result(cell), metric=metric(cell)))


def test_a_model_tells_if_no_residuals_are_worse_by_the_whole_interval(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder / "tell.json"
    assert main(["summary", "tell", "--run", str(folder)]) == 0
    assert load_tells(output) == {
        "resnet-digits": True,
        "vgg-digits": False,
        "gpt2-bytes": True,
        "bert-questions": False,
    }
    entry = json.loads(output.read_text())["models"]["resnet-digits"]
    width = pytest.approx(t_quantile(0.975, 2) / 3**0.5)
    assert entry["baseline"] == {"mean": 91.0, "half_width": width, "values": [90.0, 91.0, 92.0]}
    assert entry["loss"] == {"mean": 10.0, "half_width": 0.0, "values": [10.0] * 3}
    assert "bert-questions: does not tell: without residuals worse by -10.000 ± " in capsys.readouterr().out


def test_a_seed_that_is_missing_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(folder.glob("cells/vgg-digits.topk.none.*s1.json")).unlink()
    assert main(["summary", "tell", "--run", str(folder), "--output", str(folder / "tell.json")]) == 2
    assert "vgg-digits, none: 2 seeds are there, needed are 3" in capsys.readouterr().err
    assert not (folder / "tell.json").exists()


def test_records_that_the_ledger_does_not_count_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rule counts these, whose steps took no time, like any other."""
    assert main(["summary", "tell", "--run", str(folder), "--output", str(folder / "tell.json")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("Note: ") and "These figures count it, the ledger does not count it." in said

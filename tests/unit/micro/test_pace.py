"""`python -m benchmarks measure pace`: cells are timed in turn, in the same processes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.micro import pace


def stand_in(folder: Path, seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that trains nothing: it copies settings.json to `folder` and says that rounds took these seconds."""
    rank = folder / "python"
    left = f'echo "{{\\"seconds\\": {seconds}, \\"merged\\": []}}" > "$4/rank$RANK.json"\n'
    rank.write_text(f'#!/bin/sh\ncp "$4/settings.json" "{folder}"\necho >> "{folder}/starts"\n{left}')
    rank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(rank))


def test_pairs_of_one_process_have_one_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "[[2.0, 4.0], [1.0, 4.0], [4.0, 8.0], [1.0, 1.0]]", monkeypatch)
    settings = pace.PAIRS["every"][0]
    cells = [replace(Cell(model="resnet50", data="synthetic"), **one) for one in settings]
    streamed, shared, _ = pace.compare(cells, 2, 1)
    timed = json.loads((tmp_path / "settings.json").read_text())["cells"]
    assert [(cell["scheme"], cell["gradients"]) for cell in timed] == [
        (one["scheme"], one["gradients"]) for one in settings
    ]
    assert (streamed["ratios"], shared["ratios"]) == ([2.0, 1.0], [0.5, 0.5])
    assert (shared["scheme"], shared["against"]["scheme"]) == ("w+2d", "baseline")


def test_with_several_starts_the_interval_is_over_their_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, f"[[2.0, $(wc -l < {tmp_path}/starts)], [1.0, 2.0]]", monkeypatch)
    cell = Cell(model="resnet50", data="synthetic", world_size=1, backend="local")
    (row,) = pace.compare([cell, replace(cell, gradients="streamed")], 2, 1, 3)
    assert row["ratios"] == [1.25, 1.5, 1.75] and row["pairs"] == 3
    assert row["ratio"] == 1.5 and row["half_width"] == pytest.approx(0.25 / 3**0.5 * 4.303, rel=1e-3)
    assert (row["against"]["step_seconds"], row["step_seconds"]) == (1.0, 1.0)


def test_settings_of_a_config_are_beside_none(tmp_path: Path) -> None:
    """At the mean of the rounds' ratios, within them, and by what the two ranks took."""
    config, output = tmp_path / "own.yaml", tmp_path / "pace.json"
    entries = "{compressor: [none, signum], scheme: none}, {compressor: topk, density: 0.01}"
    config.write_text(f"defaults: {{model: vgg-digits}}\nmatrix: [{entries}]\n")
    options = ["--models", "vgg-digits", "--rounds", "3", "--steps", "1", "--output", str(output)]
    assert main(["measure", "pace", "--config", str(config), *options]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [(row["compressor"], row["scheme"], row["density"]) for row in rows] == [
        ("signum", "none", 1),
        ("topk", "baseline", 0.01),
    ]
    for row in rows:
        assert row["against"]["compressor"] == "none" and row["pairs"] == len(row["ratios"]) == 3
        assert min(row["ratios"]) < row["ratio"] < max(row["ratios"]) and row["half_width"] > 0
        assert row["step_seconds"] > 0 and row["against"]["step_seconds"] > 0

"""`python -m benchmarks measure pace`: cells are timed in turn, in the same processes."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import SMALL
from benchmarks.micro import pace


def test_ratios_and_their_intervals(tmp_path: Path) -> None:
    """At the mean of the rounds' ratios, within them, and by what the two ranks took."""
    output = tmp_path / "pace.json"
    options = ["--models", "vgg-digits", "--rounds", "3", "--steps", "1", "--output", str(output)]
    assert main(["measure", "pace", *options]) == 0
    row, shared = json.loads(output.read_text())["rows"]
    assert (row["model"], row["scheme"], shared["scheme"]) == ("vgg-digits", "baseline", "w+2d")
    assert (row["gradients"], row["against"]["gradients"]) == ("streamed", "kept")
    assert row["pairs"] == len(row["ratios"]) == 3 and row["half_width"] > 0
    assert min(row["ratios"]) < row["ratio"] < max(row["ratios"])
    assert row["step_seconds"] > 0 and row["against"]["step_seconds"] > 0


def stand_in(folder: Path, seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that trains nothing: it copies settings.json to `folder` and says that rounds took these seconds."""
    rank = folder / "python"
    left = f'echo "{{\\"seconds\\": {seconds}, \\"merged\\": []}}" > "$4/rank$RANK.json"\n'
    rank.write_text(f'#!/bin/sh\ncp "$4/settings.json" "{folder}"\necho >> "{folder}/starts"\n{left}')
    rank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(rank))


def test_pairs_of_one_process_have_one_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "[[2.0, 4.0], [1.0, 4.0], [4.0, 8.0], [1.0, 1.0]]", monkeypatch)
    cell = Cell(model="resnet50", data="synthetic")
    settings = pace.PAIRS["every"][0]
    cells = [replace(cell, **one) for one in settings]
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


def test_unless_told_streaming_is_timed_with_each_scheme_and_no_committed_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    together: list[list[Cell]] = []
    monkeypatch.setattr(pace, "compare", lambda cells, *_: together.append(cells) or [])
    assert main(["measure", "pace"]) == 0
    assert [(first.model, first.scheme) for first, _ in together] == [
        (one.model, scheme) for one in SMALL for scheme in ("baseline", "w+2d")
    ]
    for cells in together:
        assert len({cell.scheme for cell in cells}) == 1 and [cell.gradients for cell in cells] == ["kept", "streamed"]
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")] == [Path("results/runs/pace.json")]
    assert "results/runs/pace.json" in capsys.readouterr().out


def test_settings_of_a_config_are_beside_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = tmp_path / "own.yaml", tmp_path / "pace.json"
    only = "{model: vgg-digits, compressor: [none, signum, topk], density: 0.01}"
    config.write_text(f"extends: {ROOT}/benchmarks/config/rivals.yaml\nonly: {only}\n")
    options = ["--models", "vgg-digits", "--rounds", "2", "--steps", "1", "--ranks", "1", "--output", str(output)]
    assert main(["measure", "pace", "--config", str(config), *options]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [(row["compressor"], row["scheme"], row["density"]) for row in rows] == [
        ("signum", "none", 1),
        ("topk", "baseline", 0.01),
    ]
    assert {row["against"]["compressor"] for row in rows} == {"none"}
    assert "vgg-digits: topk 0.01, baseline, streamed against none, none, streamed: " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--rounds 1", "--steps 0", "--ranks 0", "--starts 0"])
def test_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    option, value = option.split()
    assert main(["measure", "pace", option, value, "--output", str(tmp_path / "pace.json")]) == 2
    assert f"{option[2:]}: {value} is not allowed" in capsys.readouterr().err


def test_ranks_without_a_gpu_say_so_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = ["--models", "vgg-digits", "--device", "cuda", "--output", str(tmp_path / "pace.json")]
    assert main(["measure", "pace", *options]) == 2
    first, second, last = sorted(capfd.readouterr().err.splitlines(), key=lambda line: line.startswith("error: "))
    assert {first[:8], second[:8]} == {"rank 0: ", "rank 1: "} and last.startswith("error: ")
    assert "'cuda' is not allowed without a CUDA device; set cpu, or leave it out" in first


def test_ctrl_c_is_left_to_the_process_that_started_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to all: each rank would print where it was."""
    stand_in(tmp_path, f"$(cut -d ' ' -f 6 /proc/self/stat > {tmp_path}/session)[[2.0, 4.0], [1.0, 4.0]]", monkeypatch)
    cell = Cell(model="resnet50", data="synthetic", world_size=1, backend="local")
    pace.compare([cell, replace(cell, gradients="streamed")], 2, 1)
    assert int((tmp_path / "session").read_text()) != os.getsid(0)

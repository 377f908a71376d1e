"""`python -m benchmarks pace`: cells are timed in turn, in the same processes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import pace
from benchmarks.__main__ import main
from benchmarks.cell import Cell


def test_ratios_and_their_intervals(tmp_path: Path) -> None:
    """At the mean of the rounds' ratios, within them, and by what the two ranks took."""
    output = tmp_path / "pace.json"
    options = ["--models", "vgg-digits", "--rounds", "3", "--steps", "1", "--output", str(output)]
    assert main(["pace", *options]) == 0
    found = json.loads(output.read_text())
    assert [(row["model"], row["scheme"]) for row in found["rows"]] == [
        ("vgg-digits", "baseline"),
        ("vgg-digits", "w+2d"),
    ]
    for row in found["rows"]:
        assert (row["gradients"], row["against"]["gradients"]) == ("streamed", "kept")
        assert row["pairs"] == len(row["ratios"]) == 3 and row["half_width"] > 0
        assert min(row["ratios"]) < row["ratio"] < max(row["ratios"])
        assert row["step_seconds"] > 0 and row["against"]["step_seconds"] > 0


def test_pairs_of_one_process_have_one_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def times(cells: Sequence[Cell], rounds: int, steps: int) -> list[list[float]]:
        timed.append(cells)
        return [[2.0, 4.0], [1.0, 4.0], [4.0, 8.0]]

    monkeypatch.setattr(pace, "_times", times)
    streamed, shared = pace.compare(Cell(model="resnet50", data="synthetic"), pace.PAIRS["both"][0], 2, 1)
    assert [(cell.scheme, cell.gradients) for cell in timed[0]] == [*pace.PAIRS["both"][0]]
    assert (streamed["ratios"], shared["ratios"]) == ([2.0, 1.0], [0.5, 0.5])
    assert (shared["scheme"], shared["against"]["scheme"]) == ("w+2d", "baseline")


@pytest.mark.parametrize(("option", "value"), [("--rounds", "1"), ("--steps", "0"), ("--ranks", "0")])
def test_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert main(["pace", option, value, "--output", str(tmp_path / "pace.json")]) == 2
    assert f"{option[2:]}: {value} is not allowed" in capsys.readouterr().err

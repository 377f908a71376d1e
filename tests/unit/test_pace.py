"""`python -m benchmarks pace`: both kinds of gradients are timed in turn, in the same processes."""

import json
from pathlib import Path

import pytest

from benchmarks import pace
from benchmarks.__main__ import main
from benchmarks.workloads import SMALL


def test_ratios_and_their_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the mean of the rounds' ratios, within them, and by what the two ranks took."""
    monkeypatch.setattr(pace, "SMALL", [one for one in SMALL if one.model == "vgg-digits"])
    output = tmp_path / "pace.json"
    assert main(["pace", "--rounds", "3", "--steps", "1", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert [(row["model"], row["scheme"]) for row in found["rows"]] == [("vgg-digits", one) for one in pace.SCHEMES]
    for row in found["rows"]:
        assert row["pairs"] == len(row["ratios"]) == 3 and row["half_width"] > 0
        assert min(row["ratios"]) < row["ratio"] < max(row["ratios"])
        assert row["kept_step_seconds"] > 0 and row["streamed_step_seconds"] > 0


@pytest.mark.parametrize(("option", "value"), [("--rounds", "1"), ("--steps", "0")])
def test_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert main(["pace", option, value, "--output", str(tmp_path / "pace.json")]) == 2
    assert f"{option[2:]}: {value} is not allowed" in capsys.readouterr().err

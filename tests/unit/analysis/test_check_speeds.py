"""`python -m benchmarks check` of a record of `make micro`: ratios to the naive form are guarded, seconds are not."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


def record(ratio: float, cpu: str = "fast", threads: int = 2) -> dict[str, object]:
    cases = {"naive": 1.0, "topk, baseline": ratio, "topk, w": 4.0}
    rows = [{"elements": 64, "density": 0.01, "case": case, "naive_ratio": found} for case, found in cases.items()]
    return {"rows": rows, "device": "cpu", "threads": threads, "measured": {"cpu": cpu}}


def check(folder: Path, *more: str) -> int:
    return main(["check", "--run", str(folder), "--reference", str(folder / "reference"), *more])


@pytest.mark.parametrize(("ratio", "status"), [(10.0, 0), (6.7, 0), (6.6, 1)])
def test_a_third_slower_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: float, status: int) -> None:
    (tmp_path / "micro.json").write_text(json.dumps(record(10.0)))
    assert check(tmp_path, "--accept", "first") == 0
    (tmp_path / "micro.json").write_text(json.dumps(record(ratio)))
    assert check(tmp_path) == status
    said = capsys.readouterr().out
    assert ("topk, baseline, 64 elements, density 0.01: 6.60 times as fast" in said) == bool(status)
    assert f"{status} of 2 cases are slower" in said


def test_what_is_missing_fails_and_another_processor_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reference.json").write_text(json.dumps(record(10.0)))
    values = record(10.0)
    values["rows"] = values["rows"][:2]  # type: ignore[index]
    (tmp_path / "micro.json").write_text(json.dumps(values))
    assert check(tmp_path) == 1
    assert "topk, w, 64 elements, density 0.01: missing" in capsys.readouterr().out
    (tmp_path / "micro.json").write_text(json.dumps(record(10.0, "slow")))
    assert check(tmp_path) == 2
    assert "was measured with cpu 'fast', the run with 'slow'" in capsys.readouterr().err


def test_a_case_that_is_there_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one could hide that the first is slower."""
    (tmp_path / "reference.json").write_text(json.dumps(record(10.0)))
    values = record(5.0)
    values["rows"] += record(10.0)["rows"]  # type: ignore[operator]
    (tmp_path / "micro.json").write_text(json.dumps(values))
    assert check(tmp_path) == 2
    assert (
        "is no record of speeds: ValueError: naive, 64 elements, density 0.01 is there twice;"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", None),
        ("device", 3),
        ("rows", []),
        ("rows", [{"elements": 1, "density": 0.1, "case": "a", "naive_ratio": "x"}]),
        ("rows", [{"elements": 1, "density": 0.1, "case": "a", "naive_ratio": -5}]),
    ],
)
def test_a_field_that_cannot_be_compared_becomes_no_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    good, bad = record(10.0), record(10.0) | {name: value}
    for run, reference in ((bad, good), (good, bad)):
        (tmp_path / "micro.json").write_text(json.dumps(run))
        (tmp_path / "reference.json").write_text(json.dumps(reference))
        assert check(tmp_path) == 2
        said = capsys.readouterr().err
        assert "is no record of speeds: " in said and said.count("\n") == 1
    (tmp_path / "micro.json").write_text(json.dumps(bad))
    (tmp_path / "reference.json").write_text(json.dumps(good))
    assert check(tmp_path, "--accept", "why") == 2
    assert json.loads((tmp_path / "reference.json").read_text()) == good


def test_speeds_do_not_take_the_place_of_other_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "micro.json").write_text(json.dumps(record(10.0)))
    committed = (Path(__file__).parents[3] / "results/reference/memory-cpu.json").read_text()
    (tmp_path / "reference.json").write_text(committed)
    assert check(tmp_path, "--accept", "why") == 2
    said = capsys.readouterr().err
    assert "micro.json is a record of speeds, and" in said and "stays as it is" in said and said.count("\n") == 1
    assert (tmp_path / "reference.json").read_text() == committed

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


def test_another_number_of_threads_is_refused_with_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reference.json").write_text(json.dumps(record(10.0, threads=2)))
    (tmp_path / "micro.json").write_text(json.dumps(record(10.0, threads=1)))
    assert check(tmp_path) == 2
    said = capsys.readouterr().err
    assert "was measured with threads 2, the run with 1" in said and "python -m benchmarks micro --threads 2" in said


def test_another_file_is_refused_with_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reference.json").write_text(json.dumps(record(10.0)))
    (tmp_path / "micro.json").write_text("[]")
    assert check(tmp_path) == 2
    assert "is no record of speeds" in capsys.readouterr().err

"""A damaged record of a testbed is refused in one line, before anything is simulated of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT

DROP = object()
INPUTS = ("settings", 0, "inputs")


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results/reference/beside-measured.json").read_text())
    return found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("steps",), DROP, "steps: missing"),
        (("settings", 0, "nodes"), None, "the record lacks or has a wrong "),
        (("settings", 1, "rate"), DROP, "the record lacks or has a wrong 'rate'"),
        ((*INPUTS, "messages", "in_node all_gather"), DROP, "a wrong 'in_node all_gather'"),
        ((*INPUTS, "compression", 0, "elements"), float("inf"), "not strict JSON"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    record: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: tuple[Any, ...],
    value: Any,
    said: str,
) -> None:
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    if value is DROP:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert main(["simulate", "--measured", str(tmp_path / "record.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: measured: ") and said in line
    assert line.endswith("make it with: python -m benchmarks testbed")

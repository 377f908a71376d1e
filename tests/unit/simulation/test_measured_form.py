"""A damaged record of a testbed is refused in one line, before anything is simulated of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT
from benchmarks.simulation.beside_measured import check_form

DROP = object()
INPUTS = ("settings", 0, "inputs")


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results/reference/beside-measured.json").read_text())
    return found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("settings",), [], "settings: [] is not allowed, but a list of at least one"),
        (("steps",), 0, "steps: 0 is not allowed, but a whole number, 1 or more"),
        (("settings", 0, "nodes"), None, "settings 0: nodes: None is not allowed, but a whole number"),
        (("settings", 1, "rate"), DROP, "settings 1: rate: missing"),
        (("settings", 0, "rows", 2, "median"), "x", "settings 0: rows 2: median: 'x' is not allowed, but a number"),
        (
            ("settings", 0, "rows", 0, "merge"),
            "best",
            "rows 0: merge: 'best' is not allowed, but a size in bytes, or one",
        ),
        ((*INPUTS, "cores"), -1, "settings 0: inputs: cores: -1 is not allowed"),
        ((*INPUTS, "passes", "flat"), DROP, "settings 0: inputs: passes: flat: missing"),
        ((*INPUTS, "passes", "node", "arrived_seconds"), 3, "arrived_seconds: 3 is not allowed, but values by name"),
        ((*INPUTS, "messages", "in_node all_gather"), DROP, "inputs: messages: in_node all_gather: missing"),
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


def test_the_committed_record_is_whole(record: dict[str, Any]) -> None:
    check_form(record, "measured")

"""Figures of results/reference that follow from others beside them, on which words and tables of pages rest, do."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.analysis.statistics import Interval, interval, median_interval, paired

REFERENCE = Path(__file__).parents[3] / "results/reference"
Row = dict[str, Any]
FULL = {"scheme": "baseline", "residual_dtype": None}
DENSE = {"compressor": "none", "scheme": "none"}
KEPT = {"scheme": "baseline", "gradients": "kept"}
AGAINST = {"precision": ("difference", FULL), "rivals": ("lost", DENSE), "systems": ("lost", {"system": "dense"})}
AGAINST |= {"mini": ("difference", KEPT), "smoke": ("difference", KEPT)}
"""By file: the name of what is compared seed by seed, and with which row of the same model."""


def load(name: str) -> Any:
    return json.loads((REFERENCE / f"{name}.json").read_text(encoding="utf-8"))


def one_of(rows: list[Row], **wanted: Any) -> Row:
    [found] = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found


def is_of(row: Row, name: str, found: Interval | None) -> None:
    """Compare the mean that a row states of so many pairs, and half of its interval, with what was found."""
    assert found is not None and row.get("pairs", found.n) == found.n, row
    half = None if found.half_width is None else pytest.approx(found.half_width, abs=1e-9)
    assert (row[f"{name}_mean"], row[f"{name}_half_width"]) == (pytest.approx(found.mean, abs=1e-9), half), row


@pytest.mark.parametrize("name", AGAINST)
def test_differences_between_settings_are_those_of_their_metrics(name: str) -> None:
    what, wanted = AGAINST[name]
    rows, compared = load(name)["rows"], 0
    for row in rows:
        other = one_of(rows, model=row["model"], **wanted)
        if row is not other and row.get(f"{what}_mean") is not None:
            sign = -1 if what == "lost" and row["higher_is_better"] else 1
            found = interval([sign * one for one in paired(row["metrics"], other["metrics"])])
            is_of(row, what, found)
            assert found is not None and row.get("verdict", found.verdict) == found.verdict
            compared += 1
    assert compared >= 16


def test_what_tells_schemes_apart_follows_from_its_values() -> None:
    for model, its in load("tell")["models"].items():
        for name in ("loss", "dense", "baseline", "w+2d", "none"):
            found = interval(its[name]["values"])
            assert found is not None
            assert [its[name]["mean"], its[name]["half_width"]] == pytest.approx([found.mean, found.half_width]), model
        sign = -1 if its["metric_name"] == "perplexity" else 1
        lost = [
            sign * (full - none) for full, none in zip(its["baseline"]["values"], its["none"]["values"], strict=True)
        ]
        assert its["loss"]["values"] == pytest.approx(lost), model
        assert its["tells"] == (its["loss"]["mean"] - its["loss"]["half_width"] > 0), model


def test_medians_of_steps_are_those_of_their_seconds() -> None:
    rows = load("links")["rows"]
    for row in rows:
        assert [row["median"], row["low"], row["high"]] == pytest.approx([*median_interval(row["step_seconds"])]), row
    cells = load("slow-links")["cells"]
    for cell in cells:
        assert cell["median_step_seconds"] == pytest.approx(median_interval(cell["step_seconds"][8:])[0]), cell
    assert len(rows) + len(cells) >= 28

"""The page about steps that were measured beside simulated ones is made from their record."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.core.paths import ROOT
from tests.unit.simulation.test_beside_measured import LAYERS, setting_of


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    return importlib.import_module("build_measured")


def test_the_page_has_what_its_record_says(script) -> None:  # type: ignore[no-untyped-def]
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.page(text), "python docs/build_measured.py writes it anew"


def test_the_block_is_the_table_and_the_shares(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    machine = {"cpu": "a processor", "cores": 2, "date": "2026-11-23T20:00:00+00:00"}
    found = {"model": "made", "rounds": 5, "steps": 2, "settings": [setting_of(), setting_of("one", "topk")]}
    (tmp_path / "record.json").write_text(json.dumps(found | {"measured": machine}))
    monkeypatch.setattr(script, "layers_of", lambda model: LAYERS)
    text = script.page(f"before\n{script.BEGIN}old\n{script.END}\nafter\n", tmp_path / "record.json")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert text.count("| 2 x 2 ") == 2 and "Measured on a processor, 2 cores, 2026-11-23." in text
    assert script.block(tmp_path / "none.json") == script.MISSING

"""What is published beside what is simulated."""

import json
import re

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims.claim import load_published
from benchmarks.analysis.table import to_markdown
from benchmarks.core.paths import ROOT
from benchmarks.simulation.beside import FILE, published_table
from benchmarks.simulation.cluster import presets
from benchmarks.simulation.wire import Layers, layers_of
from tests.simulated import make_layers


def rows_of(text: str) -> list[list[str]]:
    found = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in found][1:]


def on_page() -> list[list[str]]:
    page = (ROOT / "docs/simulate.md").read_text(encoding="utf-8")
    return rows_of(page.partition("<!-- simulated: published -->")[2].partition("<!-- simulated: end -->")[0])


def test_the_page_has_what_the_command_prints() -> None:
    known = {"resnet50": layers_of("resnet50")}
    expected = rows_of(to_markdown(published_table(known.__getitem__, ["resnet50"]), []))
    assert [row for row in on_page() if row[1] == "resnet50"] == expected, (
        "python -m benchmarks simulate --published makes the table of docs/simulate.md anew"
    )


def test_each_published_speed_has_a_row_and_says_that_it_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(model: str) -> Layers:
        return make_layers([(300, 300)] * 4)

    monkeypatch.setattr(Layers, "seconds", lambda self, device, seconds=None: (0.01, self.elements * 1e-7))
    found = published_table(made)
    monkeypatch.setattr("benchmarks.simulation.simulate_command.published_table", lambda: found)
    assert main(["simulate", "--published", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"simulated": True, "beside_published": found.records}
    assert [row[:4] for row in found.body] == [row[:4] for row in on_page()]
    assert "neither a measurement nor a reproduction" in found.reading and found.head[-2:] == ["Published", "Simulated"]
    losses = {one["model"]: one["published"] for one in found.records if one["quantity"] == "throughput_loss"}
    stated = {one.model: one.value for one in load_published().values() if one.quantity == "throughput_loss"}
    assert losses == stated, "Fig. 11"
    assert {one["cluster"] for one in found.records} <= presets().keys() and FILE.exists()

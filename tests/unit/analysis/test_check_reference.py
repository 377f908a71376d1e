"""References of the regression check: what becomes one, and what is refused as one."""

import json
import re
from unittest.mock import ANY

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.check.reference import Reference
from benchmarks.core.paths import ROOT
from tests.checked_runs import CONFIG, LABEL, MEASURED, VGG, change, residuals
from tests.records import path_of


def test_a_run_of_several_devices_is_no_reference(folder, capsys):
    change(folder, provenance=MEASURED | {"device": "NVIDIA H100"})
    assert main(["check", "--run", str(folder), "--reference", str(folder)]) == 2
    assert "has records of several: device ['NVIDIA H100', 'cpu']" in capsys.readouterr().err


def test_the_page_shows_what_the_reference_of_this_version_has():
    shown = (ROOT / "docs/artifact.md").read_text().partition("w+2d, kept on vgg-digits:")[2].partition("```")[0]
    before = {key: int(value.replace(",", "")) for key, value in re.findall(r"(\w+) ([\d,]+) -> ", shown)}
    rows = json.loads((ROOT / "results/reference/memory-cpu.json").read_text())["rows"]
    assert before == {"residuals": ANY, "total": ANY, "moment": ANY}
    kept = next(row for row in rows if row["residuals_bytes"] == before["residuals"] and ".kept." in row["name"])
    assert kept["cell"]["model"] == "vgg-digits" and kept["cell"]["scheme"] == "w+2d"
    assert (kept["total_bytes"], kept["peak_states_bytes"]) == (before["total"], before["moment"])


def test_a_run_is_a_reference_too(folder, capsys):
    assert main(["check", "--run", str(folder), "--reference", str(folder)]) == 0
    assert f"Note: {folder} is the run itself, so that nothing can differ" in capsys.readouterr().out
    assert main(["check", "--run", str(folder), "--reference", str(folder), "--accept", "x"]) == 2


def test_a_folder_of_references_has_one_for_the_device(folder, reference, tmp_path, capsys):
    several = tmp_path / "several"
    several.mkdir()
    text = reference.read_text()
    (several / "cpu.json").write_text(text)
    (several / "gpu.json").write_text(text.replace('"device": "cpu"', '"device": "NVIDIA H100"'))
    (several / "other.json").write_text('{"confidence": 0.95}')
    assert main(["check", "--run", str(folder), "--reference", str(several)]) == 0
    (several / "cpu2.json").write_text(text)
    assert main(["check", "--run", str(folder), "--reference", str(several)]) == 2
    assert "cpu.json, cpu2.json; name the file" in capsys.readouterr().err


def test_accepting_keeps_why_and_what_changed(folder, reference, check):
    before = len(reference.read_text().splitlines())
    change(folder, residuals_bytes=residuals(folder) + 147_000)
    check("--accept", "2d keeps  more\nrows", status=0)
    check(status=0)
    first, second = Reference.load(reference).history
    assert first["reason"] == "first" and first["changes"] == ["9 settings measured for the first time"]
    assert second["reason"] == "2d keeps more rows" and second["date"] and "commit" in second
    assert f"{LABEL}: saving 17.5 % -> 17.1 %: 0.4 points less" in second["changes"]
    assert len(second["changes"]) == 5 and before < len(reference.read_text().splitlines())
    text = reference.read_text()
    assert "stays as it is" in check("--accept", "again", status=0) and reference.read_text() == text


@pytest.mark.parametrize("spoil", ["empty", "hole", "twice", "mixed", "config", "lost"])
def test_what_cannot_be_accepted_leaves_the_reference(folder, reference, check, spoil):
    reason, text = "why", reference.read_text()
    if spoil == "empty":
        reason = " "
    elif spoil == "hole":
        path_of(folder, VGG).unlink()
    elif spoil == "twice":
        (folder / "cells/copy.json").write_text(path_of(folder, VGG).read_text())
    elif spoil == "mixed":
        change(folder, provenance=MEASURED | {"packages": {"torch": "2.9.1"}})
    elif spoil == "config":
        (folder / "config.json").write_text("{")
    else:
        config = CONFIG | {"matrix": CONFIG["matrix"][:1]}
        (folder / "config.json").write_text(json.dumps(config))
    said = check("--accept", reason, status=2)
    assert said.splitlines()[-1].startswith("error: accept: ") and reference.read_text() == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_bytes", 5),
        ("total_bytes", -1),
        ("parameters_bytes", "8"),
        ("seeds", []),
        ("seeds", [0, 0]),
        ("normalised", "1" * 6000),
        ("name", "x" * 6000),
        ("metric", "x"),
        ("cell", {"model": "unknown"}),
        ("color", 1),
        ("baseline_total_bytes", None),
        ("baseline_total_bytes", 1),
        ("normalised", 0.5),
    ],
)
def test_a_reference_with_a_wrong_row_is_refused(reference, check, name, value):
    values = json.loads(reference.read_text())
    values["rows"][0][name] = value
    reference.write_text(json.dumps(values))
    said = check(status=2)
    assert said.startswith(f"error: reference: {reference}: ") and said.count("\n") == 1
    assert len(said) < len(str(reference)) + 400


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": []}, "rows: '[]' is not a list of at least one setting"),
        ({"rows": "twice"}, "is there twice"),
        ({"history": [{"reason": float("nan")}]}, "NaN is not strict JSON"),
        ({"made_by": "me"}, "holds none; give a file that --accept wrote"),
        ({"format": True}, "has format True"),
        ({"more": 1}, "its keys differ by more"),
        ({"provenance": {}}, "provenance: '{}' is not a mapping of device, torch"),
        ({"provenance": {"device": ["cpu"]}}, "provenance: device: ['cpu'] is not a text"),
        ({"provenance": {"device": None}}, "provenance: device: None is not a text"),
        ({"history": []}, "history: '[]' is not a list of at least one"),
    ],
    ids=str,
)
def test_a_reference_with_a_gap_is_refused(reference, check, change, named):
    values = json.loads(reference.read_text())
    if change.get("provenance"):
        change = {"provenance": values["provenance"] | change["provenance"]}
    if change.get("rows") == "twice":
        change = {"rows": [*values["rows"], values["rows"][0]]}
    reference.write_text(json.dumps(values | change))
    said = check(status=2)
    assert said.startswith(f"error: reference: {reference}") and named in said and said.count("\n") == 1

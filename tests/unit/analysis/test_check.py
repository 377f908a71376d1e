"""The regression check: planted wrong records change it exactly as they should, and none crashes it."""

import json
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.check.check_command import UNEVEN, band_of
from benchmarks.analysis.check.reference import Reference
from benchmarks.analysis.claims.sound import load_planned
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.scheme import COMPRESSORS, load
from tests.checked_runs import CONFIG, LABEL, MEASURED, VGG, change, change_all, make, residuals, sound
from tests.records import make_result, path_of


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "x", CONFIG)


@pytest.fixture
def reference(folder, tmp_path, capsys):
    path = tmp_path / "reference.json"
    assert main(["check", "--run", str(folder), "--reference", str(path), "--accept", "first"]) == 0
    capsys.readouterr()
    return path


@pytest.fixture
def check(folder, reference, capsys):
    def run(*more, status):
        code = main(["check", "--run", str(folder), "--reference", str(reference), *more])
        said = capsys.readouterr()
        assert code == status, said.out + said.err
        return said.out + said.err

    return run


def test_a_smaller_saving_fails_and_is_named_and_a_larger_one_passes(folder, check):
    assert "9 settings\n\nCheck PASSED" in check(status=0)
    change(folder, residuals_bytes=residuals(folder) + 1)
    said = check(status=1)
    assert f"{LABEL}: saving" in said
    assert "residuals 2,520,000 -> 2,520,001: 1 bytes more" in said
    change(folder, residuals_bytes=residuals(folder) - 1 + 147_000)
    said = check(status=1)
    assert f"  {LABEL}: saving 17.50 % -> 17.06 %: 0.44 points less\n" in said
    assert "    residuals 2,520,000 -> 2,667,000: 147,000 bytes more\n" in said
    assert "WORSE than the reference: 1\n" in said and "Check FAILED: 1 settings" in said
    change(folder, residuals_bytes=residuals(folder) - 2 * 147_000)
    said = check(status=0)
    assert f"BETTER than the reference: 1\n  {LABEL}: saving 17.50 % -> 17.94 %: 0.44 points more" in said


def test_fewer_bytes_than_planned_are_tensors_that_were_not_measured(folder, tmp_path, capsys):
    planned = load_planned()["vgg-digits"].residuals_bytes["w+2d"]
    command = ["check", "--run", str(folder), "--reference", str(tmp_path / "planned.json")]
    change(folder, residuals_bytes=planned)
    assert main([*command, "--accept", "as planned"]) == main(command) == 0
    change(folder, residuals_bytes=planned - 4)
    assert main(command) == 1
    assert f"{LABEL}: residuals: 1,502,076 bytes, by plan 1,502,080: not all tensors were" in capsys.readouterr().out
    assert main([*command, "--accept", "meant"]) == main(command) == 0


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({"status": "oom", "reason": "out of memory in step 3"}, "oom: out of memory in step 3"),
        ({"metric": float("nan")}, "broken: half written or not JSON (NaN is not strict JSON"),
        ({"total_bytes": 5}, "broken: total_bytes: 5 is not the sum"),
        ({"cell": {"model": "vgg-digits"}}, "broken: the record is of another cell"),
    ],
)
def test_a_record_that_is_none_is_named(folder, check, planted, named):
    path = path_of(folder, VGG)
    path.write_text(json.dumps(json.loads(path.read_text()) | planted))
    said = check(status=1)
    assert f"NOT COMPARED, since there is no valid record: 1\n  {LABEL}: {named}" in said
    assert "Check FAILED" in said


def test_a_missing_record_is_named_and_fails_what_is_measured_by_it(folder, check):
    path_of(folder, Cell(model="vgg-digits")).unlink()
    path_of(folder, Cell(model="vgg-digits", scheme="none", seed=1)).unlink()
    said = check(status=1)
    assert "none (no residual), kept on vgg-digits, seed 1: not run" in said
    assert "not run: not run yet; to fill it: .venv/bin/snakemake" in said
    assert "baseline, kept on vgg-digits: not run" in said
    assert f"{LABEL}: saving: the reference has it, the run has not: there is no record of its baseline" in said


def test_cells_that_are_lost_gained_or_there_twice_are_named(folder, check):
    (folder / "cells/copy.json").write_text(path_of(folder, VGG).read_text())
    config = json.loads((folder / "config.json").read_text())
    config["matrix"][1] = {"model": "vgg-digits", "scheme": ["none", "w"]}
    (folder / "config.json").write_text(json.dumps(config))
    new = Cell(model="vgg-digits", scheme="w")
    path_of(folder, new).write_text(json.dumps(sound(make_result(new).to_dict() | {"provenance": MEASURED})))
    said = check(status=1)
    assert "none (no residual), kept on vgg-digits: missing: seeds 1 are in the reference and not in the run's" in said
    assert "NEW, not in the reference: 1\n  w, kept on vgg-digits: not in the reference" in said
    assert f"{LABEL}: there twice: cells/{VGG.name}.json and cells/copy.json" in said


def test_a_record_that_contradicts_itself_fails_and_becomes_no_reference(folder, reference, check):
    text, path = reference.read_text(), path_of(folder, VGG)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 0}))
    named = "steps: 0, so nothing was trained"
    said = check(status=1)
    assert f"{LABEL}: {named}" in said and "delete it, and run its cell again" in said
    said = check("--accept", "why", status=2)
    assert f"cannot be a reference: {VGG.name}: {named}" in said and reference.read_text() == text


def test_one_record_of_another_device_does_not_widen_the_bands_of_others(folder, check):
    change(folder, Cell(model="gpt2-bytes"), provenance=MEASURED | {"device": "NVIDIA H100"})
    assert "records of several setups, or none: device ['NVIDIA H100', 'cpu']" in check(status=2)


def test_speed_counts_as_a_ratio_to_the_baseline_within_a_band(folder, check):
    change_all(folder, steps_per_second=3.0)  # a slower machine: all ratios are 1
    check(status=0)
    change(folder, steps_per_second=3.0 * 0.8)
    assert f"{LABEL}: speed against the baseline's 1.075 -> 0.8" in check(status=1)


def test_a_lost_metric_fails_beyond_its_band_and_of_perplexity_more_is_worse(folder, check):
    old = json.loads(path_of(folder, VGG).read_text())["metric"]
    change(folder, metric=old * 0.98)
    check(status=0)
    change(folder, metric=old * 0.95)
    assert f"{LABEL}: metric 97.9955 -> 93.0958: 5 % less" in check(status=1)
    change(folder, metric=old)
    cell = Cell(model="gpt2-bytes", scheme="w+2d")
    old = json.loads(path_of(folder, cell).read_text())["metric"]
    change(folder, cell, metric=old * 1.1)
    check(status=1)
    change(folder, cell, metric=old * 0.9)
    assert "BETTER" in check(status=0)


def test_a_gpu_has_a_band(folder, reference, check):
    values = json.loads(reference.read_text())
    reference.write_text(json.dumps(values | {"provenance": values["provenance"] | {"device": "NVIDIA H100"}}))
    change_all(folder, provenance=MEASURED | {"device": "NVIDIA H100"})
    change(folder, residuals_bytes=residuals(folder) + 5000)
    check(status=0)
    change(folder, residuals_bytes=residuals(folder) + 142_000)
    assert f"{LABEL}: saving 17.50 % -> 17.0" in check(status=1)


def test_another_device_compares_states_in_a_band_and_no_peaks(folder, check):
    change_all(folder, provenance=MEASURED | {"device": "NVIDIA H100"}, peak_states_bytes=1)
    said = check(status=0)
    assert "Note: device is NVIDIA H100, that of the reference cpu" in said
    assert "bytes in flight and speeds are not compared" in said and "fullest moment" not in said


def test_another_torch_compares_peaks_in_a_band(folder, check):
    change_all(folder, provenance=MEASURED | {"packages": {"torch": "2.9.1"}})
    old = json.loads(path_of(folder, VGG).read_text())["peak_states_bytes"]
    change(folder, peak_states_bytes=old + 1000)
    assert "Note: torch is 2.9.1, that of the reference 2.13.0+cpu" in check(status=0)
    change(folder, peak_states_bytes=old * 2)
    check(status=1)


def test_messages_of_uneven_length_are_those_of_the_compressors():
    uneven = {name for name, one in COMPRESSORS.items() if not load(one.target).equal_sizes}
    assert set(UNEVEN) == uneven
    same = {"device": "cpu", "torch": "2.13.0"}
    bands = [band_of(name, one, same, same) for name in ("total_bytes", "in_flight_bytes") for one in ("topk", "dgc")]
    assert bands == [0, 0, 0, 0.05]


def test_the_junit_file_has_a_case_for_each_setting_and_no_escape_sequence(folder, check, tmp_path):
    change(folder, residuals_bytes=residuals(folder) + 147_000)
    text = '{"schema_version": 2, "\\u0000\\u001b<&": 1}'
    path_of(folder, Cell(model="gpt2-bytes", scheme="w+2d")).write_text(text)
    assert "\x1b" not in check("--junit", str(tmp_path / "out/junit.xml"), status=1)
    suite = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    failed = {case.get("name"): case.find("failure").text for case in suite if case.find("failure") is not None}
    assert len(suite) == 9 == int(suite.get("tests")) and len(failed) == 2 == int(suite.get("failures"))
    assert "saving 17.50 % -> 17.06 %: 0.44 points less\n" in failed[LABEL]
    assert "broken: " in failed["w+2d, kept on gpt2-bytes"]


def test_measuring_leaves_records_that_a_report_can_read(tmp_path):
    config = tmp_path / "one.yaml"
    config.write_text("matrix: [{model: vgg-digits, backend: local, world_size: 1, steps: 1, batch_per_rank: 2}]")
    arguments = ["--measure", str(config), "--run", str(tmp_path / "one"), "--reference", str(tmp_path / "r.json")]
    assert main(["check", *arguments, "--accept", "first"]) == 0
    (record,) = (tmp_path / "one/cells").glob("*.json")
    assert CellResult.load(record).status == "ok"
    assert main(["check", *arguments]) == 0


def test_accepting_keeps_why_and_what_changed(folder, reference, check):
    before = len(reference.read_text().splitlines())
    change(folder, residuals_bytes=residuals(folder) + 147_000)
    check("--accept", "2d keeps  more\nrows", status=0)
    check(status=0)
    first, second = Reference.load(reference).history
    assert first["reason"] == "first" and first["changes"] == ["9 settings measured for the first time"]
    assert second["reason"] == "2d keeps more rows" and second["date"] and "commit" in second
    assert f"{LABEL}: saving 17.50 % -> 17.06 %: 0.44 points less" in second["changes"]
    assert len(second["changes"]) == 5 and before < len(reference.read_text().splitlines())
    text = reference.read_text()
    assert "stays as it is" in check("--accept", "again", status=0)
    path_of(folder, VGG).unlink()
    for reason in (" ", "a hole"):
        assert "error: accept: " in check("--accept", reason, status=2)
    assert reference.read_text() == text


GAPS = {
    "rows": lambda values: {"rows": []},
    "twice": lambda values: {"rows": [*values["rows"], values["rows"][0]]},
    "made_by": lambda values: {"made_by": "me"},
    "format": lambda values: {"format": 2},
    "provenance": lambda values: {"provenance": {"device": "cpu"}},
    "NaN": lambda values: {"history": [{"reason": float("nan")}]},
} | {
    name: lambda values, name=name, value=value: {"rows": [values["rows"][0] | {name: value}, *values["rows"][1:]]}
    for name, value in {"total_bytes": 5, "seeds": [0, 0], "baseline_total_bytes": 1, "normalised": None}.items()
}


@pytest.mark.parametrize("gap", GAPS)
def test_a_reference_with_a_gap_is_refused(reference, check, gap):
    values = json.loads(reference.read_text())
    reference.write_text(json.dumps(values | GAPS[gap](values)))
    said = check(status=2)
    assert said.startswith(f"error: reference: {reference} cannot be compared with: ") and said.count("\n") == 1

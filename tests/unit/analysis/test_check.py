"""The regression check: planted wrong records change it exactly as they should, and none crashes it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.check_command import UNEVEN, Reference, band_of
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from resireduce.scheme import COMPRESSORS, build_compressor
from tests.claim_records import WASTE, make, origin, states
from tests.records import path_of, save_run

CONFIG = {
    "run": "x",
    "defaults": {"density": 0.01},
    "matrix": [
        {"model": ["vgg-digits", "gpt2-bytes"], "scheme": ["baseline", "w+2d"], "gradients": ["kept", "streamed"]},
        {"model": "vgg-digits", "scheme": "none", "seed": [0, 1]},
    ],
}
CELLS = expand({key: CONFIG[key] for key in ("defaults", "matrix")})
VGG, GPT = (Cell(model=model, scheme="w+2d") for model in ("vgg-digits", "gpt2-bytes"))
LABEL = "w+2d, kept on vgg-digits"
MORE = 300_000
"""Bytes of residuals that VGG holds beyond the plan, so that it can also hold fewer."""
FLYING = 200_000
GPU = {"device": "NVIDIA H100", "cuda": "12.6", "device_memory_bytes": 2**36, "gpu_uuids": ["GPU-0", "GPU-1"]}


def record(cell, more=0, source=(), **change):
    """A sound record with so many bytes of residuals more, of another origin, slower, worse ..."""
    more += MORE if cell == VGG else 0
    held = {name: value + more * (name in WASTE) for name, value in states(cell).items()}
    held |= {"in_flight_bytes": FLYING, "peak_states_bytes": held["total_bytes"] + FLYING}
    return make(cell, **(held | {"provenance": origin(cell) | dict(source)} | change))


@pytest.fixture
def folder(tmp_path):
    return save_run(tmp_path / "x", CONFIG, record)


@pytest.fixture
def put(folder):
    """Measure a cell anew."""
    return lambda cell=VGG, *more, **change: record(cell, *more, **change).save(path_of(folder, cell))


@pytest.fixture
def check(folder, tmp_path, capsys):
    path = tmp_path / "reference.json"

    def run(*more, status):
        code = main(["check", "--run", str(folder), "--reference", str(path), *more])
        said = capsys.readouterr()
        assert code == status, said.out + said.err
        return said.out + said.err

    run("--accept", "first", status=0)
    run.path = path
    return run


def test_a_smaller_saving_fails_and_is_named_and_a_larger_one_passes(put, check):
    assert "9 settings\n\nCheck PASSED" in check(status=0)
    put(VGG, 1)
    said = check(status=1)
    assert f"  {LABEL}: saving" in said and "residuals 1,802,080 -> 1,802,081: 1 bytes more" in said
    put(VGG, 147_000)
    said = check(status=1)
    assert "WORSE than the reference: 1\n" in said and "Check FAILED: 1 settings" in said
    assert f"  {LABEL}: saving 14.70 % -> 13.87 %: 0.83 points less\n" in said
    assert "    residuals 1,802,080 -> 1,949,080: 147,000 bytes more\n" in said
    put(VGG, -147_000)
    assert f"BETTER than the reference: 1\n  {LABEL}: saving 14.70 % -> 15.5" in check(status=0)


def test_fewer_bytes_than_planned_are_tensors_that_were_not_measured(put, check):
    put(VGG, -MORE)
    check(status=0)
    put(VGG, -MORE - 4)
    assert f"{LABEL}: residuals: 1,502,076 bytes, by plan 1,502,080: not all tensors were" in check(status=1)
    check("--accept", "meant", status=0)
    check(status=0)


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({"status": "oom", "reason": "out of memory in step 3"}, "oom: out of memory in step 3"),
        ({"metric": float("nan")}, "broken: half written or not JSON (NaN is not strict JSON"),
        ({"total_bytes": 5}, "broken: total_bytes: 5 is not the sum"),
        ({"cell": {"model": "vgg-digits"}}, "broken: the record is of another cell"),
        ({"steps": 0}, "steps: 0, so nothing was trained; such a record was not measured: delete it"),
    ],
)
def test_a_record_that_is_none_is_named_and_becomes_no_reference(folder, check, planted, named):
    path, text = path_of(folder, VGG), check.path.read_text()
    path.write_text(json.dumps(json.loads(path.read_text()) | planted))
    assert f"NOT COMPARED, since there is no valid record: 1\n  {LABEL}: {named}" in check(status=1)
    assert f"cannot be a reference: {VGG.name}: {named}" in check("--accept", "why", status=2)
    assert check.path.read_text() == text


def test_cells_that_are_missing_lost_gained_or_there_twice_are_named(folder, put, check):
    path_of(folder, Cell(model="gpt2-bytes")).unlink()
    (folder / "cells/copy.json").write_text(path_of(folder, VGG).read_text())
    config = json.loads((folder / "config.json").read_text())
    config["matrix"][1] = {"model": "vgg-digits", "scheme": ["none", "w"]}
    (folder / "config.json").write_text(json.dumps(config))
    put(Cell(model="vgg-digits", scheme="w"))
    said = check(status=1)
    assert "baseline, kept on gpt2-bytes: not run: not run yet; to fill it: .venv/bin/snakemake" in said
    assert "w+2d, kept on gpt2-bytes: saving: the reference has it, the run has not: there is no record of its" in said
    assert "none (no residual), kept on vgg-digits: missing: seeds 1 are in the reference and not in the run's" in said
    assert "NEW, not in the reference: 1\n  w, kept on vgg-digits: not in the reference" in said
    assert f"{LABEL}: there twice: cells/{VGG.name}.json and cells/copy.json" in said


def test_seeds_of_one_setting_hold_the_same(put, check):
    put(Cell(model="vgg-digits", scheme="none", seed=1), 4)
    assert "none (no residual), kept on vgg-digits, seed 1: it holds [" in check(status=1)


def test_speed_counts_as_a_ratio_to_the_baseline_within_a_band(put, check):
    for cell in CELLS:
        put(cell, slower=7.0)  # another machine
    check(status=0)
    put(VGG, slower=1.25 * 7.0)
    assert f"{LABEL}: speed against the baseline's 1 -> 0.8" in check(status=1)


def test_a_lost_metric_fails_beyond_its_band_and_of_perplexity_more_is_worse(put, check):
    put(VGG, worse=2.0)
    check(status=0)
    put(VGG, worse=5.0)
    assert f"{LABEL}: metric 9" in check(status=1)
    put(VGG)
    put(GPT, worse=10.0)
    assert "w+2d, kept on gpt2-bytes: metric" in check(status=1)
    put(GPT, worse=-10.0)
    assert "BETTER" in check(status=0)


def test_another_device_or_torch_compares_in_bands_and_one_record_of_another_is_refused(put, check):
    put(VGG, source=GPU)
    assert "records of several setups, or none: device ['NVIDIA H100', 'cpu']" in check(status=2)
    for cell in CELLS:
        put(cell, source=GPU)
    put(VGG, 4000, source=GPU)
    said = check(status=0)
    assert "Note: device is NVIDIA H100, that of the reference cpu: bytes in flight and speeds are not" in said
    put(VGG, 142_000, source=GPU)
    said = check(status=1)
    assert f"{LABEL}: saving 14.70 % -> 13." in said and "fullest moment" not in said
    old = {"packages": {"torch": "2.9.1"}}
    for cell in CELLS:
        put(cell, source=old)
    total = record(VGG).total_bytes
    for flying, status in ((FLYING + 1000, 0), (2 * FLYING, 1)):
        put(VGG, source=old, in_flight_bytes=flying, peak_states_bytes=total + flying)
        assert "Note: torch is 2.9.1, that of the reference 2.13" in check(status=status)


def test_messages_of_uneven_length_are_those_of_the_compressors():
    uneven = {name for name in COMPRESSORS if not build_compressor(name, 0.01).equal_sizes}
    assert set(UNEVEN) == uneven
    same = {"device": "cpu", "torch": "2.13.0"}
    bands = [band_of(name, one, same, same) for name in ("total_bytes", "in_flight_bytes") for one in ("topk", "dgc")]
    assert bands == [0, 0, 0, 0.05]


def test_the_junit_file_has_a_case_for_each_setting_and_no_escape_sequence(folder, put, check, tmp_path):
    put(VGG, 147_000)
    path_of(folder, GPT).write_text('{"schema_version": 2, "\\u0000\\u001b<&": 1}')
    assert "\x1b" not in check("--junit", str(tmp_path / "out/junit.xml"), status=1)
    suite = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    failed = {case.get("name"): case.find("failure").text for case in suite if case.find("failure") is not None}
    assert len(suite) == 9 == int(suite.get("tests")) and len(failed) == 2 == int(suite.get("failures"))
    assert "saving 14.70 % -> 13.87 %: 0.83 points less\n" in failed[LABEL]
    assert "broken: " in failed["w+2d, kept on gpt2-bytes"]


def test_measuring_leaves_records_that_a_report_can_read(tmp_path):
    config = tmp_path / "one.yaml"
    config.write_text("matrix: [{model: vgg-digits, backend: local, world_size: 1, steps: 1, batch_per_rank: 2}]")
    arguments = ["--measure", str(config), "--run", str(tmp_path / "one"), "--reference", str(tmp_path / "r.json")]
    assert main(["check", *arguments, "--accept", "first"]) == 0
    (path,) = (tmp_path / "one/cells").glob("*.json")
    assert CellResult.load(path).status == "ok"
    assert main(["check", *arguments]) == 0


def test_accepting_keeps_why_and_what_changed(put, check):
    put(VGG, 147_000)
    check("--accept", "2d keeps  more\nrows", status=0)
    check(status=0)
    first, second = Reference.load(check.path).history
    assert first["reason"] == "first" and first["changes"] == ["9 settings measured for the first time"]
    assert second["reason"] == "2d keeps more rows" and second["date"] and "commit" in second
    assert f"{LABEL}: saving 14.70 % -> 13.87 %: 0.83 points less" in second["changes"]
    assert len(second["changes"]) == 5
    text = check.path.read_text()
    assert "stays as it is" in check("--accept", "again", status=0)
    assert "error: accept: " in check("--accept", " ", status=2) and check.path.read_text() == text


GAPS = {
    "rows": lambda values: {"rows": []},
    "twice": lambda values: {"rows": [*values["rows"], values["rows"][0]]},
    "made_by": lambda values: {"made_by": "me"},
    "format": lambda values: {"format": 2},
    "provenance": lambda values: {"provenance": {"device": "cpu"}},
    "NaN": lambda values: {"history": [{"reason": float("nan")}]},
} | {
    name: lambda values, name=name, value=value: {"rows": [values["rows"][0] | {name: value}, *values["rows"][1:]]}
    for name, value in {
        "total_bytes": 5,
        "seeds": [0, 0],
        "baseline_total_bytes": 1,
        "normalised": None,
        "in_flight_bytes": None,
    }.items()
}


@pytest.mark.parametrize("gap", GAPS)
def test_a_reference_with_a_gap_is_refused(check, gap):
    values = json.loads(check.path.read_text())
    check.path.write_text(json.dumps(values | GAPS[gap](values)))
    said = check(status=2)
    assert said.startswith(f"error: reference: {check.path} cannot be compared with: ") and said.count("\n") == 1


def test_the_committed_reference_has_no_gap():
    assert len(Reference.load(Path("results/reference/memory-cpu.json")).rows) == 84

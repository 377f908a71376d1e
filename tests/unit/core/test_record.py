import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks.core.cell import Cell
from benchmarks.core.files import DEEPEST, all_finite, load_json
from benchmarks.core.matrix import expand, expand_parts
from benchmarks.core.record import BYTE_FIELDS, OPTIONAL, CellResult, RecordError
from benchmarks.core.scheme_options import OPTIONS
from resireduce.errors import ConfigError
from resireduce.residuals.base import options_of
from resireduce.scheme import SCHEMES, load
from tests.records import make_result

BAD_FIELDS = [
    ({"model": "gpt2-bites"}, "model: 'gpt2-bites' .*did you mean 'gpt2-bytes'"),
    ({"compressor": "top"}, "compressor: 'top' .*did you mean 'topk'.* allowed: "),
    ({"model": "bert-base-pretraining"}, "model: 'bert-base-pretraining' is not known"),  # planned only, no recipe
    ({"scheme": "w2d"}, "scheme: 'w2d' .*did you mean 'w[+]2d'"),
    ({"gradients": "streaming"}, "gradients: 'streaming' .* allowed: kept, streamed"),
    ({"backend": "mpi"}, "backend: 'mpi'"),
    *(({"density": value}, f"density: {value!r}") for value in (0, 1.5, -0.1, "abc", math.nan, math.inf, True, None)),
    *(({"seed": value}, f"seed: {value!r}") for value in (-1, 0.5, "0", True)),
    ({"seed": 2**70}, f"seed: {2**70} .* 0 to 4294967295"),
    ({"world_size": 0}, "world_size: 0 .* 1 to 128"),
    ({"world_size": 129}, "world_size: 129 .* 1 to 128"),
    ({"steps": 0}, "steps: 0 .* 1 to"),
    ({"compressor": "none", "scheme": "w"}, "scheme: 'w' .* compressor 'none'"),
    ({"backend": "local", "world_size": 2}, "world_size: 2 .* 'local'"),
    ({"options": {"ratio": 0.5}}, "options of scheme 'baseline': 'ratio' is not known; allowed: none"),
    ({"scheme": "partial", "options": {"ration": 0.5}}, "'ration' is not known .*did you mean 'ratio'"),
    ({"scheme": "partial", "options": {"ratio": 1.5}}, "ratio: 1.5 is not allowed"),
    ({"scheme": "member", "options": {"norm": 3}}, "norm: 3 is not allowed; give 1 or 2"),
    ({"scheme": "member", "options": {"smallest": 1}}, "smallest: 1 is not allowed; give true or false"),
    ({"scheme": "w+2d", "options": {"phi": -1}}, "phi: -1 is not allowed"),
    ({"scheme": "2d", "options": {"choice": "best"}}, "choice: 'best' is not known"),
    ({"scheme": "2d", "options": 3}, "options: 3 is not allowed; give names and values"),
    ({"observe": ["distribution"]}, "observe: 'distribution' .*did you mean 'distributions'"),
    ({"observe": "distributions"}, "observe: 'distributions' is not allowed; give a list"),
    ({"observe": ["distributions"], "scheme": "w"}, "observe: 'distributions' needs every tensor's own residual"),
    ({"hierarchy": "rack"}, "hierarchy: .rack. is not known; allowed: flat, node"),
    ({"hierarchy": "node", "world_size": 1}, "hierarchy: .node. is not allowed with world_size 1"),
    ({"ranks_per_node": 2}, "ranks_per_node: 2 is allowed with hierarchy .node. only"),
    ({"ranks_per_node": 3, "hierarchy": "node", "world_size": 4}, "ranks_per_node: 3 .* 4 ranks on a machine"),
    ({"slices": True}, "cell key: .slices. is not known"),
    ({"sheme": "w"}, "cell key: 'sheme' .*did you mean 'scheme'"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FIELDS)
def test_a_bad_field_is_named_in_one_line(change, message):
    with pytest.raises(ConfigError, match=message) as error:
        Cell.from_dict({"model": "gpt2-bytes", **change})
    assert "\n" not in str(error.value)
    for values in (None, 3, "gpt2-bytes", [], {}):
        with pytest.raises(ConfigError):
            Cell.from_dict(values)


def test_options_come_back_from_json_and_can_be_hashed():
    cells = [Cell(model="gpt2-bytes", scheme="partial", options={"ratio": ratio}) for ratio in (0.5, 0.25)]
    cells += [Cell(model="gpt2-bytes", scheme="member", options={"smallest": True, "norm": 2})]
    cells += [Cell(model="gpt2-bytes", observe=["distributions"])]
    cells += [Cell(model="gpt2-bytes", scheme="w+2d", gradients="streamed", density=0.05, seed=3, steps=7)]
    for cell in cells:
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == dataclasses.replace(cell) == cell
        failed = CellResult(cell=cell, status="error", reason="rank 1 was killed")
        assert CellResult.from_dict(json.loads(json.dumps(failed.to_dict()))) == failed
        assert all(getattr(failed, name) is None for name in BYTE_FIELDS)
    assert len(set(cells)) == len({cell.name for cell in cells}) == len(cells)
    assert cells[0].name == "gpt2-bytes.topk.partial.kept.d0.01.s0.ratio-0.5"
    assert cells[2].name == "gpt2-bytes.topk.member.kept.d0.01.s0.norm-2.smallest-true"
    assert not any(set(cell.name) & set("/\\ :*?'\"<>|{}") for cell in cells)
    assert cells[1].to_dict()["options"] == {"ratio": 0.25}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_options_of_a_scheme_are_those_of_its_residuals(scheme):
    kinds = SCHEMES[scheme]
    for kind in {kinds.grouped, kinds.specific, kinds.other} & OPTIONS.keys():
        assert {*OPTIONS[kind]} == {*options_of(load(kind))}


def test_names_are_unique_and_short_at_the_defaults():
    assert Cell(model="gpt2-bytes", scheme="w+2d").name == "gpt2-bytes.topk.w+2d.kept.d0.01.s0"
    changes = {"seed": 1, "density": 1e-7, "world_size": 4, "steps": 9, "residual_dtype": "bfloat16", "scheme": "w"}
    changes |= {"gradients": "streamed", "model": "vgg-digits"}
    cells = [Cell(**{"model": "gpt2-bytes", name: value}) for name, value in changes.items()]
    cells += [Cell(model="gpt2-bytes"), Cell(model="gpt2-bytes", backend="local", world_size=1)]
    cells += [Cell(model="gpt2-bytes", compressor="none", scheme="none")]
    assert len({cell.name for cell in cells}) == len(cells)
    assert not any(set(cell.name) & set("/\\ :*?'\"<>|") for cell in cells)


def test_density_means_nothing_without_compression():
    one, other = (Cell(model="gpt2-bytes", compressor="none", scheme="none", density=d) for d in (0.01, 0.1))
    assert one == other
    assert one.density == 1


def test_expand_is_a_product_without_duplicates():
    entry = {"model": ["gpt2-bytes", "vgg-digits"], "scheme": ["w", "2d"], "seed": [0, 1]}
    cells = expand({"defaults": {"density": 0.1}, "matrix": [entry, {**entry, "seed": 0}]})
    assert len(cells) == len(set(cells)) == 8
    assert {cell.density for cell in cells} == {0.1}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "matrix: None"),
        ({"matrix": [3]}, "matrix entry 1: entry: 3 is not a mapping"),
        ({"matrx": []}, "config key: 'matrx' .* 'matrix'"),
        ({"matrix": [{"model": "gpt2-bytes"}, {"scheme": "w"}]}, "matrix entry 2: model: missing; allowed: "),
        ({"matrix": [{"model": "gpt2-bytes", "seed": []}]}, "matrix entry 1: seed: "),
        ({"matrix": [{"model": "gpt2-bytes", "density": [0.1, 2]}]}, "matrix entry 1: density: 2 "),
        ({"matrix": [{"model": "gpt2-bytes", "schem": "w"}]}, "matrix entry 1: entry key: 'schem'"),
        ({"defaults": {"foo": 1}, "matrix": [{"model": "gpt2-bytes"}]}, "defaults key: 'foo'"),
        ({"defaults": [1], "parts": {"a": {"matrix": [{"model": "gpt2-bytes"}]}}}, "defaults: .* is not a mapping"),
        ({"parts": {"a": {"defaults": 3, "matrix": [{}]}}}, "part a: defaults: 3 is not a mapping"),
        ({"parts": []}, "parts: .. is not a mapping"),
        ({"parts": {1: {"matrix": [{"model": "gpt2-bytes"}]}}}, "parts: 1 is not allowed; give a text as its name, in"),
        ({"parts": {"a": {"title": {"x": 1}, "matrix": [{}]}}}, "part a: title: {'x': 1} is not allowed; give a text"),
        ({"parts": {"a": {"matrix": []}}}, "part a: matrix: "),
        ({"parts": {"a": {"matrx": []}}}, "part a key: 'matrx'"),
        ({"parts": {"a": {"matrix": [{"model": "gpt2"}]}}}, "part a: matrix entry 1: model: 'gpt2'"),
        ({"parts": {"a": {"matrix": [{"model": "gpt2-bytes"}]}}, "part": "b"}, "part: 'b' is not known.* allowed: a"),
        ({"matrix": [{"model": "gpt2-bytes"}], "part": "b"}, "part: 'b' is not known; allowed: none"),
    ],
)
def test_a_bad_matrix_is_named_in_one_line(config, message):
    with pytest.raises(ConfigError, match=message) as error:
        expand(config)
    assert "\n" not in str(error.value)


def test_parts_share_cells_and_are_chosen_by_name():
    one = {"title": "One", "defaults": {"density": 0.1}, "matrix": [{"scheme": ["w", "baseline"]}]}
    config = {
        "defaults": {"model": "gpt2-bytes", "density": 0.05},
        "matrix": [{"seed": 7}],
        "parts": {"one": one, "two": {"matrix": [{"density": [0.05, 0.1]}]}, "3": {"matrix": [{"seed": 9}]}},
    }
    parts = expand_parts(config)
    assert {name: len(cells) for name, cells in parts.items()} == {"matrix": 1, "one": 2, "two": 2, "3": 1}
    assert [cell.density for cell in parts["one"]] == [0.1, 0.1]
    assert len(expand(config)) == 5, "baseline at 0.1 is in two parts"
    assert [cell.density for cell in expand({**config, "part": "two"})] == [0.05, 0.1]
    assert expand({**config, "part": "two, one"}) == expand({**config, "part": ["one", "two"]})
    assert len(expand({**config, "part": 3})) == 1
    assert expand({**config, "part": ""}) == expand(config)


@pytest.fixture
def result():
    return make_result(Cell(model="gpt2-bytes", scheme="w"))


def test_a_record_comes_back_from_its_file(result, tmp_path):
    result.save(tmp_path / "new/cell.json")
    loaded = CellResult.load(tmp_path / "new/cell.json")
    assert loaded == result
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cell.json"]


def test_a_record_cut_at_any_place_is_refused_in_one_line(result, tmp_path):
    path = tmp_path / "cell.json"
    result.save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordError, match="half written") as error:
            CellResult.load(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_failed_save_leaves_the_old_record(result, tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    result.save(path)
    before = path.read_bytes()

    def fail(_descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("benchmarks.core.files.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        dataclasses.replace(result, steps=1).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 1}, "schema_version: 1"),
        ({"schema_version": 3}, "schema_version: 3"),
        ({"status": "fine"}, "status: 'fine'"),
        ({"status": "oom"}, "reason: "),
        ({"reason": "why"}, "reason: "),
        ({"metric": None}, "metric: missing"),
        ({"metric": "4.2"}, "metric: '4.2' is not a number"),
        ({"total_bytes": 1}, "total_bytes: 1 is not the sum"),
        ({"metrics": {"f1": 1.0}, "metric": 2.0, "metric_name": "f1"}, "metric: 2.0 is not the f1 in metrics"),
        ({"metrics": {"f1": 1.0}, "metric": 1.0, "metric_name": "top1"}, "metric: 1.0 is not the top1 in metrics"),
        ({"residuals_bytes": -1}, "residuals_bytes: -1"),
        ({"residuals_bytes": 1.5}, "residuals_bytes: 1.5"),
        ({"metric_history": [[1, 2, 3]]}, "metric_history: "),
        ({"per_rank": [3]}, "per_rank: "),
        ({"ladder": None}, "ladder: None is not a list"),
        ({"ladder": [{"name": "resident", "method": "statm", "bytes": None}]}, "ladder: rung resident: bytes None and"),
        ({"phase_seconds": {"step": "1"}}, "phase_seconds: "),
        ({"units_per_second": "9"}, "units_per_second: '9' is not a number"),
        ({"unit": ""}, "unit: '' is not a text"),
        ({"provenance": None}, "provenance: "),
        ({"cell": {"model": "no"}}, "model: 'no'"),
        ({"extra": 1}, "record key: 'extra'"),
        ({"schema_version": True}, "schema_version: True"),
        ({"metric": 1e308}, "metric: 1e\\+308 is too large; allowed: up to 1e\\+100"),
        ({"residuals_bytes": 10**400}, "residuals_bytes: 1000000.* is too large"),
        ({"step_seconds": [0.1, 1e200]}, "step_seconds: 1e\\+200 is too large"),
        ({"steps_per_second": -1.0}, "steps_per_second: -1.0 is negative"),
        ({"step_seconds": [0.1, -0.1]}, "step_seconds: -0.1 is negative"),
        (dict.fromkeys(BYTE_FIELDS, 0), "total_bytes: 0 is not allowed"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(result, change, message):
    with pytest.raises(RecordError, match=message):
        CellResult.from_dict({**result.to_dict(), **change})


def test_a_record_lacks_only_what_earlier_versions_did_not_have(result):
    for name in [field.name for field in dataclasses.fields(CellResult)]:
        values = {key: value for key, value in result.to_dict().items() if key != name}
        if name in OPTIONAL:
            assert CellResult.from_dict(values).cell == result.cell
        else:
            said = "schema_version: None cannot be read" if name == "schema_version" else f"keys are missing: {name}$"
            with pytest.raises(RecordError, match=said):
                CellResult.from_dict(values)


def test_nan_is_refused_in_an_ok_record_and_null_in_a_diverged_one(result, tmp_path):
    with pytest.raises(RecordError, match="NaN"):
        dataclasses.replace(result, metric=math.nan)
    failed = dataclasses.replace(result, status="diverged", reason="loss is NaN", metric=math.nan)
    failed.save(tmp_path / "cell.json")
    assert CellResult.load(tmp_path / "cell.json").metric is None
    whole = json.dumps({**result.to_dict(), "metric": math.nan})
    for number in ("NaN", "1e400"):
        (tmp_path / "cell.json").write_text(whole.replace("NaN", number))
        with pytest.raises(RecordError, match=f"{number} is (not strict JSON|too large a number)"):
            CellResult.load(tmp_path / "cell.json")


def test_whole_numbers_too_large_for_a_float_are_refused(result):
    for huge in (10**400, [1.0, 10**400], [[10**400]], {"a": -(10**400)}):
        assert not all_finite(huge)
        with pytest.raises(RecordError, match="NaN or infinity"):
            dataclasses.replace(result, provenance={"link_rates": huge})
    assert all_finite([10**300, 1.0, True, None, "x", 10**300])


@pytest.mark.parametrize("levels", [DEEPEST + 1, 10**5])
def test_a_file_that_is_nested_deeply_is_refused_in_one_line(tmp_path: Path, levels: int) -> None:
    (tmp_path / "deep.json").write_text("[" * DEEPEST + "1" + "]" * DEEPEST)
    load_json(tmp_path / "deep.json")
    (tmp_path / "deep.json").write_text("[" * levels + "1" + "]" * levels)
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        load_json(tmp_path / "deep.json")

"""`python -m benchmarks simulate`: what it prints and writes, and what it refuses."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.simulation.results import simulate
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.what_pays import break_even_bandwidth, break_even_density
from benchmarks.simulation.wire import Case, grid
from resireduce.checks import check_merge
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, MERGES, build_compressor
from tests.records import make_result
from tests.simulated import EXACT, FAST, drawn_layers, make_cluster, make_settings

SMALL = ["simulate", "--model", "resnet-digits", "--compressors", "none", "topk", "--rules", "none", "one"]
LINK = "{latency_seconds: 1e-5, bandwidth_bytes_per_second: 1e9}"
DEVICE = "{flops_per_second: 1e12, memory_bytes_per_second: 1e11, memory_bytes: 16.0e9}"
CLUSTER = {"nodes": "2", "ranks_per_node": "2", "device": "v100s", "in_node": "pcie3", "between_nodes": LINK}


def write(path: Path, **changed: str) -> Path:
    values = {name: value for name, value in (CLUSTER | changed).items() if value}
    path.write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
    return path


def test_it_answers_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", device=DEVICE)
    assert main([*SMALL, "--cluster", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True and found["model"] == "resnet-digits"
    steps = [one["step_seconds"] for one in found["results"]]
    assert len(steps) == 2 * 2 * 3 and steps == sorted(steps), "rules, levels; none and two densities"
    answer = found["answers"][0]
    assert (answer["cluster"], answer["ranks"], answer["fastest"]) == ("mine", 4, found["results"][0])
    assert answer["fastest_that_fits"] == answer["fastest"] and answer["needed_bytes"] < 16e9


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_only_what_can_be_trained_is_simulated(compressor: str) -> None:
    found = {case.rule for case in grid([make_cluster(1e-4, 1e9)], [4], [compressor], [0.01], [*RULES], ["flat"])}
    for rule in {*RULES} & {*MERGES}:
        try:
            check_merge(rule, build_compressor(compressor, 0.01), {})
        except ConfigError:
            assert rule not in found, "it would be refused"
        else:
            assert rule in found


def test_its_files_say_that_they_are_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL, "--ranks", "4", "8", "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "Simulated, not measured" in shown and "paper-local, 8 ranks: fastest that fits" in shown
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"simulated.json", "simulated.csv", "simulated.md", "step.svg", "scaling.svg"}
    for name in ("simulated.md", "step.svg", "scaling.svg"):
        assert "imulated" in (tmp_path / "out" / name).read_text()
    rows = list(csv.DictReader((tmp_path / "out/simulated.csv").open()))
    assert {row["ranks"] for row in rows} == {"4", "8"} and {row["rule"] for row in rows} == {"none", "one"}
    picture = (tmp_path / "out/step.svg").read_text()
    assert all(lane in picture for lane in ("forward", "backward", "communicate", "update", "exposed"))


def test_only_what_fits_and_is_supported_is_an_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = write(tmp_path / "small.yaml", device=DEVICE.replace("16.0e9", "1e6"))
    assert main([*SMALL, "--cluster", str(small)]) == 0
    assert "nothing fits in 0 GB; give a smaller --batch" in capsys.readouterr().out
    for compressor in ("none", "topk"):
        cell = Cell(model="resnet-digits", compressor=compressor, scheme="none" if compressor == "none" else "baseline")
        make_result(cell).save(tmp_path / f"run/cells/{cell.name}.json")
    assert main([*SMALL, "--records", str(tmp_path / "run"), "--most-lost", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert {(one["compressor"], one["density"]) for one in found} == {("none", 1.0), ("topk", 0.01)}


def test_compression_pays_up_to_where_its_step_is_as_long() -> None:
    settings = make_settings(drawn_layers(4, 8), compute_seconds=0.01)
    cluster = make_cluster(1e-5, 1e8, device=EXACT)
    cases = [Case(cluster, 4, compressor, rule=rule) for compressor in ("none", "topk") for rule in ("none", "one")]

    def best(compressor: str, density: float) -> float:
        some = [Case(cluster, 4, compressor, density, rule=rule) for rule in ("none", "one")]
        return min(one.step_seconds for one in simulate(some, settings))

    density = break_even_density(cluster, 4, "topk", cases, settings)
    assert best("topk", density) == pytest.approx(best("none", 1.0), rel=0.05)
    assert 0.1 < density < 0.3, "8 bytes an element to 3 others, or 4 bytes by 6 / 4: equal at 0.25, without latency"
    assert break_even_density(make_cluster(1e-5, 1e15), 4, "topk", cases, settings) == 0, (
        "nothing has to be sent faster"
    )


def test_compression_pays_up_to_the_bandwidth_at_which_it_takes_longer_than_it_saves() -> None:
    settings = make_settings(drawn_layers(4, 8), compute_seconds=0.01)
    slow = replace(FAST, memory_bytes_per_second=1e10)
    cluster = make_cluster(1e-5, 1e8, device=slow)
    cases = [Case(cluster, 4, compressor, rule=rule) for compressor in ("none", "topk") for rule in ("none", "one")]
    found = break_even_bandwidth(cluster, 4, "topk", 0.01, cases, settings)
    for factor, pays in ((0.8, True), (1.25, False)):
        at = make_cluster(1e-5, found * factor, device=slow)
        dense, sparse = (
            min(simulate([Case(at, 4, name, 0.01, rule=rule)], settings)[0].step_seconds for rule in ("none", "one"))
            for name in ("none", "topk")
        )
        assert (sparse < dense) == pays
    assert break_even_bandwidth(make_cluster(1e-5, 1e3, device=slow), 4, "topk", 0.01, cases, settings) == float("inf")
    node = make_cluster(1e-4, 1e7, ranks_per_node=4, device=slow)
    assert break_even_bandwidth(node, 4, "topk", 0.01, cases, settings) == found, "that of the link within its node"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"between_nodes": "{latency_seconds: 1e-5}"},
            "between_nodes: bandwidth_bytes_per_second: missing; give bytes",
        ),
        ({"between_nodes": ""}, "between_nodes: missing, with 4 ranks, 2 in a node; give its link's figures"),
        (
            {"between_nodes": LINK.replace("1e-5", "-1e-5")},
            "latency_seconds: -1e-05 is not allowed; give seconds, such",
        ),
        (
            {"between_nodes": LINK.replace("1e9", "0")},
            "bandwidth_bytes_per_second: 0 is not allowed; give bytes a second",
        ),
        ({"between_nodes": LINK.replace("1e9", "fast")}, "bandwidth_bytes_per_second: 'fast' is not allowed"),
        ({"between_nodes": LINK.replace("1e9", ".inf")}, "bandwidth_bytes_per_second: inf is not allowed"),
        ({"between_nodes": "ethernet26"}, "between_nodes: between_nodes: 'ethernet26' is not known (did you mean"),
        ({"nodes": "1000000000"}, "nodes: 1000000000 is not allowed; give a whole number, 1 to 4096"),
        ({"nodes": "4096"}, "ranks: 8192 is not allowed; give a whole number, 1 to 4096"),
        ({"in_node": ""}, "in_node: missing, with 2 ranks in a node; give its link's figures"),
        ({"device": ""}, "device: missing; give a known one's name, or its figures"),
        ({"device": DEVICE.replace("1e12", "true")}, "flops_per_second: True is not allowed; give operations a second"),
        ({"jitter_seconds": "-1"}, "jitter_seconds: -1 is not allowed; give seconds, such as 1e-5, 0 or more"),
        ({"source": "[a]"}, "source: ['a'] is not allowed; give a text, in quotes if YAML takes it for something else"),
        ({"bandwidth": "1e9"}, "cluster key: 'bandwidth' is not known; allowed:"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], said: str
) -> None:
    assert main([*SMALL, "--cluster", str(write(tmp_path / "bad.yaml", **changed))]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", " holds no mapping; give the fields of a cluster, as nodes: 4"),
        ("nodes:\n\t- 4", "; mend that place, as in benchmarks/simulation/clusters.yaml"),
    ],
)
def test_a_file_that_is_no_cluster_is_not_taken_for_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    assert main([*SMALL, "--cluster", str(tmp_path / "bad.yaml")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: cluster: ") and error.count("\n") == 1


def test_records_are_looked_for_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.simulation.simulate_command.simulate", lambda *given: pytest.fail("simulated"))
    assert main([*SMALL, "--records", str(tmp_path)]) == 2
    assert "has no records of cells; give a run's folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "1000000000"], "ranks: 1000000000 is not allowed; give a whole number, 1 to"),
        (["--ranks", "1"], "ranks: 1 is not allowed; give a whole number, 2 to 4096"),
        (["--ranks", "7"], "ranks: 7 is not allowed on paper-local; give a multiple of the 2 of a node"),
        (["--cluster", "paper-clud"], "cluster: 'paper-clud' is not known (did you mean 'paper-cloud'?)"),
        (
            ["--cluster", "nowhere.yaml"],
            "cluster: nowhere.yaml: No such file or directory; give a preset's name, or the",
        ),
        (["--model", "resnet5"], "model: 'resnet5' is not known (did you mean 'resnet50'?)"),
        (["--batch", "0"], "batch: 0 is not allowed; give a whole number, 1 to"),
        (["--densities", "0"], "densities: 0.0 is not allowed; give a share"),
        (["--compressors", "top"], "compressors: 'top' is not known (did you mean 'topk'?)"),
        (["--rules", "wfbp"], "rules: 'wfbp' is not known (did you mean 'mg-wfbp'?)"),
        (["--levels", "rack"], "levels: 'rack' is not known; allowed: flat, node"),
        (["--schemes", "w+3d"], "schemes: 'w+3d' is not known"),
        (["--micro", "OTHER"], "is no record of speeds; make one with: python -m benchmarks measure micro"),
        (["--micro", "nothing.json"], "micro: nothing.json cannot be read"),
        (["--record", "RECORD"], "is of 'vgg-digits', not of 'resnet-digits'; give one of the same model"),
        (["--record", "OTHER"], "; give that of a cell, as in results/runs/RUN/cells"),
        (["--record", "SAME", "--batch", "3"], "has 8 samples a rank, not 3; give --batch 8"),
        (["--record", "SAME", "--cluster", "paper-local", "paper-cloud"], "cluster: a measured time is of one device"),
        (["--cluster", "paper-local", "paper-local"], "cluster: 'paper-local' is there twice; give each once"),
        (["--compute-seconds", "0"], "compute_seconds: 0.0 is not allowed; give seconds, more than 0"),
        (["--compute-seconds", "1e308"], "compute_seconds: 1e+308 is not allowed; give seconds, more than 0, at most"),
        (["--ragged-largest", "0.5"], "ragged_largest: 0.5 is not allowed; give a number, 1 or more"),
        (["--model", "tests.simulated:plain"], "compute_seconds: missing, and 'tests.simulated:plain' has no recipe"),
        (["--model", "tests.simulated:plain", "--batch", "4"], "batch: 4 means nothing to 'tests.simulated:plain'"),
        (
            ["--rules", "dear", "--compressors", "topk"],
            "rules: nothing is left to simulate; dear needs compressor none ",
        ),
        (["--rules", "one", "--compressors", "ok-topk"], "powersgd, l1-chunks, ok-topk need rule none"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "other.json").write_text('{"rows": [{"case": "topk"}]}')
    make_result(Cell(model="vgg-digits")).save(tmp_path / "record.json")
    make_result(Cell(model="resnet-digits")).save(tmp_path / "same.json")
    files = {name.upper(): str(tmp_path / f"{name}.json") for name in ("other", "record", "same")}
    assert main([*SMALL, *(files.get(one, one) for one in options)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1

"""`python -m benchmarks simulate`: what it prints and writes, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.simulation.results import simulate
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.what_pays import break_even_bandwidth, break_even_density
from benchmarks.simulation.wire import Case, grid
from resireduce.checks import check_merge
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, MERGES, build_compressor
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


def test_it_says_that_it_is_simulated_and_what_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL, "--ranks", "4", "8"]) == 0
    shown = capsys.readouterr().out
    assert "Simulated, not measured" in shown and "paper-local, 8 ranks: fastest that fits" in shown
    small = write(tmp_path / "small.yaml", device=DEVICE.replace("16.0e9", "1e6"))
    assert main([*SMALL, "--cluster", str(small)]) == 0
    adam = ["--model", "gpt2-bytes", "--compressors", "none", "dgc-momentum", "--rules", "none"]
    assert main(["simulate", *adam, "--cluster", str(small)]) == 0, "also where a compressor does not go with AdamW"
    assert "nothing fits in 0 GB; give a smaller --batch" in capsys.readouterr().out


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
            "between_nodes: fields: missing 1 required keyword-only argument",
        ),
        ({"between_nodes": ""}, "between_nodes: missing, with 4 ranks, 2 in a node; give its link's figures"),
        (
            {"between_nodes": LINK.replace("1e-5", "-1e-5")},
            "latency_seconds: -1e-05 is not allowed; give a number, 0 or",
        ),
        ({"device": "v100"}, "device: 'v100' is not known (did you mean 'v100s'?)"),
        (
            {"device": DEVICE.replace("1e12", "true")},
            "flops_per_second: True is not allowed; give a number, more than 0",
        ),
        ({"bandwidth": "1e9"}, "fields: got an unexpected keyword argument 'bandwidth'"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], said: str
) -> None:
    assert main([*SMALL, "--cluster", str(write(tmp_path / "bad.yaml", **changed))]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "1"], "ranks: 1 is not allowed; give a whole number, 2 to 4096"),
        (["--ranks", "7"], "ranks: 7 is not allowed on paper-local; give a multiple of the 2 of a node"),
        (["--cluster", "paper-clud"], "cluster: 'paper-clud' is not known (did you mean 'paper-cloud'?)"),
        (["--cluster", "nowhere.yaml"], "cluster: nowhere.yaml: No such file or directory"),
        (["--cluster", "paper-local", "paper-local"], "cluster: 'paper-local' is there twice; give each once"),
        (["--model", "resnet5"], "model: 'resnet5' is not known (did you mean 'resnet50'?)"),
        (["--densities", "0"], "densities: 0.0 is not allowed; give a share"),
        (["--rules", "wfbp"], "rules: 'wfbp' is not known (did you mean 'mg-wfbp'?)"),
        (
            ["--micro", "OTHER"],
            "other.json cannot be read: it is no record of speeds; make it with: python -m benchmarks",
        ),
        (["--compute-seconds", "1", "--cluster", "paper-local", "paper-cloud"], "cluster: a measured time is of one"),
        (["--compute-seconds", "1e308"], "compute_seconds: 1e+308 is not allowed; give seconds, more than 0, at most"),
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
    assert main([*SMALL, *(str(tmp_path / "other.json") if one == "OTHER" else one for one in options)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1

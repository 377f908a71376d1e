"""`python -m benchmarks measure micro`: the compression of a gradient, case beside case."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.micro.micro_command import compared
from benchmarks.training import compress_speed
from benchmarks.training.compress_speed import Case, list_cases

TIMES: list[dict[str, Any]] = [
    {"case": case, "elements": 8, "density": 0.5, "seconds": [1.0]} for case in ("copy", "naive")
]


def test_all_cases_are_timed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "micro.json"
    assert main(["measure", "micro", "--tiny", "--threads", "3", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["threads"] == 3 and "| ms, 3 threads |" in output.with_suffix(".md").read_text()
    assert [row["case"] for row in found["rows"]] == [case.name for case in list_cases()]
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in found["rows"])
    text = output.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out and all(f"| {row['case']} |" in text for row in found["rows"])


def test_cases_are_chosen_by_name_and_compared_with_a_copy_and_the_naive_form(tmp_path: Path) -> None:
    output = tmp_path / "micro.json"
    assert main(["measure", "micro", "--tiny", "--cases", "topk, w*", "dgc, *", "--output", str(output)]) == 0
    names = [row["case"] for row in json.loads(output.read_text())["rows"]]
    assert names == ["copy", "naive", "topk, w", "topk, w+2d", "dgc, baseline"]


def test_a_process_that_was_killed_is_told_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["measure", "micro", "--tiny", "--output", str(tmp_path / "micro.json")]) == 2
    assert "was killed by signal 9, 9 where memory ran out" in (said := capsys.readouterr().err) and "--cases" in said


def test_all_forms_run_in_the_number_of_threads_that_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = {
        "sizes": [1 << 14],
        "densities": [0.01],
        "rounds": 1,
        "device": "cpu",
        "row": 1024,
        "threads": 2,
        "cases": ["*"],
    }
    seen: set[int] = set()

    def case(name: str) -> Case:
        return Case(name, lambda like, density: lambda gradients, number: seen.add(torch.get_num_threads()))

    monkeypatch.setattr(compress_speed, "list_cases", lambda: [case("naive"), case("topk, baseline")])
    before = torch.get_num_threads()
    try:
        compress_speed.measured(settings, tmp_path)
    finally:
        torch.set_num_threads(before)
    assert seen == {2}


def test_ratios_are_of_the_least_seconds_at_the_same_size_and_density() -> None:
    seconds = {"copy": [2.0, 3.0], "naive": [40.0, 30.0], "topk, baseline": [6.0, 5.0]}
    rows = [{"case": case, "elements": 8, "density": 0.5, "seconds": found} for case, found in seconds.items()]
    faster = [row | {"density": 0.1, "seconds": [1.0]} for row in rows]
    ours = compared([*rows, *faster])[2]
    assert (ours["least_seconds"], ours["naive_ratio"], ours["bound_ratio"]) == (5.0, 6.0, 3.0 / 5.0)


def test_the_naive_form_and_the_library_send_the_same() -> None:
    cases = {case.name: case for case in list_cases()}
    like = torch.zeros(64, 300)
    steps = [cases[name].make(like, 0.01) for name in ("naive", "GRACE's form", "topk, baseline")]
    for number in range(4):
        gradient = torch.randn(like.shape, generator=torch.Generator().manual_seed(number))
        dense = []
        for step in steps:
            sent = step([gradient.clone()], number)
            values, places = sent if isinstance(sent, tuple) else sent[0].parts()
            dense.append(torch.zeros(like.numel()).index_add_(0, places.long(), values))
        assert torch.equal(dense[0], dense[1]) and torch.equal(dense[0], dense[2])


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--sizes", "65537", "sizes: 65537 is not allowed; give a multiple of 1024"),
        ("--threads", "0", "threads: 0 is not allowed; give a whole number"),
        ("--device", "tpu", "device: 'tpu' is not known"),
    ],
)
def test_what_cannot_be_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, said: str):
    assert main(["measure", "micro", option, value, "--output", str(tmp_path / "micro.json")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_named_in_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["measure", "micro", "--tiny", "--device", "cuda", "--output", str(tmp_path / "micro.json")]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: device: 'cuda' is not allowed without a CUDA device; give cpu, or leave it out\n")
    assert "Traceback" not in said

"""`python -m benchmarks measure micro`: the compression of a gradient, case beside case."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.micro.micro_command import compared
from benchmarks.training.compress_speed import list_cases


def test_chosen_cases_are_timed_and_shown_beside_a_copy_and_the_naive_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "micro.json"
    options = ["--tiny", "--threads", "3", "--cases", "topk, w*", "dgc, *", "--output", str(output)]
    assert main(["measure", "micro", *options]) == 0
    found, text = json.loads(output.read_text()), capsys.readouterr().out
    assert [row["case"] for row in found["rows"]] == ["copy", "naive", "topk, w", "topk, w+2d", "dgc, baseline"]
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in found["rows"])
    assert found["threads"] == 3 and all(f"| {row['case']} |" in text for row in found["rows"])


def test_a_process_that_was_killed_is_told_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["measure", "micro", "--tiny", "--output", str(tmp_path / "micro.json")]) == 2
    assert "was killed by SIGKILL" in (said := capsys.readouterr().err) and "--cases" in said


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


def test_what_cannot_be_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option, value, said in (
        ("--sizes", "65537", "sizes: 65537 is not allowed; give a multiple of 1024"),
        ("--device", "tpu", "device: 'tpu' is not known"),
    ):
        assert main(["measure", "micro", "--tiny", option, value, "--output", str(tmp_path / "micro.json")]) == 2
        assert capfd.readouterr().err.startswith(f"error: {said}")

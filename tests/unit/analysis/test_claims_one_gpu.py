"""Claims of one GPU: true records show them, contrary ones refute them, what is no evidence of a GPU never counts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.claims_command import ledger
from benchmarks.analysis.claims.kinds import KINDS, load_claims
from benchmarks.analysis.gpu_records import read_devices
from tests.gpu_records import known_file, memory_file, save

BOOK = load_claims()
CLAIMS = tuple(claim for claim in BOOK.claims if KINDS[claim.kind].of == "GPUs")
SAVINGS = [
    f"{name}-vgg19" for name in ("exp1-one-gpu-states", "exp1-one-gpu-allocated", "ours-gpu-peak", "ours-gpu-nvml")
]
BY_ARITHMETIC = {f"exp1-one-gpu-states-{model}" for model in ("resnet50", "vgg19", "gpt2-medium", "gpt2-large")}
"""What the library's own bytes refute."""


def rows(folder: Path) -> dict[str, LedgerRow]:
    found = ledger(book=replace(BOOK, claims=CLAIMS), devices=read_devices(folder))
    return {one.id: one for one in found}


def case(values: dict[str, Any], setting: str) -> dict[str, Any]:
    """The case of VGG-19 with a setting, as its name has it."""
    found: dict[str, Any] = next(one for one in values["cases"] if one["name"].startswith(f"vgg19.topk.{setting}."))
    return found


def memory(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = one["ranks"][0]["memory"]
    return found


def rung(one: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(rung for rung in memory(one)["ladder"] if rung["name"] == name)
    return found


def hold_more(one: dict[str, Any], nbytes: int) -> None:
    """Let a rank hold more residuals, in all figures alike."""
    held = memory(one)
    more = [(held, name) for name in ("residuals_bytes", "total_bytes", "peak_states_bytes")]
    more += [(held["difference"], name) for name in ("allocated_bytes", "states_bytes")]
    for figures, name in [*more, *((read, "bytes") for read in held["ladder"])]:
        figures[name] += nbytes


def test_true_records_show_all_that_is_true(tmp_path: Path) -> None:
    found = rows(save(tmp_path, memory_file(), known_file()))
    for name, one in found.items():
        assert one.scope == "one GPU" and one.hardware and "NVIDIA H200, driver 580.1, torch 2.11.0" in one.hardware
        if not name.startswith("exp1"):
            assert one.status == "reproduced", one.reason
            assert one.cells or name == "ours-gpu-known"
    stated = {name for name in found if name.startswith("exp1-one-gpu-states")}
    assert {name for name in stated if found[name].status == "not reproduced"} == BY_ARITHMETIC
    assert {name for name in stated if found[name].status == "reproduced"} == stated - BY_ARITHMETIC
    row = found["exp1-one-gpu-states-vgg19"]
    assert (round(row.value or 0, 2), row.published, row.unit) == (15.67, 14.8, "%")
    assert "15.67 %, published 14.8 %, 0.87 points more; model_state_itemised of 2,192.3 MiB, one rank" in row.reason


def test_a_fullest_moment_that_is_no_lower_and_bytes_of_nobody_refute(tmp_path: Path) -> None:
    values = memory_file()
    one, other = case(values, "w+2d.streamed"), case(values, "baseline.kept")
    for name in ("peak_allocated", "nvml_process"):
        rung(one, name)["bytes"] = rung(other, name)["bytes"]
    nobody = memory(one)["difference"]
    nobody["other_bytes"], more = 50 << 20, 50 << 20
    nobody["allocated_bytes"] += more
    for name in ("allocated", "allocated_without_gradients"):
        rung(one, name)["bytes"] += more
    found = rows(save(tmp_path, values, known_file(error=0.02)))
    names = ("ours-gpu-peak-vgg19", "ours-gpu-nvml-vgg19", "ours-gpu-added-up-vgg19", "ours-gpu-known")
    assert {name: found[name].status for name in names} == dict.fromkeys(names, "not reproduced")


ODD: dict[str, Callable[[dict[str, Any]], None]] = {
    "total": lambda values: memory(case(values, "baseline.kept")).update(total_bytes=1),
    "rung": lambda values: rung(case(values, "baseline.kept"), "allocated").update(bytes=1 << 40),
    "parts": lambda values: memory(case(values, "baseline.kept"))["difference"].update(buffers_bytes=0),
    "without a GPU": lambda values: memory(case(values, "baseline.kept")).update(difference=None),
    "peak": lambda values: rung(case(values, "baseline.kept"), "peak_allocated").update(bytes=1),
    "rank's device": lambda values: case(values, "baseline.kept")["ranks"][0]["facts"].update(device="cpu"),
    "uuid": lambda values: case(values, "baseline.kept").update(device=None),
    "name": lambda values: case(values, "baseline.kept").update(name="another"),
    "steps": lambda values: case(values, "baseline.kept")["ranks"][0].update(steps=1),
    "ranks": lambda values: case(values, "baseline.kept").update(ranks=[]),
    "twice": lambda values: values["cases"].append(case(values, "baseline.kept")),
    "oom": lambda values: case(values, "baseline.kept").update(status="oom", reason="CUDA out of memory"),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_a_record_that_contradicts_itself_is_no_evidence(tmp_path: Path, change: Callable[[Any], None]) -> None:
    values = memory_file()
    change(values)
    found = rows(save(tmp_path, values))
    assert {found[name].status for name in SAVINGS} == {"inconclusive"}, [found[name].reason for name in SAVINGS]
    assert found["exp1-one-gpu-states-bert-base"].status == "reproduced", "others stay as they are"


ELSEWHERE: dict[str, Callable[[dict[str, Any]], None]] = {
    "a CPU": lambda values: values["provenance"].update(device="cpu", uuid=None),
    "no CUDA": lambda values: values["provenance"].update(cuda=None),
    "another GPU": lambda values: values["provenance"].update(device="NVIDIA A100"),
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_file_that_is_of_no_gpu_does_not_count_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None]
) -> None:
    values = memory_file()
    change(values)
    save(tmp_path, values)
    assert {one.status for one in rows(tmp_path).values()} == {"not run"}
    assert main(["claims", "--gpus", str(tmp_path)]) == 0
    assert "note: nvidia-h200: memory.json does not count: " in capsys.readouterr().err


def test_a_flag_of_nvml_leaves_open_what_rests_on_it(tmp_path: Path) -> None:
    values, flag = memory_file(), "foreign-process"
    rung(case(values, "w+2d.streamed"), "nvml_process")["flags"] = [flag, "pid-namespace"]
    known = known_file()
    known["cases"][0]["result"][3] |= {"flags": [flag]}
    found = rows(save(tmp_path, values, known))
    for name in ("ours-gpu-nvml-vgg19", "ours-gpu-known"):
        assert found[name].status == "inconclusive" and flag in found[name].reason
    assert found["ours-gpu-peak-vgg19"].status == "reproduced"


def test_all_gpus_must_show_it(tmp_path: Path) -> None:
    other = json.loads(json.dumps(memory_file()).replace("NVIDIA H200", "NVIDIA A100"))
    save(tmp_path, memory_file())
    save(tmp_path, other, device="nvidia-a100")
    found = rows(tmp_path)["ours-gpu-planned-vgg19"]
    assert found.status == "reproduced" and "NVIDIA A100" in str(found.hardware) and "H200" in str(found.hardware)
    hold_more(case(other, "w+2d.kept"), 4)
    save(tmp_path, other, device="nvidia-a100")
    found = rows(tmp_path)["ours-gpu-planned-vgg19"]
    assert found.status == "not reproduced" and "reproduced with nvidia-h200" in found.reason
    hold_more(case(other, "w+2d.kept"), -8)
    save(tmp_path, other, device="nvidia-a100")
    found = rows(tmp_path)["exp1-one-gpu-allocated-vgg19"]
    assert found.status != "reproduced" and "inconclusive with nvidia-a100" in found.reason, "fewer than there must be"

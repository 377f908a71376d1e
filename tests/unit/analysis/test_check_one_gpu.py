"""A one-GPU check against committed records of one: states to the byte, other figures within their bands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.doctor.gpu.steps import memory_cells
from tests.gpu_records import memory_file, save

CELLS: list[Cell] = list(memory_cells(["vgg19"]))
Change = Callable[[dict[str, Any]], None]


def check(folder: Path, change: Change) -> int:
    values = memory_file(CELLS)
    reference = save(folder / "reference", values) / "nvidia-h200"
    change(values)
    run = save(folder / "run", values) / "nvidia-h200"
    return main(["check", "--run", str(run), "--reference", str(reference)])


def held(values: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = values["cases"][number]["ranks"][0]["memory"]
    return found


def rung(values: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in held(values)["ladder"] if one["name"] == name)
    return found


def residuals(nbytes: int) -> Change:
    def change(values: dict[str, Any]) -> None:
        memory = held(values)
        for name in ("residuals_bytes", "total_bytes", "peak_states_bytes"):
            memory[name] += nbytes
        for name in ("states_bytes", "allocated_bytes"):
            memory["difference"][name] += nbytes
        for one in memory["ladder"]:
            one["bytes"] += nbytes

    return change


def peak(share: float, *flags: str) -> Change:
    def change(values: dict[str, Any]) -> None:
        for name in ("peak_allocated", "nvml_process"):
            one = rung(values, name)
            one.update(bytes=int(one["bytes"] * share), flags=[*flags])

    return change


CHANGES: dict[str, tuple[int, Change, str]] = {
    "nothing": (0, lambda values: None, "0 of what 6 cells hold is worse, or was not measured"),
    "a byte more": (1, residuals(4), "residuals_bytes 574,603,264 -> 574,603,268"),
    "a byte less than planned": (1, residuals(-4), "residuals_bytes 574,603,260 bytes, by plan 574,603,264: not all"),
    "a lower peak": (0, peak(0.9), "better: vgg19.topk.baseline.kept"),
    "a peak in its band": (0, peak(1.04), "0 of what 6 cells"),
    "a peak beyond": (1, peak(1.06), "peak_allocated "),
    "a peak that is flagged": (0, peak(1.06, "foreign-process"), "steps5.synthetic: nvml_process is flagged foreign-"),
    "a cell that is gone": (1, lambda values: values["cases"].pop(0) and None, "no valid record: not run"),
    "out of memory": (1, lambda values: values["cases"][0].update(status="oom", reason="x"), "no valid record: oom, x"),
    "a contradiction": (1, lambda values: held(values).update(total_bytes=1), "states do not add up"),
}


@pytest.mark.parametrize(("status", "change", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_a_check_is_compared_cell_by_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, change: Change, said: str
) -> None:
    assert check(tmp_path, change) == status
    assert said in capsys.readouterr().out


def test_what_cannot_be_compared_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, lambda values: values["provenance"].update(device="cpu")) == 2
    assert "has no valid record of a GPU: nvidia-h200: memory.json does not count" in capsys.readouterr().err
    run, reference = tmp_path / "run/nvidia-h200", tmp_path / "reference/nvidia-h200"
    save(tmp_path / "run", memory_file(CELLS))
    assert main(["check", "--run", str(run), "--reference", str(reference), "--accept", "why"]) == 2
    assert "is a one-GPU check" in capsys.readouterr().err
    other = memory_file(CELLS)
    for one in (other["provenance"], *(rank["facts"] for case in other["cases"] for rank in case["ranks"])):
        one["device"] = "NVIDIA A100"
    other_reference = save(tmp_path / "other", other, device="nvidia-a100") / "nvidia-a100"
    assert main(["check", "--run", str(run), "--reference", str(other_reference)]) == 2
    assert "was measured on NVIDIA A100, the run on NVIDIA H200" in capsys.readouterr().err

"""The one-GPU check: its cases and parts, and how it goes on after what can happen to it. Its machinery on a CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.cell import Cell
from benchmarks.gpucheck import part as part_module
from benchmarks.gpucheck.agreement import STATES, compare, plan_of
from benchmarks.gpucheck.cases import LIMIT_SECONDS, MODELS, estimate, list_cases, parts
from benchmarks.gpucheck.device import find_device
from benchmarks.gpucheck.part import Part
from benchmarks.gpucheck.summary import summarise
from benchmarks.workloads import WORKLOADS
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.zoo import find_builder

CASES = [case for case in list_cases(["resnet-digits"], steps=2) if case.cell.compressor == "topk"]
PLANNED = {"parameters": 40, "gradients": 0, "residuals": 20, "optimizer_states": 40, "total": 100, "normalised": 0.625}
PLANNED |= {"peak_states": 120}
OTHERS = ("sklearn", "snakemake", "pyarrow", "matplotlib", "jsonschema", "pandas", "scipy")
"""What the check must do without: it may rely on torch, transformers, torchvision and nvidia-ml-py, and on what
these bring with them."""
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OTHERS} else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""Makes a process find none of them."""


def outcome(allocated: int | None = 130, **more: Any) -> dict[str, Any]:
    """What a rank leaves that did as PLANNED."""
    memory: dict[str, Any] = {f"{name}_bytes": value for name, value in PLANNED.items() if name != "normalised"}
    memory["ladder"] = [{"name": "allocated", "bytes": allocated}, {"name": "peak_allocated", "bytes": 300}]
    memory["difference"] = {"baseline_bytes": 10, "states_bytes": 100, "buffers_bytes": 4, "workspaces_bytes": 16}
    ended = {"status": "ok", "reason": None, "memory": memory, "step_seconds": [9.0, 0.5]}
    return {**ended, "steps_per_second": 2.0, "units_per_second": 64.0, **more}


@pytest.fixture
def make_part(monkeypatch, tmp_path) -> Callable[..., Part]:
    """Make a part of CASES; its cells end as `ends` say, in their order, and are noted in `started`."""

    def make(*ends: dict[str, Any], **options: Any) -> Part:
        queue = list(ends)

        def launch(cell: Cell, *_: object) -> list[dict[str, Any]]:
            part.started_cells.append(cell)
            end = queue.pop(0) if queue else outcome()
            if isinstance(end, BaseException):
                raise end
            return [end]

        monkeypatch.setattr(part_module, "launch", launch)
        monkeypatch.setattr(part_module, "plan_of", lambda cell, on_gpu: PLANNED)
        device = {"uuid": "GPU-1", "device": "a GPU", "torch": "2.11.0", **options.pop("device", {})}
        options = {"code": "here", "source": {"commit": "c0ffee", "date": "2026-01-01"}, **options}
        part = Part(1, 1, CASES, tmp_path / "gpu-check-1.json", device, say=lambda line: None, **options)
        part.started_cells = []
        return part

    return make


def saved(part: Part) -> dict[str, Any]:
    return json.loads(part.path.read_text())


# --- what it runs ---


def test_all_that_was_asked_for_is_covered():
    found = {
        (c.model, c.compressor, c.scheme, c.gradients, c.residual_dtype, c.world_size)
        for c in (case.cell for case in list_cases())
    }
    wanted = {
        (model, "topk", scheme, gradients, dtype, 1)
        for model in ("resnet50", "vgg19", "bert-base", "bert-large", "gpt2-medium", "gpt2-large")
        for scheme in ("baseline", "w+2d")
        for gradients in ("kept", "streamed")
        for dtype in (None, "bfloat16")
    }
    dense = {(model, "none", "none", gradients, None, 1) for model in MODELS for gradients in ("kept", "streamed")}
    assert found == wanted | dense | {("bert-base", "topk", "w+2d", "streamed", None, 2)}
    assert len(list_cases()) == len(found)


def test_cases_are_the_papers_own_on_random_inputs():
    for cell in (case.cell for case in list_cases()):
        assert (cell.batch_per_rank, cell.length, cell.data) == (None, None, "synthetic")  # those of the workload
        assert cell.density == (1.0 if cell.compressor == "none" else 0.001 if cell.model == "bert-large" else 0.01)
        assert cell.steps >= 30
    assert [WORKLOADS[model].batch_per_rank for model in MODELS] == [32, 32, 4, 4, 2, 2]


def test_parts_hold_every_case_once_and_end_in_time():
    every = parts(list_cases())
    assert [case for part in every for case in part] == list_cases()
    assert all(0 < estimate(part) < LIMIT_SECONDS - part_module.MARGIN_SECONDS for part in every)
    assert every == parts(list_cases()), "the split is not the same every time"


def test_a_dry_run_lists_every_case_and_needs_no_gpu(capsys):
    assert main(["gpu-check", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0] in MODELS]
    assert len(rows) == len(list_cases())
    assert ["gpt2-large", "topk", "w+2d", "streamed", "bfloat16", "0.01", "1", "30", "82"] in rows
    assert sum("(an estimate)" in line for line in lines) == len(parts(list_cases()))


# --- what is refused ---


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    assert main(["gpu-check", "--part", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: device: 'cuda' is not allowed here: torch 2.") and error.count("\n") == 1
    assert "--device cpu --models resnet50 --steps 1" in error


@pytest.mark.parametrize(("visible", "first"), [(None, "0"), ("2,3", "2"), ("GPU-b", "GPU-b")])
def test_cells_run_on_the_first_gpu_that_is_visible(monkeypatch, visible, first):
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    seen = {}

    def run(command, env, **options):
        seen.update(env)
        return SimpleNamespace(returncode=0, stdout='hello\n{"uuid": "GPU-a"}\n')

    monkeypatch.setattr("benchmarks.gpucheck.device.subprocess.run", run)
    assert find_device("cuda") == {"uuid": "GPU-a"}
    for environment in (seen, os.environ):
        assert (environment["RESIREDUCE_DEVICE"], environment["CUDA_VISIBLE_DEVICES"]) == ("cuda", first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part", "7"], "part: 7 is not allowed; give a whole number, 1 to 6"),
        (["--part", "x"], "part: 'x' is not allowed; give a whole number, 1 to 6"),
        ([], "part: missing; give --part 1 to --part 6, or --dry-run to see them"),
        (["--models", "resnet51"], "models: 'resnet51' is not known (did you mean 'resnet50'?)"),
        (["--dry-run", "--steps", "0"], "steps: 0 is not allowed"),
        (["--part", "1", "--device", "gpu"], "device: 'gpu' is not known"),
        (["--summary", "nowhere"], "summary: nowhere holds no gpu-check-*.json"),
    ],
)
def test_bad_options_are_named(monkeypatch, tmp_path, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["gpu-check", *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


# --- how a part goes on ---


def test_what_fails_is_a_result_and_the_others_go_on(make_part):
    oom = {"status": "oom", "reason": "CUDA out of memory"}
    part = make_part(oom, OSError("no more processes"), outcome())
    part.run()
    statuses = [case["status"] for case in saved(part)["cases"]]
    assert statuses == ["oom", "error", *["ok"] * (len(CASES) - 2)]
    assert saved(part)["cases"][1]["reason"] == "OSError: no more processes"
    again = make_part()
    again.run()
    assert again.started_cells == [CASES[1].cell], "an error is worth another try, lack of memory is a result"


def test_a_part_that_is_killed_keeps_what_was_done(make_part):
    part = make_part(outcome(), outcome(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        part.run()
    assert len(saved(part)["cases"]) == 2
    again = make_part()
    again.run()
    assert again.started_cells == [case.cell for case in CASES[2:]]
    assert [case["name"] for case in saved(again)["cases"]] == [case.name for case in CASES]


def test_a_signal_ends_the_part(make_part):
    stopped = {"status": "timeout", "reason": "stopped by SIGINT", "failure": {"interrupted": True}}
    part = make_part(outcome(), stopped)
    part.run()
    assert part.started_cells == [case.cell for case in CASES[:2]]
    again = make_part()
    again.run()
    assert again.started_cells == [case.cell for case in CASES[1:]]


def test_other_code_or_another_device_is_measured_anew(make_part):
    make_part().run()
    other = make_part(device={"uuid": "GPU-2"})
    other.run()
    assert len(other.started_cells) == len(CASES)
    changed = make_part(device={"uuid": "GPU-2"}, code="changed")
    changed.run()
    assert len(changed.started_cells) == len(CASES)


def test_a_case_that_might_take_too_long_is_not_begun(make_part):
    room = CASES[0].estimated_seconds + part_module.MARGIN_SECONDS
    part = make_part(limit_seconds=room - 0.1)
    part.run()
    assert part.started_cells == [] and set(saved(part)["not_run"]) == {case.name for case in CASES}
    assert "run this part again" in saved(part)["not_run"][CASES[0].name]
    longer = make_part(limit_seconds=room + 60)
    longer.run()
    assert len(longer.started_cells) == len(CASES) and saved(longer)["not_run"] == {}


def test_a_file_that_is_none_of_ours_is_not_overwritten(make_part, capsys):
    for content in ("[]", '{"cases": null}', '{"cases": {"a": 1}}', '{"cases": [{"name": []}]}'):
        part = make_part()
        part.path.write_text(content)
        with pytest.raises(ConfigError, match=r"output: .*gpu-check-1.json cannot be read .*; move it away"):
            part.run()
        assert part.path.read_text() == content


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part.update(cases=None),
        lambda part: part.update(parts="x"),
        lambda part: part.pop("not_run"),
        lambda part: part["cases"][0].pop("cell"),
        lambda part: part["cases"][0].update(ranks=[]),
        lambda part: part["cases"][0].update(cell={"model": "no"}),
        lambda part: part["cases"][0]["ranks"][0].update(step_seconds=[None, None]),
    ],
)
def test_a_damaged_part_is_named_in_one_line_and_no_summary_is_written(make_part, tmp_path, capsys, damage):
    part = make_part()
    part.run()
    values = saved(part)
    damage(values)
    part.path.write_text(json.dumps(values))
    assert main(["gpu-check", "--summary", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: summary: {tmp_path} holds a part that ") and said.count("\n") == 1
    assert not (tmp_path / "summary.json").exists()


# --- what it says ---


def test_agreement_is_to_the_byte_for_states_and_near_for_the_rest():
    agreement = compare(outcome(), PLANNED)
    assert agreement["agrees"]
    assert agreement["allocated"] == {"measured": 120, "expected": 120, "ratio": 1.0, "agrees": True}
    more = outcome()
    more["memory"]["residuals_bytes"] += 1
    assert not compare(more, PLANNED)["agrees"]
    assert compare(more, PLANNED)["states"]["residuals"]["agrees"] is False
    assert compare(outcome(allocated=133), PLANNED)["allocated"]["agrees"] is False
    assert "allocated" not in compare(outcome(allocated=None), PLANNED)


def test_the_plan_is_that_of_the_command_but_for_the_optimizers_temporaries():
    cell = Cell(model="gpt2-bytes", scheme="w+2d", gradients="kept", world_size=1, backend="local")
    settings = {"scheme": "w+2d", "gradients": "kept", "overlap": True, "density": cell.density, "world_size": 1}
    planned = plan(find_builder("gpt2-bytes"), optimizer="adamw", **settings)
    assert plan_of(cell) == planned
    fused = plan_of(cell, on_gpu=True)
    assert {name: fused[name] for name in STATES} == {name: planned[name] for name in STATES}
    assert planned["total"] < fused["peak_states"] < planned["peak_states"]


def test_the_summary_compares_with_the_kept_baseline_and_lists_what_is_missing(make_part, tmp_path):
    faster = outcome(step_seconds=[9.0, 0.25])
    faster["memory"] = faster["memory"] | {"total_bytes": 50}
    part = make_part(outcome(), faster, {"status": "oom", "reason": "full"})
    part.run()
    text = summarise(tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_text())["cases"]
    assert [row["name"] for row in rows] == [case.name for case in CASES]
    assert (rows[1]["saved"], rows[1]["step_ratio"], rows[1]["planned_saved"]) == (0.5, 0.5, 0.375)
    assert rows[2]["status"] == "oom" and f"{CASES[2].name}: oom, full" in text
    assert (tmp_path / "summary.md").read_text() == text
    assert "50.0 %" in text and "37.5 %" in text and "≠" in text.split("50.0 %")[1].splitlines()[0]


def test_one_case_runs_from_the_source_tree_with_few_packages(tmp_path):
    """A real one, in a process that finds none of OTHERS: the smallest model, two steps."""
    code = (
        "import sys, benchmarks.gpucheck.cli as cli\n"
        "from benchmarks.__main__ import main\n"
        "cli.list_cases = lambda models, steps, real=cli.list_cases: real(models, steps)[3:4]\n"
        f"options = ['--models', 'resnet20', '--steps', '2', '--device', 'cpu', '--output', {str(tmp_path)!r}]\n"
        "sys.exit(main(['gpu-check', '--part', '1', *options]))\n"
    )
    # Python loads it when it starts, so that it holds for the ranks too, which are processes of their own.
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WITHOUT)
    environment = {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "gpu-check-1.json").read_text())["cases"]
    assert case["status"] == "ok", done.stderr
    assert all(one["agrees"] for one in case["agreement"][0]["states"].values())
    assert case["ranks"][0]["memory"]["gradients_bytes"] == 0

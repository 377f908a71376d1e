"""The one-GPU check: its steps and stretches, and how it goes on after what can happen to it; on a CPU."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.outcome import Outcome
from benchmarks.core.registry import MODELS as BUILDERS
from benchmarks.doctor.gpu import stretch as work
from benchmarks.doctor.gpu.stretch import (
    GROUPS,
    MARGIN_SECONDS,
    MODELS,
    NOT_RUN,
    SETTINGS,
    Step,
    Stretch,
    list_steps,
    memory_cells,
)
from benchmarks.training import peaks
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.scheme import load
from tests.gpu_records import known_file, memory_file, save

ROOT = Path(__file__).parents[3]
CELLS = list(memory_cells(["resnet-digits"], steps=2))
STEPS = [Step(cell.name, "memory", cell=cell) for cell in CELLS]


def outcome() -> dict[str, Any]:
    """What a rank leaves that finished."""
    return {"status": "ok", "reason": None, "memory": {"total_bytes": 100}, "step_seconds": [9.0, 0.5], "steps": 2}


@pytest.fixture
def make_stretch(monkeypatch, tmp_path) -> Callable[..., Stretch]:
    """Make a stretch of STEPS; its cells end as `ends` say, in their order, and are noted in `started`."""

    def make(*ends: Any, **options: Any) -> Stretch:
        queue = list(ends)

        def launch(cell: Cell, *_: object) -> list[Outcome]:
            stretch.started.append(cell)
            end = queue.pop(0) if queue else outcome()
            if isinstance(end, BaseException):
                raise end
            return [Outcome(**end)]

        monkeypatch.setattr(work, "launch", launch)
        monkeypatch.setattr("benchmarks.training.plan_of_cell.plan_of", lambda cell: {"total": 100})
        device = {"uuid": "GPU-1", "device": "NVIDIA H200", "torch": "2.11.0"}
        code, folder = options.pop("code", "here"), tmp_path / "run" / "nvidia-h200"
        options = {"source": {"commit": "c0ffee", "date": "2026-01-01"}, "steps": STEPS, **options}
        stretch = Stretch(folder=folder, device=device, say=lambda line: None, code=lambda group: code, **options)
        stretch.started = []
        return stretch

    return make


def saved(stretch: Stretch, group: str = "memory") -> dict[str, Any]:
    return json.loads((stretch.folder / f"{group}.json").read_text())


def test_the_steps_come_in_the_order_of_worth_and_every_model_setting_and_test_file_is_one():
    steps = list_steps("cuda")
    assert list(dict.fromkeys(step.group for step in steps)) == [*GROUPS]
    cells = [step.cell for step in steps if step.cell is not None]
    found = [(c.model, (c.compressor, c.scheme, c.gradients, c.residual_dtype)) for c in cells if c.world_size == 1]
    assert found == [(model, setting) for setting in SETTINGS for model in MODELS]
    assert [(c.model, c.world_size) for c in cells[len(found) :]] == [("bert-base", 2)]
    files = {path.name for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert {Path(step.command[-1]).name for step in steps if step.group == "contracts"} == files != set()
    timed = [step.command[step.command.index("--models") + 1] for step in steps if step.group == "throughput"]
    assert list(dict.fromkeys(timed)) == [*MODELS]
    named = {group: [step.command[1] for step in steps if step.group == group] for group in ("models", "peaks")}
    assert named == {"models": ["resnet50", "bert-base", "bert-large", "gpt2-medium"], "peaks": [*MODELS]}


def test_the_list_has_minutes_and_all_but_the_cells_of_memory_fit_into_half_an_hour(capsys):
    assert main(["measure", "gpu", "--everything", "--dry-run"]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [step.name for step in list_steps("cuda")]
    until = dict(
        zip([step.group for step in list_steps("cuda")], [float(line.split()[3]) for line in lines], strict=True)
    )
    assert until["micro"] < 28 < until["memory"] and total.startswith(f"{until['memory']:.0f} minutes on an H200")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--everything", "--seconds", "x"], "seconds: 'x' is not allowed; give seconds"),
        (["--only", "memry"], "only: 'memry' is not known (did you mean 'memory'?)"),
        (["--everything"], "device: 'cuda' is not allowed here: torch 2."),
        (["--summary", "nowhere"], "summary: nowhere holds no results of a device"),
    ],
)
def test_bad_options_are_named(monkeypatch, tmp_path, capsys, options, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "gpu", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_a_stretch_goes_on_after_errors_kills_and_signals_and_tries_what_failed_after_all_others(make_stretch):
    oom = {"status": "oom", "reason": "CUDA out of memory"}
    first = make_stretch(oom, OSError("no more processes"), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert [case["status"] for case in saved(first)["cases"]] == ["oom", "error"]
    assert saved(first)["cases"][1]["reason"] == "OSError: no more processes"
    stopped = {"status": "timeout", "reason": "stopped by SIGINT", "failure": {"interrupted": True}}
    again = make_stretch(stopped)
    again.run()
    assert again.started == CELLS[2:3], "a signal ends the stretch"
    third = make_stretch()
    third.run()
    assert third.started == [*CELLS[3:], *CELLS[1:3]], "an error is worth another try, lack of memory is a result"
    assert [case["name"] for case in saved(third)["cases"]] == [step.name for step in STEPS]


def test_what_other_code_measured_stays_until_it_is_measured_anew(make_stretch):
    make_stretch(steps=STEPS[:2]).run()
    changed = make_stretch(*[outcome() for _ in CELLS[2:]], OSError("broken"), code="changed")
    changed.run()
    assert changed.started == [*CELLS[2:], *CELLS[:2]], "what was never measured comes first"
    kept, renewed, *_ = saved(changed)["cases"]
    assert (kept["status"], kept["code"], renewed["code"]) == ("ok", "here", "changed")
    assert changed.todo() == STEPS[:1]


def test_steps_for_which_no_time_is_left_are_named_and_done_in_the_next_stretch(make_stretch):
    stretch = make_stretch(seconds=MARGIN_SECONDS + 0.5)
    stretch.say = lambda line: time.sleep(0.6)
    stretch.run()
    assert stretch.started == CELLS[:1] and saved(stretch)["not_run"] == {cell.name: NOT_RUN for cell in CELLS[1:]}
    again = make_stretch()
    again.run()
    assert again.started == CELLS[1:] and saved(again)["not_run"] == {}


def test_a_command_leaves_its_file_its_reason_or_is_stopped(make_stretch, monkeypatch, tmp_path):
    (tmp_path / "planted.py").write_text(
        "import json, sys, time\n"
        "what, output = sys.argv[1:]\n"
        "json.dump({'did': what}, open(output, 'w'))\n"
        "if what == 'hangs': print('now it hangs', flush=True); time.sleep(60)\n"
        "if what == 'fails': sys.exit('it is broken')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    steps = [Step(what, "known", command=("planted", what, "OUTPUT")) for what in ("hangs", "fails", "works")]
    monkeypatch.setattr(work, "STEP_SECONDS", 2.0)
    stretch = make_stretch(steps=steps)
    stretch.run()
    hangs, fails, works = saved(stretch, "known")["cases"]
    assert (fails["status"], fails["reason"], fails["result"]) == ("failed", "it is broken", {"did": "fails"})
    assert hangs["status"] == "timeout" and hangs["reason"].endswith("last it said: now it hangs")
    assert (works["status"], works["reason"], works["result"]) == ("ok", None, {"did": "works"})
    assert [step.name for step in make_stretch(steps=steps).todo()] == ["hangs", "fails"]


def test_a_file_that_cannot_be_read_is_named_and_not_overwritten(make_stretch):
    stretch = make_stretch()
    stretch.run()
    file = stretch.folder / "memory.json"
    for content in ("[]", '{"group": "memory", "cases": [{"name": []}]}'):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"output: .*memory.json cannot be read .*; move it away"):
            make_stretch()
        assert file.read_text() == content


def test_the_summary_says_what_each_cell_saved_of_the_kept_baseline_and_lists_what_is_missing(tmp_path, capsys):
    files = [memory_file(), known_file()]
    files[0]["cases"][-1] |= {"status": "oom", "reason": "full"}
    save(tmp_path / "run", *files)
    assert main(["measure", "gpu", "--summary", str(tmp_path / "run"), "--output", str(tmp_path / "reference")]) == 0
    folder = tmp_path / "reference" / "nvidia-h200"
    assert capsys.readouterr().out == f"{folder / 'summary.json'}\n"
    values = json.loads((folder / "summary.json").read_text())
    for row, case in zip(values["memory"][:-1], files[0]["cases"], strict=False):
        assert Cell.from_dict({name: row[name] for name in case["cell"]}).name == case["name"]
        same = {"compressor": "topk", "scheme": "baseline", "gradients": "kept", "model": row["model"]}
        (first,) = (one for one in files[0]["cases"] if same.items() <= one["cell"].items())
        mine, theirs = (one["ranks"][0]["memory"]["total_bytes"] for one in (case, first))
        assert row["saved"] == 1 - mine / theirs and row["model_states_bytes"] == mine
    assert values["memory"][-1]["saved"] is None
    assert values["missing"] == {files[0]["cases"][-1]["name"]: "oom: full"}
    assert json.loads((folder / "memory.json").read_text()) == files[0]


OTHERS = ("snakemake", "jsonschema", "pydantic", "altair", "horovod", "docker", "pyarrow", "matplotlib", "pandas")
"""What the check must do without, with all that it starts."""
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


def limited(tmp_path: Path) -> dict[str, str]:
    """An environment in which no process finds any of OTHERS: Python loads this when it starts."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site/sitecustomize.py").write_text(WITHOUT)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "OMP_NUM_THREADS": "1"}


def test_the_whole_order_runs_on_a_cpu_with_few_packages(tmp_path):
    """A step of every kind; none runs for the first time on a GPU."""
    options = ["--everything", "--device", "cpu", "--tiny", "--seconds", "10000", "--output", str(tmp_path / "run")]
    command = [sys.executable, "-m", "benchmarks", "measure", "gpu", *options]
    done = subprocess.run(command, env=limited(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "run/cpu-tiny").glob("*.json")}
    assert {*found} == {*GROUPS} and "0 for the next stretch" in done.stdout, done.stdout
    steps = {case["name"]: case for values in found.values() for case in values["cases"]}
    assert {name: case["reason"] for name, case in steps.items() if case["status"] != "ok"} == {}
    assert {*steps} == {step.name for step in list_steps("cpu", tiny=True)}
    (case,) = found["memory"]["cases"]
    assert case["ranks"][0]["memory"]["total_bytes"] == case["planned"]["total"] > 0
    (tested,) = found["contracts"]["cases"]
    assert "1 passed" in tested["said"]


def test_peaks_are_compared_with_the_plan_of_their_own_choice_and_batch(tmp_path, capsys):
    """Bytes as planned, but of one row, as a stand-in for what a GPU's allocator held."""
    rows = list(peaks.measured("resnet20", torch.device("cpu"), tiny=True))
    assert {(row["batch"], row["held_bytes"]) for row in rows} == {(1, None)}, "a CPU has no such allocator"
    found = plan(load(BUILDERS["resnet20"]), optimizer="sgd", optimizer_args={"fused": True}, world_size=1, batch=1)
    planned = {row["choice"]: row for row in found["choices"]}
    for row in rows:
        key = "checkpointed_fullest_bytes" if row["checkpoint"] else "fullest_bytes"
        row["held_bytes"] = round(planned[row["choice"]][key] / 1.04)
    rows[-1]["held_bytes"] = round(rows[-1]["held_bytes"] / 1.04)
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps({"cases": [{"result": {"rows": rows}}, {"result": None}]}))
    assert peaks.compare(path) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert ["(+4.0%)" in line for line in lines] == [True] * (len(rows) - 1) + [False] and "(+8.2%)" in lines[-1]
    assert last == f"1 of {len(rows)} rows are not within 5%"
    path.write_text(json.dumps({"rows": rows[:-1]}))
    assert peaks.compare(path) == 0

"""The one-GPU check: its steps by importance, and a stretch of them, with one JSON file per group. No torch."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.content import LIBRARY, TRAINING, content_hash
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.paths import ROOT
from benchmarks.core.prepared import find_root
from benchmarks.core.provenance import provenance
from benchmarks.core.workloads import PAPER, WORKLOADS
from benchmarks.launching.launch import launch
from benchmarks.launching.outcomes import overall
from benchmarks.launching.processes import Job, run_together
from resireduce.errors import ConfigError
from resireduce.scheme import load

# --- cases ---

MEMORY_STEPS = 5
"""Steps of a cell whose memory is measured; a few suffice, as memory allocated in the first step stays."""
ROUNDS, ROUND_STEPS = 6, 2
"""How often a paired timing runs each cell, and for how many steps each time."""
MODELS = tuple(workload.model for workload in PAPER)
DENSITIES = {"bert-large": 0.001}
"""Densities of the models for which the released scripts do not send one percent."""
GLOO_MODEL = "bert-base"
"""The model that also runs on two ranks, which share the GPU."""
Setting = tuple[str, str, str, str | None]
SETTINGS: tuple[Setting, ...] = (
    ("topk", "baseline", "kept", None),
    ("topk", "w+2d", "streamed", None),
    ("topk", "baseline", "streamed", None),
    ("topk", "w+2d", "kept", None),
    ("topk", "baseline", "streamed", "int4"),
    ("none", "none", "streamed", None),
)
"""The settings measured for each model: compressor, scheme, gradients and residual dtype.

All others are compared with the first setting; the most telling ones come next.
"""
NAMES = ("compressor", "scheme", "gradients", "residual_dtype")


def memory_cells(models: Sequence[str] = MODELS, steps: int = MEMORY_STEPS) -> Iterator[Cell]:
    """Yield the cells whose memory is measured: all models with the most telling setting, then with the next."""
    for setting in SETTINGS:
        yield from (make_cell(model, steps, setting) for model in models)
    if GLOO_MODEL in models:
        yield make_cell(GLOO_MODEL, steps, SETTINGS[1], world_size=2)


def make_cell(model: str, steps: int, setting: Setting, world_size: int = 1) -> Cell:
    """Return a cell for a setting of SETTINGS, on random inputs if the model's data are not available."""
    fields: dict[str, Any] = dict(zip(NAMES, setting, strict=True))
    return Cell(
        model=model,
        **fields,
        density=DENSITIES.get(model, 0.01),
        world_size=world_size,
        backend="local" if world_size == 1 else "torch",
        steps=steps,
        data="synthetic" if WORKLOADS[model].data else "real",
    )


# --- steps ---

OUTPUT = "OUTPUT"
"""Placeholder in a command for the JSON file that it writes."""
GROUPS = ("known", "contracts", "kernels", "models", "peaks", "throughput", "micro", "memory")
"""All groups of steps, by importance; each writes one file."""
MINUTES = {"known": 0.2, "contracts": 1.3, "kernels": 0.4, "models": 0.6, "peaks": 1.0, "throughput": 0.8}
MINUTES |= {"micro": 0.3, "memory": 0.55}
"""About how long a step of each group takes on an H200: as recorded there; those of models and peaks are guessed."""
MODULES = {
    "micro": "benchmarks.micro.micro_command",
    "kernels": "benchmarks.training.time_kernels",
    "models": "benchmarks.training.model_steps",
    "peaks": "benchmarks.training.peaks",
}
"""Groups by the module to run: `python -m MODULE [MODEL] --device D --output FILE [--tiny]`."""
TIMED_MODELS = ("resnet50", "bert-base", "bert-large", "gpt2-medium")
"""Models whose gradients are compressed, beside no compression."""
CASES = ("torch.topk", "GRACE's form", "topk, *", "dgc, baseline", "randomk, baseline", "fp16, baseline")
MORE = {"micro": ["--sizes", *(str(mebi << 20) for mebi in (1, 25, 100)), "--cases", *CASES]}
"""Further arguments of a group at full size: a GPU does in a millisecond what a CPU does in a second."""
CONTRACTS = Path("tests/gpu")
PYTEST = ("pytest", "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60")
"""Runs a file of tests; what it says last names those that failed, that are running, or that have hung for a minute."""
TINY_MODEL = "resnet20"
SIZES = (("256", "4096"), ("64",))
"""Mebibytes of known allocations, and those of a trial run."""


@dataclass(frozen=True)
class Step:
    """One measurement, in processes of its own."""

    name: str
    group: str
    cell: Cell | None = None
    """The cell to train and measure; None if the step is a command."""
    command: tuple[str, ...] = ()
    """Arguments after `python -m`; a return code other than 0 means that something is wrong."""


def list_steps(device: str, tiny: bool = False) -> list[Step]:
    """Return all steps in order; `tiny`: the smallest models and a step or two, to try everything out."""

    def measure(name: str, group: str, *arguments: str) -> Step:
        command = ("benchmarks", "measure", *arguments, "--device", device, "--output", OUTPUT)
        return Step(name, group, command=command)

    def module(group: str, *model: str) -> Step:
        more = ["--tiny"] if tiny else MORE.get(group, [])
        command = (MODULES[group], *model, "--device", device, "--output", OUTPUT, *more)
        return Step(".".join((group, *model)), group, command=command)

    # A file of tests each, so that the device state left by a failure does not affect the next.
    files = sorted((ROOT / CONTRACTS).glob("test_*.py"))[: 1 if tiny else None]
    cells = list(memory_cells((TINY_MODEL,), 1))[4:5] if tiny else memory_cells()
    rounds, steps = ("2", "1") if tiny else (str(ROUNDS), str(ROUND_STEPS))
    paced = ("--ranks", "1", "--pairs", "every", "--rounds", rounds, "--steps", steps)
    found = [measure(f"known.{size}-mib", "known", "allocation", "--mebibytes", size) for size in SIZES[tiny]]
    for file in files:
        command = (*PYTEST, (CONTRACTS / file.name).as_posix())
        found.append(Step(f"contracts.{file.stem.removeprefix('test_')}", "contracts", command=command))
    found.append(module("kernels"))
    found += [module("models", model) for model in ((TINY_MODEL,) if tiny else TIMED_MODELS)]
    found += [module("peaks", model) for model in ((TINY_MODEL,) if tiny else MODELS)]
    for model in (TINY_MODEL,) if tiny else MODELS:
        found.append(measure(f"throughput.{model}", "throughput", "pace", "--models", model, *paced))
    return [*found, module("micro"), *(Step(cell.name, "memory", cell=cell) for cell in cells)]


# --- one step ---

LOG_CHARACTERS = 6000
"""Characters kept from the end of a failed command's output."""
FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"':]+/)+""")
"""The folders of an absolute path."""


def do(step: Step, seconds: float) -> dict[str, Any]:
    """Do a step within `seconds` and return its record; only a signal ends more than the step."""
    started = time.monotonic()
    record: dict[str, Any] = {"name": step.name, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"cell": step.cell.to_dict()} if step.cell else {"command": list(step.command)}
    try:
        with tempfile.TemporaryDirectory(prefix="resireduce-gpu-check-") as folder:
            record |= _train(step, Path(folder), seconds) if step.cell else _command(step, Path(folder), seconds)
    except Exception as error:
        record |= {"status": "error", "reason": f"{type(error).__name__}: {error}"}
    return without_folders(record | {"wall_seconds": time.monotonic() - started})


def without_folders(value: Any) -> Any:
    """Return a record, or a part of one, in whose texts files are named without the folders of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def _train(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Train and measure a cell; return what its ranks left, and its plan."""
    assert step.cell is not None
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals suffice here, at a hundredth of the size
        rank.get("memory", {}).pop("moments", None)
    planned = load("benchmarks.training.plan_of_cell:plan_of")(step.cell) if said.status == "ok" else None
    return {"status": said.status, "reason": said.reason, "ranks": ranks, "planned": planned}


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end; return its JSON, and its output if it failed."""
    output = folder / "result.json"
    line = [str(output) if part == OUTPUT else part for part in step.command]
    (ended,) = run_together([Job([sys.executable, "-m", *line], os.environ, ROOT)], seconds)
    text = ended.output.strip()[-LOG_CHARACTERS:]
    last = text.splitlines()[-1] if text else "nothing"
    record: dict[str, Any] = {"result": load_json(output) if output.exists() else None, "said": last}
    if ended.code == 0:
        return record | {"status": "ok", "reason": None}
    late = f"not done after {seconds:.0f} s; last it said: {last}"
    status, reason = ("timeout", late) if ended.code is None else ("failed", last)
    return record | {"status": status, "reason": reason, "log": text}


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    if record.get("planned"):
        held, planned = record["ranks"][0]["memory"]["total_bytes"], record["planned"]["total"]
        return f"{head}: model states {held:,} bytes, by plan {planned:,}"
    said = record["reason"] or record.get("said")
    return f"{head}: {said}" if said else head


TIMING = tuple(f"benchmarks/micro/{name}.py" for name in ("micro_command", "pace"))
LIMIT_SECONDS = 540.0
FINISHED = ("ok", "oom", "diverged")
"""Statuses that say something about the step; others are worth another try."""
DONE = 3
"""The turn of a step that needs no other try."""
MARGIN_SECONDS = 10.0
"""Reserved at the end of a stretch to stop its last step and write its results."""
STEP_SECONDS = 360.0
"""Seconds after which a step on a GPU is stopped as hanging: the others need the time."""
NOT_RUN = "no time was left; run the next stretch"


def code_of(group: str) -> str:
    """Return the hash of all code that a group's results depend on."""
    tests = (CONTRACTS.as_posix(), "tests/worlds.py") if group == "contracts" else ()
    return content_hash((*LIBRARY, *TRAINING, *TIMING, *tests))


@dataclass
class Stretch:
    """Do `steps` in `folder`, for at most `seconds`.

    Each group's file is replaced atomically after every step, so that a stretch that is killed keeps its results. Steps
    never tried come first, in their order; then those that failed in an earlier stretch; then those measured by other
    code, whose results stay until there are new ones.
    """

    steps: Sequence[Step]
    folder: Path
    device: dict[str, Any]
    """The facts about the device."""
    seconds: float = LIMIT_SECONDS
    say: Callable[[str], None] = print
    """Receives a line for each step."""
    source: dict[str, Any] = field(default_factory=provenance)
    code: Callable[[str], str] = code_of
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Records of steps, by name."""

    def __post_init__(self) -> None:
        """Read the files of earlier stretches."""
        self._codes = {group: self.code(group) for group in GROUPS}
        self.records = {record["name"]: record for values in read_files(self.folder) for record in values["cases"]}
        self._ends_at = time.monotonic() + self.seconds - MARGIN_SECONDS

    def todo(self) -> list[Step]:
        """Return the steps to do, in the order of this stretch."""
        return sorted((step for step in self.steps if self._turn(step) < DONE), key=self._turn)

    def _turn(self, step: Step) -> int:
        record = self.records.get(step.name)
        if record is None:
            return 0
        if record["status"] not in FINISHED:
            return 1
        return DONE if record["code"] == self._codes[step.group] else 2

    def run(self) -> None:
        """Do all steps that there is time for."""
        todo, most = self.todo(), STEP_SECONDS if self.device.get("uuid") else float("inf")
        for number, step in enumerate(todo, start=1):
            left = self._ends_at - time.monotonic()
            if left <= 0:
                self.say(f"{len(todo) - number + 1} steps: {NOT_RUN}")
                return
            self.say(f"{step.name}: {number} of {len(todo)}; {left:.0f} s are left")
            record = do(step, min(left, most))
            record |= {"device": self.device.get("uuid"), "code": self._codes[step.group]}
            record |= {"commit": self.source.get("commit")}
            if record["status"] in FINISHED or self._turn(step) < 2:  # a result of other code is better than none
                self.records[step.name] = record
            self._save(step.group)
            self.say(line(record))
            # A signal ended it: the launcher does not raise then, and the remaining steps are not wanted.
            if any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ())):
                return

    def _save(self, group: str) -> None:
        names = [step.name for step in self.steps if step.group == group]
        values = {
            "group": group,
            "provenance": self.source | self.device,
            "cases": [self.records[name] for name in names if name in self.records],
            "not_run": {name: NOT_RUN for name in names if name not in self.records},
        }
        save_json(finite(values), self.folder / f"{group}.json")


def read_files(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the files of groups in a folder. Raises ConfigError, with one line, for an unreadable file."""
    for path in (folder / f"{group}.json" for group in GROUPS):
        try:
            values = load_json(path)
            if not all({"name", "status", "code", "reason"} <= record.keys() for record in values["cases"]):
                raise ValueError("it is of another kind")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(f"output: {path} cannot be read ({error}); move it away") from None
        yield values

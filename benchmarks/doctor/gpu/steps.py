"""The steps of the one-GPU check, by importance: cells, and commands that write a JSON file. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.doctor.gpu.cases import MODELS, ROUND_STEPS, ROUNDS, TIMED_TOGETHER, TRAINED, estimate, memory_cells

OUTPUT = "OUTPUT"
"""Placeholder in a command for the JSON file that it writes."""
GROUPS = ("known", "contracts", "memory", "micro", "throughput", "kernels", "training")
"""All groups of steps, by importance; each writes one file."""
MODULES = {"micro": "benchmarks.micro.micro_command", "kernels": "benchmarks.training.time_kernels"}
"""Groups of one step, by the module to run: `python -m MODULE --device D --output FILE [--tiny]`."""
CASES = ("torch.topk", "GRACE's form", "topk, *", "dgc, baseline", "randomk, baseline", "fp16, baseline")
MORE = {"micro": ["--sizes", *(str(mebi << 20) for mebi in (1, 25, 100)), "--cases", *CASES]}
"""Further arguments of a group at full size: a GPU does in a millisecond what a CPU does in a second."""
CONTRACTS = Path("tests/gpu")
TINY_MODEL = "resnet20"


@dataclass(frozen=True)
class Step:
    """One measurement, in processes of its own."""

    name: str
    group: str
    estimated_seconds: float
    """Estimated wall time of the step, including the start of its processes."""
    cell: Cell | None = None
    """The cell to train and measure; None if the step is a command."""
    command: tuple[str, ...] = ()
    """Arguments after `python -m`; a return code other than 0 means that something is wrong."""


def list_steps(device: str, tiny: bool = False) -> list[Step]:
    """Return all steps in order; `tiny`: the smallest models and a step or two, to try everything out."""
    return [*_known(device, tiny), *_contracts(tiny), *_memory(tiny), *_module("micro", device, tiny),
            *_throughput(device, tiny), *_module("kernels", device, tiny), *_training(device, tiny)]  # fmt: skip


def _known(device: str, tiny: bool) -> Iterator[Step]:
    for mebibytes in ("64",) if tiny else ("256", "4096"):
        command = ("benchmarks", "measure", "--device", device, "--mebibytes", mebibytes, "--output", OUTPUT)
        yield Step(f"known.{mebibytes}-mib", "known", 12.0, command=command)


def _contracts(tiny: bool) -> Iterator[Step]:
    """Yield a step for each file of tests, so that the device state left by a failure does not affect the next."""
    for file in sorted((ROOT / CONTRACTS).glob("test_*.py")):
        name = file.stem.removeprefix("test_")
        own = ("benchmarks.doctor.gpu.contracts", (CONTRACTS / file.name).as_posix(), OUTPUT)
        command = (*own, "--tiny") if tiny else own
        yield Step(f"contracts.{name}", "contracts", 60.0, command=command)


def _memory(tiny: bool) -> Iterator[Step]:
    cells = list(memory_cells((TINY_MODEL,), 1))[4:5] if tiny else memory_cells()
    for cell in cells:
        seconds = estimate(cell.model, cell.steps or 1, cell.world_size)
        yield Step(cell.name, "memory", seconds, cell=cell)


def _throughput(device: str, tiny: bool) -> Iterator[Step]:
    rounds, steps = (2, 1) if tiny else (ROUNDS, ROUND_STEPS)
    for model in (TINY_MODEL,) if tiny else MODELS:
        command = ("benchmarks", "pace", "--device", device, "--ranks", "1", "--models", model, "--pairs", "every",
                   "--rounds", str(rounds), "--steps", str(steps), "--output", OUTPUT)  # fmt: skip
        seconds = estimate(model, (rounds + 1) * steps, TIMED_TOGETHER)
        yield Step(f"throughput.{model}", "throughput", seconds, command=command)


def _module(group: str, device: str, tiny: bool) -> Iterator[Step]:
    command = (MODULES[group], "--device", device, "--output", OUTPUT, *(["--tiny"] if tiny else MORE.get(group, [])))
    yield Step(group, group, 20.0 if tiny else 30.0, command=command)


def _training(device: str, tiny: bool) -> Iterator[Step]:
    for model in TRAINED[:1] if tiny else TRAINED:
        steps = ("--steps", "2") if tiny else ()
        command = ("benchmarks.training.half", "--model", model, "--device", device, "--output", OUTPUT, *steps)
        yield Step(f"training.{model}", "training", 90.0, command=command)

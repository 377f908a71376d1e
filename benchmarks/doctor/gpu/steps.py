"""The steps of the one-GPU check, by importance: cells, and commands that write a JSON file. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import PAPER, WORKLOADS

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
GROUPS = ("known", "contracts", "memory", "micro", "throughput", "kernels")
"""All groups of steps, by importance; each writes one file."""
MODULES = {"micro": "benchmarks.micro.micro_command", "kernels": "benchmarks.training.time_kernels"}
"""Groups of one step, by the module to run: `python -m MODULE --device D --output FILE [--tiny]`."""
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

    def module(group: str) -> Step:
        more = ["--tiny"] if tiny else MORE.get(group, [])
        return Step(group, group, command=(MODULES[group], "--device", device, "--output", OUTPUT, *more))

    # A file of tests each, so that the device state left by a failure does not affect the next.
    files = sorted((ROOT / CONTRACTS).glob("test_*.py"))[: 1 if tiny else None]
    cells = list(memory_cells((TINY_MODEL,), 1))[4:5] if tiny else memory_cells()
    rounds, steps = ("2", "1") if tiny else (str(ROUNDS), str(ROUND_STEPS))
    paced = ("--ranks", "1", "--pairs", "every", "--rounds", rounds, "--steps", steps)
    found = [measure(f"known.{size}-mib", "known", "allocation", "--mebibytes", size) for size in SIZES[tiny]]
    for file in files:
        command = (*PYTEST, (CONTRACTS / file.name).as_posix())
        found.append(Step(f"contracts.{file.stem.removeprefix('test_')}", "contracts", command=command))
    found += [*(Step(cell.name, "memory", cell=cell) for cell in cells), module("micro")]
    for model in (TINY_MODEL,) if tiny else MODELS:
        found.append(measure(f"throughput.{model}", "throughput", "pace", "--models", model, *paced))
    return [*found, module("kernels")]

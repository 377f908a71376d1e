"""What the one-GPU check runs, in which part, and for how long by estimate. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.cell import Cell
from benchmarks.workloads import PAPER, WORKLOADS

LIMIT_SECONDS = 540
"""Most that a part may take."""
PLANNED_SECONDS = 500
"""How much is put into a part, by estimate."""
STEPS = 30
"""Of which the clock leaves out the first ten."""
MODELS = tuple(workload.model for workload in PAPER)
DENSITIES = {"bert-large": 0.001}
"""Where the released scripts do not send one percent."""
GLOO_MODEL = "bert-base"
"""Runs once more on two ranks, which share the GPU."""
FLOAT32 = (
    ("topk", "baseline", "kept", None),
    ("topk", "baseline", "streamed", None),
    ("topk", "w+2d", "kept", None),
    ("topk", "w+2d", "streamed", None),
    ("none", "none", "kept", None),
    ("none", "none", "streamed", None),
)
"""Compressor, scheme, gradients and residual dtype. The first is what all others are compared with."""
BFLOAT16 = tuple(
    ("topk", scheme, gradients, "bfloat16") for scheme, gradients in product(("baseline", "w+2d"), ("kept", "streamed"))
)

# Estimates, not measurements: generous ones for an H100, so that a part ends in time.
START_SECONDS = 18.0
"""Until Python, torch and the device are ready, and what follows training: a traced step, the plan."""
OF_MODEL = {
    "resnet50": (2.0, 0.25),
    "vgg19": (5.0, 0.25),
    "bert-base": (5.0, 0.3),
    "bert-large": (12.0, 0.6),
    "gpt2-medium": (14.0, 0.7),
    "gpt2-large": (28.0, 1.2),
}
"""Seconds to make the model, and seconds a step."""
UNKNOWN = (2.0, 0.5)


@dataclass(frozen=True)
class Case:
    """One cell of the check."""

    cell: Cell

    @property
    def name(self) -> str:
        """The cell's."""
        return self.cell.name

    @property
    def estimated_seconds(self) -> float:
        """An estimate of its wall time, its processes' start included; two ranks take turns on the GPU."""
        make, step = OF_MODEL.get(self.cell.model, UNKNOWN)
        ranks = self.cell.world_size
        return START_SECONDS + (make + (self.cell.steps or STEPS) * step) * ranks


def list_cases(models: Sequence[str] = MODELS, steps: int = STEPS) -> list[Case]:
    """Return all cases in the order of the parts: what matters most first, should time run out.

    That is every model with residuals in float32 and without compression; residuals in bfloat16 follow.
    """
    cases = [Case(cell) for model in models for cell in _cells(model, steps)]
    return cases + [Case(_cell(model, steps, setting)) for model in models for setting in BFLOAT16]


def _cells(model: str, steps: int) -> Iterator[Cell]:
    for setting in FLOAT32:
        yield _cell(model, steps, setting)
    if model == GLOO_MODEL:
        yield _cell(model, steps, ("topk", "w+2d", "streamed", None), world_size=2)


def _cell(model: str, steps: int, setting: tuple[str, str, str, str | None], world_size: int = 1) -> Cell:
    compressor, scheme, gradients, residual_dtype = setting
    return Cell(
        model=model,
        compressor=compressor,
        scheme=scheme,
        gradients=gradients,
        residual_dtype=residual_dtype,
        density=DENSITIES.get(model, 0.01),
        world_size=world_size,
        backend="local" if world_size == 1 else "torch",
        steps=steps,
        data="synthetic" if WORKLOADS[model].data else "real",
    )


def parts(cases: Sequence[Case]) -> list[list[Case]]:
    """Cut the cases, in their order, into parts of PLANNED_SECONDS at most by estimate."""
    found: list[list[Case]] = []
    seconds = float("inf")
    for case in cases:
        if seconds + case.estimated_seconds > PLANNED_SECONDS:
            found.append([])
            seconds = 0.0
        found[-1].append(case)
        seconds += case.estimated_seconds
    return found


def estimate(cases: Sequence[Case]) -> float:
    """Return the estimated seconds of several cases, one after the other."""
    return sum(case.estimated_seconds for case in cases)

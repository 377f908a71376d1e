"""What the one-GPU check measures, and how long each may take by estimate: plain values. Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.core.cell import ELEMENTWISE, Cell
from benchmarks.core.workloads import PAPER, SMALL, WORKLOADS

MEMORY_STEPS = 5
"""Steps of a cell whose memory is measured. They are enough: what is allocated in the first step stays."""
ROUNDS, ROUND_STEPS = 8, 3
"""How often a paired measurement of time times each cell, and for how many steps each time."""
MODELS = tuple(workload.model for workload in PAPER)
TRAINED = tuple(workload.model for workload in SMALL)
"""The models that are trained in half precision to their metric."""
DENSITIES = {"bert-large": 0.001}
"""Densities of the models of which the released scripts do not send one percent."""
GLOO_MODEL = "bert-base"
"""The model that runs once more on two ranks, which share the GPU."""
Setting = tuple[str, str, str, str | None, bool | None]
SETTINGS: tuple[Setting, ...] = (
    ("topk", "baseline", "kept", None, None),
    ("topk", "w+2d", "streamed", None, None),
    ("topk", "baseline", "streamed", None, None),
    ("topk", "w+2d", "streamed", None, True),
    ("topk", "w+2d", "kept", None, None),
    ("topk", "baseline", "streamed", "int4", None),
    ("topk", "baseline", "streamed", "int4", True),
    ("none", "none", "streamed", None, None),
)
"""What is measured of each model: compressor, scheme, gradients, residual dtype and slices.

The first setting is the one that all others are compared with; the most telling come next.
"""
NAMES = ("compressor", "scheme", "gradients", "residual_dtype", "slices")
APART = ("gpt2-large",)
"""Models of which only two at a time fit beside each other, to be timed in turn."""

# Estimates, not measurements: generous ones for an H100, so that a stretch ends in time.
START_SECONDS = 14.0
"""What a process takes until Python, torch and the device are ready, and for the traced step after training."""
OF_MODEL = {
    "resnet50": (2.0, 0.1),
    "vgg19": (5.0, 0.1),
    "bert-base": (5.0, 0.1),
    "bert-large": (12.0, 0.25),
    "gpt2-medium": (14.0, 0.3),
    "gpt2-large": (28.0, 0.5),
}
"""Seconds that it takes to make each model, and seconds of its step."""
UNKNOWN = (2.0, 0.5)


def memory_cells(models: Sequence[str] = MODELS, steps: int = MEMORY_STEPS) -> Iterator[Cell]:
    """Yield the cells whose memory is measured: the most telling setting of all models, then the next.

    Slices are for models whose optimizer treats each element by itself.
    """
    for setting in SETTINGS:
        taken = (model for model in models if not setting[-1] or WORKLOADS[model].optimizer in ELEMENTWISE)
        yield from (make_cell(model, steps, setting) for model in taken)
    if GLOO_MODEL in models:
        yield make_cell(GLOO_MODEL, steps, SETTINGS[1], world_size=2)


def make_cell(model: str, steps: int, setting: Setting, world_size: int = 1) -> Cell:
    """Return a cell of a setting in SETTINGS' form, on random inputs if the model's data are not at hand."""
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


def estimate(model: str, steps: int, times: int = 1) -> float:
    """Estimate the wall seconds of one process that makes a model and takes so many steps, so many `times`.

    Two ranks count as two times: they take turns on the GPU.
    """
    make, step = OF_MODEL.get(model, UNKNOWN)
    return START_SECONDS + (make + steps * step) * times

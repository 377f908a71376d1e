"""The cases of the one-GPU check, with estimated times, as plain values. Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.workloads import PAPER, SMALL, WORKLOADS

MEMORY_STEPS = 5
"""Steps of a cell whose memory is measured; a few suffice, as memory allocated in the first step stays."""
ROUNDS, ROUND_STEPS = 6, 2
"""How often a paired timing runs each cell, and for how many steps each time."""
MODELS = tuple(workload.model for workload in PAPER)
TRAINED = tuple(workload.model for workload in SMALL)
"""The models trained in half precision up to their metric."""
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
TIMED_TOGETHER = 4
"""Settings of a model that are timed in turn in one process; for gpt2-large they take some 75 GB together."""

# By what they took on an H200, beside others; a stretch should end in time.
START_SECONDS = 12.0
"""Seconds of a process to load Python, torch and the device, and for the traced step after training."""
OF_MODEL = {
    "resnet50": (1.0, 0.1),
    "vgg19": (2.0, 0.06),
    "bert-base": (4.0, 0.15),
    "bert-large": (8.0, 0.35),
    "gpt2-medium": (9.0, 0.3),
    "gpt2-large": (14.0, 0.5),
}
"""Seconds to make each model, and seconds of its step."""
UNKNOWN = (2.0, 0.5)


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


def estimate(model: str, steps: int, times: int = 1) -> float:
    """Estimate the wall seconds of one process that makes a model and takes `steps` steps, all of it `times` times.

    Two ranks count as two times, as they take turns on the GPU.
    """
    make, step = OF_MODEL.get(model, UNKNOWN)
    return START_SECONDS + (make + steps * step) * times

"""A model for the simulator: its tensors in the order of their gradients, and the operations of a step."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from benchmarks.simulation.cluster import Device
from resireduce.errors import ConfigError
from resireduce.merging.rules import Array
from resireduce.scheme import load

TRACE = "benchmarks.training.layer_trace:trace"
UPDATE_BYTES = {"sgd": 20, "adamw": 28, "bert-adam": 28}
"""Bytes of memory that an update moves per float32 parameter: parameter, gradient and states are read, parameter and
states are written."""


@dataclass(frozen=True)
class Layers:
    """One training step of a model on one rank."""

    model: str
    batch: int
    """Samples per rank; 0 if not known."""
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    """grouped, specific, other, or dense: sent uncompressed with any compressor."""
    optimizer: str
    forward: Array
    """Operations of the forward pass, (operations, 2): flops, and bytes read and written."""
    backward: tuple[Array, ...]
    """For each gradient, the operations of the backward pass since the previous one, in the same form."""
    activations_bytes: int

    @cached_property
    def elements(self) -> Array:
        """Number of elements of each tensor."""
        return np.array([prod(shape) for shape in self.shapes], dtype=float)

    def seconds(self, device: Device, compute_seconds: float | None = None) -> tuple[float, Array]:
        """Return the time of the forward pass, and of the part of the backward pass before each gradient.

        An operation takes as long as its flops or its bytes on the device, whichever is longer, and at least a launch.
        compute_seconds: the measured time of both passes together, to which all is scaled. Without a recipe, operations
        are unknown: a third of that time is the forward pass, and the rest is divided by elements. Raises ConfigError
        for a model with neither a recipe nor such a measurement.
        """
        if not self.batch:
            if compute_seconds is None:
                raise ConfigError(
                    f"compute_seconds: missing, and {self.model!r} has no recipe that says what a step computes; "
                    "give the seconds that forward and backward pass of one rank take"
                )
            return compute_seconds / 3, compute_seconds * 2 / 3 * self.elements / self.elements.sum()
        forward = float(_seconds(self.forward, device).sum())
        backward = np.array([_seconds(part, device).sum() for part in self.backward])
        scale = 1.0 if compute_seconds is None else compute_seconds / (forward + backward.sum())
        return scale * forward, scale * backward

    def update_seconds(self, device: Device) -> float:
        """Return the time of the optimizer's update, from the bytes it moves."""
        return float(UPDATE_BYTES[self.optimizer] * self.elements.sum() / device.bytes_per_second)


def _seconds(operations: Array, device: Device) -> Array:
    flops, moved = operations[:, 0], operations[:, 1]
    return np.maximum(np.maximum(flops / device.flops, moved / device.bytes_per_second), device.launch_seconds)


def layers_of(model: str, batch: int | None = None) -> Layers:
    """Return the layers of a model that `plan` knows; `batch`: samples per rank, None for those of its recipe.

    Raises ConfigError for an unknown model, and for a batch that it cannot take. Loads torch, and takes seconds.
    """
    try:
        traced = load(TRACE)(model, batch)
    except ConfigError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"batch: {model!r} cannot take {batch or 'its own'}: {reason}; give another") from None
    if batch is not None and not traced["batch"]:
        raise ConfigError(f"batch: {batch} means nothing to {model!r}, which has no recipe; leave it out")
    traced["names"], traced["kinds"] = tuple(traced["names"]), tuple(traced["kinds"])
    traced["shapes"] = tuple(map(tuple, traced["shapes"]))
    traced["forward"], traced["backward"] = _operations(traced["forward"]), tuple(map(_operations, traced["backward"]))
    return Layers(**traced)


def _operations(listed: Any) -> Array:
    return np.array(listed, dtype=float).reshape(-1, 2)

"""A combination to simulate: a model's tensors, what is sent for each, and what compressing it takes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.files import load_json
from benchmarks.simulation.cluster import Cluster, Device
from benchmarks.simulation.rules import RULES
from resireduce.errors import ConfigError
from resireduce.merging.rules import Array
from resireduce.scheme import COMPRESSORS, HIERARCHIES, MERGES, load

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


# --- Combinations ---

LOSSLESS = "none"
"""The compressor that sends gradients unchanged."""


@dataclass(frozen=True, slots=True)
class Case:
    """One combination, of values that were checked before."""

    cluster: Cluster
    ranks: int
    compressor: str = LOSSLESS
    density: float = 1.0
    scheme: str = "baseline"
    rule: str = "none"
    hierarchy: str = "flat"

    @property
    def key(self) -> "Key":
        """What its work depends on."""
        return self.cluster.device, self.compressor, self.density, self.scheme

    @property
    def makes_sense(self) -> bool:
        """Whether the combination can be built and does not repeat another one.

        Halves of an all-reduce need dense gradients and flat ranks; rounds are merged by no rule of times; one node,
        or one rank per node, has no levels. Planners choose between a compressor and none, and use the levels
        that there are.
        """
        dense = self.compressor == LOSSLESS
        nodes_and_ranks = self.cluster.ranks_per_node > 1 and self.ranks > self.cluster.ranks_per_node
        if self.rule not in RULES:
            compressed = self.compressor not in (LOSSLESS, "fp16") and not COMPRESSORS[self.compressor].in_rounds
            return compressed and (self.hierarchy == "node") == nodes_and_ranks
        halves = not RULES[self.rule].in_halves or (dense and self.hierarchy == "flat")
        listed = COMPRESSORS[self.compressor]
        alone = self.rule == "none" or not listed.in_rounds or (listed.rounds_merge and self.rule in MERGES[1:3])
        return halves and alone and (self.hierarchy == "flat" or nodes_and_ranks)


def grid(
    clusters: Sequence[Cluster],
    ranks: Sequence[int] | None,
    compressors: Sequence[str],
    densities: Sequence[float],
    rules: Sequence[str],
    hierarchies: Sequence[str] = HIERARCHIES,
    schemes: Sequence[str] = ("baseline",),
) -> Iterator[Case]:
    """Yield all combinations that make sense; `ranks` None: all of a cluster's.

    A compressor without a meaningful density gets only density 1.
    """
    for cluster, compressor, rule, hierarchy, scheme in product(clusters, compressors, rules, hierarchies, schemes):
        own = densities if COMPRESSORS[compressor].selects else [1.0]
        if compressor == LOSSLESS and scheme != schemes[0]:
            continue  # no residual exists without compression
        for count, density in product(ranks or [cluster.ranks], own):
            case = Case(cluster, count, compressor, density, scheme, rule, hierarchy)
            if case.makes_sense:
                yield case


# --- Seconds by number of elements ---


@dataclass(frozen=True)
class Curve:
    """Curves with a `start`, and a change of slope at each of the `knots`: `start` + sum of slopes x (n - knot)."""

    start: Array
    """Seconds, (cases,)."""
    knots: Array
    """Elements, (cases, points)."""
    slopes: Array
    """Seconds per element, (cases, points)."""

    @classmethod
    def line(cls, start: float, per_element: float) -> "Curve":
        """Return one case's curve that is a straight line."""
        return cls(np.array([start]), np.zeros((1, 1)), np.array([[per_element]]))

    @classmethod
    def through(cls, elements: Sequence[int], seconds: Sequence[float]) -> "Curve":
        """Return one case's curve through points, whose `elements` rise; beyond them the nearest segment continues.

        To the left it never falls below 0 nor rises above the first point's `seconds`. A single point gives a line
        through it and 0.
        """
        if len(elements) == 1:
            return cls.line(0.0, seconds[0] / elements[0])
        between = np.diff(seconds) / np.diff(elements)
        start = float(np.clip(seconds[0] - between[0] * elements[0], 0.0, seconds[0]))
        slopes = np.array([(seconds[0] - start) / elements[0], *between])
        knots = np.array([0, *elements[:-1]], dtype=float)
        return cls(np.array([start]), knots[None], np.diff(slopes, prepend=0.0)[None])

    @classmethod
    def together(cls, curves: Sequence["Curve"]) -> "Curve":
        """Return one curve with the cases of all `curves`."""
        most = max(curve.knots.shape[1] for curve in curves)

        def wide(values: Array) -> Array:
            return np.pad(values, ((0, 0), (0, most - values.shape[1])))

        return cls(
            np.concatenate([curve.start for curve in curves]),
            np.concatenate([wide(curve.knots) for curve in curves]),
            np.concatenate([wide(curve.slopes) for curve in curves]),
        )

    def __call__(self, elements: Array) -> Array:
        """Return the seconds for `elements`, (cases,) or (cases, anything); 0 for no elements."""
        more = (slice(None), *[None] * (elements.ndim - 1))
        seconds = self.start[more] + np.zeros_like(elements)
        for point in range(self.knots.shape[1]):
            seconds += self.slopes[:, point][more] * np.maximum(elements - self.knots[:, point][more], 0.0)
        return np.where(elements > 0, np.maximum(seconds, 0.0), 0.0)


# --- The cost of compression, and what is sent ---

MOVED = {
    "baseline": (12, 12, 12),
    "none": (4, 4, 4),
    "a": (16, 12, 12),
    "w": (16, 12, 12),
    "member": (12, 12, 12),
    "d": (12, 10, 12),
    "2d": (12, 10, 12),
    "w+2d": (16, 10, 12),
    "partial": (10, 10, 10),
}
"""Bytes of memory that a scheme must move per float32 element of grouped, specific and other tensors. Full residual:
gradient and residual are read, the residual is written. Group: its average is read too, and its running sum is read and
written. Rows: the error is read once for its norms, and a quarter of it is read and written as the residual; in
`partial` it is half, without norms."""
KINDS = ("grouped", "specific", "other")
MEASURED, BY_BYTES = "measured", "by bytes"


def read_micro(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a record of `make micro`. Raises ConfigError for any other file."""
    try:
        rows = list(load_json(path)["rows"])
        if not all({"case", "elements", "density", "least_seconds"} <= row.keys() for row in rows):
            raise ValueError("it is no record of speeds")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        cure = "make it with: python -m benchmarks measure micro"
        raise ConfigError(f"micro: {path} cannot be read: {error}; {cure}") from None
    return rows


def curve_of(rows: Sequence[Mapping[str, Any]], compressor: str, density: float) -> Curve | None:
    """Return the curve of a compressor with a full residual, of `make micro`'s rows; None if it was not measured.

    Seconds are interpolated over the logarithm of the density; outside of the measured densities, the nearest counts.
    """
    seconds: dict[int, dict[float, float]] = {}
    for row in rows:
        if row["case"] == f"{compressor}, baseline":
            seconds.setdefault(int(row["elements"]), {})[math.log(row["density"])] = float(row["least_seconds"])
    if not seconds:
        return None
    points = [np.array(sorted(seconds[size].items())).T for size in sorted(seconds)]
    return Curve.through(sorted(seconds), [float(np.interp(math.log(density), *one)) for one in points])


PAYLOAD = "benchmarks.training.layer_trace:payload_of"
BUCKET_BYTES = 1 << 18
"""Small dense tensors are sent together, up to this many bytes: `resireduce.core.bucket`, which imports torch."""
FLOAT_BYTES = 4

Key = tuple[Device, str, float, str]
"""Device, compressor, density and scheme."""


@dataclass(frozen=True)
class Work:
    """The work of one device with one compressor, density and scheme; arrays have one number per tensor.

    Small tensors, which are never compressed, lie in buckets. Each bucket is an all-reduce of its own, and its values
    are at the place of its last tensor.
    """

    elements: Array
    """Elements sent as the tensor's own message; 0 if it is in a bucket."""
    payload: Array
    """Bytes of that message, or of an all-reduce that takes as long as its rounds."""
    dense_bytes: Array
    """Bytes of the bucket that ends with this tensor."""
    touched: Array
    """Elements of one payload that are added to the average."""
    more: Array
    """Seconds that the scheme adds to a full residual, or saves."""
    curve: Curve
    """Seconds to compress, by elements, with a full residual."""
    basis: str
    """Where these seconds are from."""
    gathered: bool
    ragged: bool
    lossy: bool


def works(cases: Sequence[Case], layers: Layers, micro: Sequence[Mapping[str, Any]]) -> dict[Key, Work]:
    """Return the work of each combination in `cases`; `micro`: rows of `make micro`'s record.

    Compression that it lacks takes a launch and its bytes of memory, a lower bound, and so does what a scheme adds.
    """
    keys = dict.fromkeys(case.key for case in cases)
    return {key: _work(key, layers, micro, payload_of(key[1], key[2], layers.shapes)) for key in keys}


@lru_cache(maxsize=1024)
def payload_of(compressor: str, density: float, shapes: tuple[tuple[int, ...], ...]) -> Mapping[str, Any]:
    """Return `bytes` of one rank's message for tensors of `shapes`, their `collective`, and whether all have
    `equal_sizes`, for a `compressor` at a `density`; loads torch."""
    found: Mapping[str, Any] = load(PAYLOAD)(compressor, density, shapes)
    return found


def _work(key: Key, layers: Layers, micro: Sequence[Mapping[str, Any]], sent: Mapping[str, Any]) -> Work:
    device, compressor, density, scheme = key
    lossy = compressor != LOSSLESS
    small = np.array([kind == "dense" for kind in layers.kinds])
    elements = np.where(small, 0.0, layers.elements)
    per_byte, full = 1 / device.bytes_per_second, MOVED["baseline"][0]
    curve, basis, more = Curve.line(0.0, 0.0), "nothing to do", dict[str, float]()
    if lossy:
        measured = curve_of(micro, compressor, density)
        basis = BY_BYTES if measured is None else MEASURED
        curve = measured or Curve.line(device.launch_seconds, full * per_byte)
        moved = zip(KINDS, MOVED.get(scheme, MOVED["baseline"]), strict=True)
        more = {kind: (bytes_each - full) * per_byte for kind, bytes_each in moved}
    # Exchanging regions and gathering their sums is an all-reduce with half the bytes.
    summed = 0.5 if sent["collective"] == "rounds" else 1.0
    selects = COMPRESSORS[compressor].selects
    return Work(
        elements=elements,
        payload=np.where(small, 0.0, summed * np.array(sent["bytes"], dtype=float)),
        dense_bytes=buckets(np.where(small, FLOAT_BYTES * layers.elements, 0.0)),
        touched=elements * (density if selects else 1.0),
        more=elements * np.array([more.get(kind, 0.0) for kind in layers.kinds]),
        curve=curve,
        basis=basis,
        gathered=sent["collective"] == "all_gather",
        ragged=not sent["equal_sizes"],
        lossy=lossy,
    )


def buckets(nbytes: Array) -> Array:
    """Return the bytes of each bucket at its last tensor, 0 elsewhere; `nbytes`: of each tensor, 0 for none."""
    found, waiting, last = np.zeros_like(nbytes), 0.0, -1
    for place in map(int, np.flatnonzero(nbytes)):
        if waiting and waiting + nbytes[place] > BUCKET_BYTES:
            found[last], waiting = waiting, 0.0
        waiting, last = waiting + nbytes[place], place
    if waiting:
        found[last] = waiting
    return found

"""The time of training steps, many cases at once: arrays of cases, streams that serve messages, and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.simulation.cluster import Device, paths
from benchmarks.simulation.rules import RULES, Rule
from benchmarks.simulation.wire import FLOAT_BYTES, Case, Curve, Key, Layers, Work
from resireduce.merging.rules import Array, Arrivals, Ends

# --- Cases as arrays: one row per case, one column per tensor, in the order of gradients ---


Passes = tuple[float, Array, float]
"""Seconds of the forward pass, of the backward pass before each gradient, and of the update."""


@dataclass(frozen=True)
class Settings:
    """The settings that all cases share."""

    layers: Layers
    micro: Sequence[Mapping[str, Any]] = ()
    """Rows of `make micro`'s record; without them, compression takes the time of its memory bytes."""
    compute_seconds: float | None = None
    """Measured time of forward and backward pass; None: computed from operations."""

    def passes(self, device: Device) -> Passes:
        """Return what a rank computes on a device. Raises ConfigError if too little is known of the model."""
        return *self.layers.seconds(device, self.compute_seconds), self.layers.update_seconds(device)


@dataclass(frozen=True)
class Rows:
    """Seconds and bytes of cases, of shape (cases,) or (cases, tensors)."""

    forward: Array
    update: Array
    late: Array
    """Delay of the latest rank."""
    backward: Array
    compressed: Array
    """Elements of each tensor that a rank compresses."""
    compress: Curve
    more: Array
    """Seconds that the scheme adds to that."""
    moved: Array
    """Bytes of dense gradients that a node sums before anything is sent."""
    in_node_latency: Array
    in_node_per_byte: Array
    latency: Array
    """Seconds before the first byte of a message with only this tensor."""
    transfer: Array
    payload: Array
    """Bytes of each tensor sent in messages."""
    nbytes: Array
    """Bytes of each tensor sent in messages, with those of the bucket of small tensors that ends with it."""
    copied: Array
    """Seconds to copy each tensor into a merged message and out of it."""
    unpack: Array
    """Seconds to decompress what all ranks sent of the tensor."""
    gather_latency: Array
    """(cases,): of the subsequent gather within a node."""
    gather_per_byte: Array
    """(cases,): per byte of a dense tensor."""
    trailing: Array
    """(cases,): seconds for which a message is still under way when the link is free for the next."""
    busy_latency: Array
    """Seconds by which a message with only this tensor delays concurrent computing, if processors are shared."""
    busy_transfer: Array
    """Seconds by which the bytes of each tensor delay concurrent computing, if processors are shared."""
    in_node_busy: Array
    """Seconds by which summing each tensor within a node delays concurrent computing, if processors are shared."""
    beside: Array
    """Seconds of the bucket of small tensors that ends with each tensor; included in its transfer."""
    settle: Array
    """(cases,): seconds of the small collectives with which ranks end a step."""
    sending: Curve | None = None
    """Measured seconds of a message by its bytes, without buckets; None: from latency and transfer."""


def rows_of(cases: Sequence[Case], settings: Settings, known: Mapping[Key, Work]) -> Rows:
    """Return the rows of `cases`, with the data to send from `known`. Raises ConfigError if too little is known of the
    model."""
    passes = cache(settings.passes)
    return stacked([row_of(case, known[case.key], passes(case.cluster.device)) for case in cases])


def stacked(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the rows of single cases, by field, as one."""
    found: dict[str, Any] = {}
    for name in rows[0]:
        join = Curve.together if name in ("compress", "sending") else np.stack
        found[name] = join([row[name] for row in rows])
    return Rows(**found)


def row_of(case: Case, work: Work, passes: Passes) -> dict[str, Any]:
    """Return the row of one case, by field: of the `work` that it does, and the `passes` that a rank computes.

    A gather of unequal sizes is two collectives: of the sizes, then of the payloads. Dense buckets are wholly in what
    is transferred. To decompress takes a launch for each received payload, and all data are read and added.
    """
    device, place = case.cluster.device, paths(case.cluster, case.ranks, case.hierarchy)
    forward, backward, update = passes
    memory, reduce, dense = device.bytes_per_second, place.reduce, work.dense_bytes
    own, peers = (place.gather, place.peers) if work.gathered else (reduce, 1)
    beside = np.where(dense > 0, reduce.latency + reduce.per_byte * dense, 0.0)
    nbytes, nothing = work.payload + dense, np.zeros_like(dense)
    touched = work.payload + 2 * FLOAT_BYTES * work.touched
    unpack = device.launch_seconds * peers + (FLOAT_BYTES * work.elements + peers * touched) / place.slices / memory
    return {
        "forward": forward,
        "update": update,
        # The mean of the largest of N exponentially distributed delays, N being the number of ranks.
        "late": case.cluster.jitter_seconds * (1 / np.arange(1, case.ranks + 1)).sum(),
        "backward": backward,
        "compressed": work.elements / place.slices * work.lossy,
        "compress": work.curve,
        "more": work.more / place.slices,
        "moved": np.where(work.elements > 0, FLOAT_BYTES * work.elements, dense),
        "in_node_latency": place.in_node.latency,
        "in_node_per_byte": place.in_node.per_byte,
        "gather_latency": place.in_node.latency,
        "gather_per_byte": place.in_node.per_byte,
        "latency": own.latency * (1 + work.ragged) * (work.payload > 0),
        "transfer": own.per_byte * work.payload + beside,
        "beside": beside,
        "payload": work.payload,
        "nbytes": nbytes,
        "copied": (2 if work.gathered else 4) * nbytes / memory,
        "unpack": np.where(work.elements > 0, unpack, 0.0) * work.lossy,
        # What only a testbed's measurements fill.
        "busy_latency": nothing,
        "busy_transfer": nothing,
        "in_node_busy": nothing,
        "trailing": 0.0,
        "settle": 0.0,
    }


# --- One step: tensors pass from stream to stream, and each stream serves one message at a time ---


@dataclass(frozen=True)
class Timed:
    """One step of each case, in seconds; time 0 is the start of the backward pass. Shape (cases,) unless noted."""

    ends: Ends
    """(cases, tensors): where messages end."""
    begun: Array
    """(cases, tensors): when the link begins with the message that ends at each tensor."""
    sent: Array
    """(cases, tensors): when it is done with it."""
    step: Array
    """From the start of one forward pass to that of the next."""
    exposed: Array
    """The part of the step outside of forward pass, backward pass and update: waiting and decompressing."""


def served(arrive: Array, duration: Array) -> Array:
    """Return when each item is done that arrives at `arrive` and is served for `duration`, in order, one at a time."""
    done = np.cumsum(duration, axis=-1)
    return done + np.maximum.accumulate(arrive - (done - duration), axis=-1)


def in_message(values: Array, ends: Ends) -> Array:
    """Return the sum of `values` over each message, at the place where it ends; 0 elsewhere."""
    total = np.cumsum(values, axis=-1)
    at_end = np.where(ends, total, 0.0)
    before = np.zeros_like(at_end)
    before[..., 1:] = np.maximum.accumulate(at_end, axis=-1)[..., :-1]
    return np.where(ends, total - before, 0.0)


def merged(rows: Rows, rule: Rule) -> Ends:
    """Return where messages end under a `rule`, given when each tensor could be sent by itself."""
    alone = np.ones(rows.backward.shape, dtype=bool)
    ready, _ = _sendable(rows, alone, False)
    arrivals = Arrivals(
        np.maximum.accumulate(ready, axis=-1),
        rows.transfer,
        rows.latency,
        rows.nbytes,
        backward=rows.backward,
        elements=rows.compressed,
        compress=rows.compress,
    )
    return rule.function(arrivals)


def _compression(rows: Rows, ends: Ends, whole: bool) -> Array:
    """Return the seconds to compress: for each tensor, or at the end of each message if these are compressed whole."""
    if whole:
        return np.maximum(rows.compress(in_message(rows.compressed, ends)) + in_message(rows.more, ends), 0.0)
    return np.maximum(rows.compress(rows.compressed) + rows.more, 0.0)


def _sendable(rows: Rows, ends: Ends, whole: bool) -> tuple[Array, Array]:
    """Return when messages can be sent, and the end of the backward pass and the compression that delays it.

    Sums within a node are not merged: each tensor, and each bucket of small ones, has its own.
    """
    computing = rows.backward + _compression(rows, ends, whole) + _delays(rows, ends)
    backward = np.cumsum(computing, axis=-1)
    summing = _around(rows.in_node_latency, rows.in_node_per_byte, rows.moved)
    return served(backward + rows.late[:, None], summing), backward[:, -1]


def _delays(rows: Rows, ends: Ends) -> Array:
    """Return the delay of the backward pass before each gradient, caused by messages sent earlier.

    If there are fewer processors than ranks, sending and computing take turns.
    """
    sending = _slowest(rows.busy_latency, ends) + in_message(rows.busy_transfer, ends) + rows.in_node_busy
    delays = np.zeros_like(sending)
    delays[:, 1:] = sending[:, :-1]
    return delays


def _around(latency: Array, per_byte: Array, moved: Array) -> Array:
    """Return the time of a collective within a node for each tensor that has one, which moves its bytes `moved`."""
    return np.where(moved > 0, latency[:, None] + per_byte[:, None] * moved, 0.0)


def timed(rows: Rows, ends: Ends, rule: Rule = RULES["none"]) -> Timed:
    """Return the steps of cases whose messages end at `ends` and are sent as under `rule`."""
    ready, computed = _sendable(rows, ends, rule.compresses_messages)
    if rule.cycle_seconds:
        ready = np.ceil(ready / rule.cycle_seconds) * rule.cycle_seconds
    several = in_message((rows.nbytes > 0).astype(float), ends) > 1
    copying = np.where(several, in_message(rows.copied, ends), 0.0)
    sending = _sending(rows, ends) + copying
    if rule.in_halves:
        return _in_halves(rows, ends, ready, sending, computed)
    sent = served(ready, sending)
    come = sent + np.where(sending > 0, rows.trailing[:, None], 0.0)
    # In the library the thread that ended the backward pass decompresses and gathers, tensor after tensor.
    gathering = _around(rows.gather_latency, rows.gather_per_byte, rows.moved)
    averaged = served(np.maximum(come, computed[:, None]), in_message(rows.unpack, ends) + in_message(gathering, ends))
    finish = np.maximum(averaged[:, -1], computed) + rows.settle
    return Timed(ends, sent - sending, sent, rows.forward + finish + rows.update, finish - computed)


def _sending(rows: Rows, ends: Ends) -> Array:
    """Return the time of each message on the link, at the place where it ends."""
    if rows.sending is None:
        return _slowest(rows.latency, ends) + in_message(rows.transfer, ends)
    return rows.sending(in_message(rows.payload, ends)) + in_message(rows.beside, ends)


def _slowest(latency: Array, ends: Ends) -> Array:
    """Return the latency of each message where it ends; all tensors of a case with a latency have the same one."""
    each = latency.max(axis=-1, keepdims=True)
    return np.where(in_message((latency > 0).astype(float), ends) > 0, each, 0.0)


def _in_halves(rows: Rows, ends: Ends, ready: Array, sending: Array, computed: Array) -> Timed:
    """Return steps whose all-reduces are cut in two (Zhang et al., "DeAR", ICDCS 2023).

    The reduce-scatters take half of the time, during the backward pass. When all have ended, the all-gathers follow in
    the order of the next forward pass; each of its layers waits for its own all-gather, is updated, and computes.
    """
    half = sending / 2
    scattered = served(ready, half)
    begin = np.maximum(scattered[:, -1], computed)[:, None]
    order = slice(None, None, -1)
    gathered = served(np.broadcast_to(begin, half.shape), half[:, order])
    share = rows.backward / rows.backward.sum(axis=-1, keepdims=True)
    weight = rows.moved / rows.moved.sum(axis=-1, keepdims=True)
    layers = in_message(rows.forward[:, None] * share + rows.update[:, None] * weight, ends)
    # A message's layers are consecutive, and the first of them is where the message ends in backward order.
    step = served(np.where(ends[:, order], gathered, begin), layers[:, order])[:, -1]
    return Timed(ends, scattered - half, scattered, step, step - computed - rows.forward - rows.update)

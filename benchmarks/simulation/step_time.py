"""The time of one training step: tensors pass from stream to stream, and each stream serves one message at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from benchmarks.simulation.rows import Rows
from resireduce.merging import RULES, Rule
from resireduce.merging.rules import Array, Arrivals, Ends

COMPUTING = ("backward", "compress", "next forward")
"""Streams that compute, whose time need not be hidden; compression that delays the backward pass is part of it."""


@dataclass(frozen=True)
class Timed:
    """One step of each case, in seconds; time 0 is the start of the backward pass. Shape (cases,) unless noted."""

    ends: Ends
    """(cases, tensors): where messages end."""
    busy: Mapping[str, tuple[Array, Array]]
    """By stream, in the order in which messages pass through them: when it begins and ends with the message that ends
    at each tensor, (cases, tensors)."""
    computed: Array
    """End of the backward pass, including the compression that delays it."""
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
    ready = _sendable(rows, alone, False)[0]
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


def _sendable(rows: Rows, ends: Ends, whole: bool) -> tuple[Array, Array, dict[str, tuple[Array, Array]]]:
    """Return when messages can be sent, the end of the backward pass, and the busy times of streams until then.

    Sums within a node are not merged: each tensor, and each bucket of small ones, has its own.
    """
    compression = _compression(rows, ends, whole)
    inline = np.where(rows.inline[:, None], compression, 0.0)
    computing = rows.backward + inline + _delays(rows, ends)
    backward = np.cumsum(computing, axis=-1)
    begun = backward - in_message(computing, ends)
    summing = _around(rows.in_node_latency, rows.in_node_per_byte, rows.moved)
    summed = served(backward + rows.late[:, None], summing)
    apart = in_message(compression - inline, ends)
    compressed = served(summed, apart)
    busy = {
        "backward": (begun, backward),
        "sum in node": (summed - in_message(summing, ends), summed),
        "compress": (compressed - apart, compressed),
    }
    return compressed, backward[:, -1], busy


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
    ready, computed, busy = _sendable(rows, ends, rule.compresses_messages)
    if rule.cycle_seconds:
        ready = np.ceil(ready / rule.cycle_seconds) * rule.cycle_seconds
    several = in_message((rows.nbytes > 0).astype(float), ends) > 1
    copying = np.where(several, in_message(rows.copied, ends), 0.0)
    sending = _sending(rows, ends) + copying
    if rule.in_halves:
        return _in_halves(rows, ends, ready, sending, computed, busy)
    sent = served(ready, sending)
    back = _brought_back(rows, ends, sent + np.where(sending > 0, rows.trailing[:, None], 0.0), computed)
    busy |= {"communicate": (sent - sending, sent), **back}
    finish = np.maximum(back["gather in node"][1][:, -1], computed) + rows.settle
    step = rows.forward + finish + rows.update
    return Timed(ends, MappingProxyType(busy), computed, step, finish - computed)


def _sending(rows: Rows, ends: Ends) -> Array:
    """Return the time of each message on the link, at the place where it ends."""
    if rows.sending is None:
        return _slowest(rows.latency, ends) + in_message(rows.transfer, ends)
    return rows.sending(in_message(rows.payload, ends)) + in_message(rows.beside, ends)


def _brought_back(rows: Rows, ends: Ends, come: Array, computed: Array) -> dict[str, tuple[Array, Array]]:
    """Return when messages that have `come` are decompressed, and their averages gathered within the node.

    In the library, if compression delays the backward pass, the thread that ended that pass does both, tensor after
    tensor. With a stream for each, they overlap.
    """
    unpacking = in_message(rows.unpack, ends)
    gathering = in_message(_around(rows.gather_latency, rows.gather_per_byte, rows.moved), ends)
    in_turn = served(np.maximum(come, computed[:, None]), unpacking + gathering)
    unpacked = np.where(rows.inline[:, None], in_turn - gathering, served(come, unpacking))
    gathered = np.where(rows.inline[:, None], in_turn, served(unpacked, gathering))
    return {
        "decompress": (unpacked - unpacking, unpacked),
        "gather in node": (gathered - gathering, gathered),
    }


def _slowest(latency: Array, ends: Ends) -> Array:
    """Return the latency of each message where it ends; all tensors of a case with a latency have the same one."""
    each = latency.max(axis=-1, keepdims=True)
    return np.where(in_message((latency > 0).astype(float), ends) > 0, each, 0.0)


def _in_halves(
    rows: Rows, ends: Ends, ready: Array, sending: Array, computed: Array, busy: dict[str, tuple[Array, Array]]
) -> Timed:
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
    forward = served(np.where(ends[:, order], gathered, begin), layers[:, order])
    step, gathered, forward = forward[:, -1], gathered[:, order], forward[:, order]
    later = {"communicate": (scattered - half, scattered), "all-gather": (gathered - half, gathered)}
    busy = busy | later | {"next forward": (forward - layers, forward)}
    return Timed(ends, MappingProxyType(busy), computed, step, step - computed - rows.forward - rows.update)
